"""The SQL of both dialects: installed as `queuert.sql`, read by `queuert.storage.sqlfiles`."""

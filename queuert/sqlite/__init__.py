"""All that is SQLite's: connections, sessions, transactions, errors, queries, the lock of its writers, the file's watcher."""

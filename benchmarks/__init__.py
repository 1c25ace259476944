"""Benchmarks against the bare drivers. Each module runs by itself: `python -m benchmarks.storage --quick`."""

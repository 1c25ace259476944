"""Measurements: `python -m benchmarks` compares the library with the bare drivers and with other queues.

The modules here also run by themselves, against the bare drivers only: `python -m benchmarks.storage --quick`. `suite/` has the
parts of the whole, `peers/` the other queues.
"""

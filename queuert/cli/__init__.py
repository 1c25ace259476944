"""The command `queuert`."""

from queuert.cli.entry import main

__all__ = ["main"]

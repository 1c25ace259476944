"""Exit codes, and the errors that end a command with one of them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
REFUSED: Final = 1
"""Not found, refused, unhealthy, or an error of the database."""
USAGE: Final = 2
"""The command line itself is wrong: running it again will not help."""
CHANGED: Final = 3
"""Of a worker that reloads: a source file has changed."""
INTERRUPTED: Final = 130


class CommandError(Exception):
    """Ends the command with one line on stderr."""

    code = REFUSED

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        # What it is called in JSON, if not by its class.
        self.kind = kind


class UsageError(CommandError):
    """What was asked for makes no sense as written."""

    code = USAGE

"""Which file a name led to when it was opened: it may be replaced or removed while the app runs.

What is written then goes to a file that has no name any more, and is gone when the last process closes it. Nobody tells us, so
whoever takes a connection looks now and then.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from queuert.errors import DatabaseUnavailableError
from queuert.storage.urls import MEMORY

logger = logging.getLogger("queuert.sqlite")

LOOK_EVERY: Final = 1.0  # seconds; a look takes 1.5 µs


class OpenFile:
    """The file of one database."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Device and number of what is open; None while nothing is.
        self._identity: tuple[int, int] | None = None
        self._look_at = 0.0
        self._told = False

    def was_opened(self) -> None:
        """A connection was made, and there is a file."""
        if self._identity is None and self._path != MEMORY:
            self._identity = _identity(self._path)
            self._told = False

    def was_replaced(self) -> bool:
        """Whether the name leads to another file, or to none. Says so once, in the log."""
        if self._identity is None or time.monotonic() < self._look_at:
            return False
        found = _identity(self._path)
        if found == self._identity:
            self._look_at = time.monotonic() + LOOK_EVERY
            return False
        if not self._told:
            self._told = True
            what = "was removed" if found is None else "was replaced by another file"
            logger.error(
                "The SQLite file %s %s while it was in use: what was written to it since is lost.%s",
                self._path,
                what,
                "" if found is None else " From here on the new one is used.",
                extra={"event": "file_replaced", "path": self._path},
            )
        return True

    def check_there(self) -> None:
        """Before a connection is made: one to a file that was removed would make an empty one in its place."""
        if self._identity is not None and _identity(self._path) is None:
            raise DatabaseUnavailableError(
                f"The SQLite file {self._path} was removed while it was in use: put it back, or stop this process."
            )

    def forget(self) -> None:
        """Nothing of it is open any more. If there is none now, that is remembered."""
        if _identity(self._path) is not None:
            self._identity = None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

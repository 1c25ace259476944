"""What SQLite's errors mean, and what is said about those that reach the user."""

from __future__ import annotations

import sqlite3
import sys
from typing import NoReturn

from queuert.errors import DatabaseUnavailableError

# SQLite's result codes; the sqlite3 module reports them from Python 3.11 on.
_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _PROTOCOL, _BUSY_SNAPSHOT = 5, 6, 8, 10, 13, 15, 517


class SharedCommitError(sqlite3.OperationalError):
    """The COMMIT that a transaction shared with others failed, for one of them or for all."""


def is_transient(error: BaseException) -> bool:
    """Trying again later can help."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    if isinstance(error, SharedCommitError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return is_busy(error) or "disk" in str(error)
    return code & 0xFF in (_BUSY, _LOCKED, _IOERR, _FULL, _PROTOCOL)


def is_busy(error: BaseException) -> bool:
    """Somebody else holds the database."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)
    return bool(code & 0xFF in (_BUSY, _LOCKED))


def is_snapshot(error: BaseException) -> bool:
    """Others have written since the transaction first read. Python 3.10 does not tell."""
    return getattr(error, "sqlite_errorcode", None) == _BUSY_SNAPSHOT


def is_readonly(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return "readonly database" in str(error) if code is None else code & 0xFF == _READONLY


def raise_explained(error: sqlite3.OperationalError, path: str, busy_timeout: float) -> NoReturn:
    """Raise an error that says what to do; a busy database stays the driver's own error, with a note."""
    if is_readonly(error):
        raise DatabaseUnavailableError(f"{path} cannot be written: {error}.") from error
    if is_busy(error) and sys.version_info >= (3, 11):
        error.add_note(
            f"Another transaction held {path} for longer than the busy timeout of {busy_timeout:g} "
            "seconds. If it is one of this thread's own, pass its connection as conn=."
        )
    raise error


def missing(error: BaseException) -> str | None:
    """What an error says of a table or column that is not there."""
    if not isinstance(error, sqlite3.OperationalError):
        return None
    text = str(error)
    return text if text.startswith(("no such table", "no such column")) or "has no column" in text else None

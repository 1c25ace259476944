"""What SQLite's errors mean, and what is said about those that reach the user."""

from __future__ import annotations

import sqlite3
import sys
from typing import Final, NoReturn

from queuert.errors import DatabaseUnavailableError, SchemaVersionError, UnsupportedDatabaseError
from queuert.storage.trouble import Trouble

# SQLite's result codes; the sqlite3 module reports them from Python 3.11 on.
_BUSY, _LOCKED, _READONLY, _BUSY_SNAPSHOT = 5, 6, 8, 517

# By the primary code, the low byte of a result code.
CODES: Final = {
    1: Trouble.SET_UP,  # ERROR: no such table, wrong SQL; see _ABOUT_DATA
    2: Trouble.OUTAGE,  # INTERNAL
    3: Trouble.SET_UP,  # PERM
    4: Trouble.OUTAGE,  # ABORT
    5: Trouble.OUTAGE,  # BUSY
    6: Trouble.OUTAGE,  # LOCKED
    7: Trouble.OUTAGE,  # NOMEM
    8: Trouble.OUTAGE,  # READONLY: a file system that was mounted again, read-only
    9: Trouble.OUTAGE,  # INTERRUPT
    10: Trouble.OUTAGE,  # IOERR
    11: Trouble.SET_UP,  # CORRUPT
    12: Trouble.SET_UP,  # NOTFOUND
    13: Trouble.OUTAGE,  # FULL
    14: Trouble.OUTAGE,  # CANTOPEN: too many open files, a directory that is not mounted
    15: Trouble.OUTAGE,  # PROTOCOL
    16: Trouble.SET_UP,  # EMPTY
    17: Trouble.OUTAGE,  # SCHEMA: it was changed while a statement was prepared
    18: Trouble.JOB,  # TOOBIG
    19: Trouble.JOB,  # CONSTRAINT, and RAISE in a user's trigger
    20: Trouble.JOB,  # MISMATCH
    21: Trouble.SET_UP,  # MISUSE
    22: Trouble.SET_UP,  # NOLFS
    23: Trouble.SET_UP,  # AUTH
    24: Trouble.SET_UP,  # FORMAT
    25: Trouble.JOB,  # RANGE
    26: Trouble.SET_UP,  # NOTADB
}
# Texts of the plain ERROR that are about a value, and not about the schema.
_ABOUT_DATA: Final = ("malformed JSON", "JSON cannot hold", "integer overflow", "bad JSON path", "JSON path error")
# Before Python 3.11 there is only the text.
_TEXTS: Final = (
    (("is locked", "busy", "disk", "full", "readonly", "unable to open", "interrupted", "locking protocol"), Trouble.OUTAGE),
    (("too big", "datatype mismatch", *_ABOUT_DATA), Trouble.JOB),
)


class SharedCommitError(sqlite3.OperationalError):
    """The COMMIT that a transaction shared with others failed, for one of them or for all."""


def trouble(error: BaseException) -> Trouble | None:
    """What an error means; None where it is not one of the database."""
    if isinstance(error, DatabaseUnavailableError):
        cause = error.__cause__
        return (trouble(cause) if isinstance(cause, sqlite3.Error) else None) or Trouble.OUTAGE
    if isinstance(error, (SharedCommitError, MemoryError)):
        return Trouble.OUTAGE
    if isinstance(error, (SchemaVersionError, UnsupportedDatabaseError)):
        return Trouble.SET_UP
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _by_text(error)
    if code == 1 and any(text in str(error) for text in _ABOUT_DATA):
        return Trouble.JOB
    return CODES.get(code & 0xFF, Trouble.JOB)


def _by_text(error: sqlite3.Error) -> Trouble:
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        return next((kind for texts, kind in _TEXTS if any(each in text for each in texts)), Trouble.SET_UP)
    # The driver's own, about values that it cannot bind; and a file that is not, or no longer, a database.
    return Trouble.SET_UP if type(error) is sqlite3.DatabaseError else Trouble.JOB


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

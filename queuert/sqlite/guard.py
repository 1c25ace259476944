"""The SQLite connection that user code gets inside a block of ours.

It is a real `sqlite3.Connection`, and everything that reads or writes rows works. What would end the transaction
under our feet, or change the connection for those who come next, is refused: the writer is shared by the whole
process, and a commit in the middle of a block would save half of it.

Two fences, since neither is enough. The methods (`commit()`, `close()`, `with conn:` and so on) are overridden.
Statements are judged by SQLite itself through an authorizer, which sees what a statement *is* however it is spelled;
it runs when a statement is prepared, so a cached one costs nothing. Our own BEGIN and COMMIT carry a comment, so that
a user's plain COMMIT does not find ours in the statement cache and slip past.
"""

from __future__ import annotations

import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from queuert.errors import TransactionMisuseError

if TYPE_CHECKING:
    from queuert.sqlite.session import SqliteSession

# One name for all: savepoints nest, and a database looks for the innermost of a name. So the statement stays prepared.
SAVEPOINT = "queuert_savepoint"
CURSORS_KEPT = 1_000

# The comment keeps a user's plain COMMIT from finding ours in the statement cache, where nobody judges it any more.
BEGIN = "BEGIN /* queuert */"
BEGIN_IMMEDIATE = "BEGIN IMMEDIATE /* queuert */"
COMMIT = "COMMIT /* queuert */"
ROLLBACK = "ROLLBACK /* queuert */"

# Pragmas that take an argument and change nothing for the next user of the connection.
HARMLESS_PRAGMAS = frozenset(
    (
        "application_id",
        "defer_foreign_keys",
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    )
)


class GuardedCursor(sqlite3.Cursor):
    """A cursor of a guarded connection; works only inside the block."""

    def execute(self, *args: Any) -> Any:
        return self._guarded(super().execute, args)

    def executemany(self, *args: Any) -> Any:
        return self._guarded(super().executemany, args)

    def executescript(self, *_: object) -> Any:
        refuse("executescript() commits first")

    def _guarded(self, call: Any, args: tuple[Any, ...]) -> Any:
        conn: Any = self.connection
        conn.check_open()
        try:
            return call(*args)
        except sqlite3.DatabaseError:
            if conn.refused:
                reason, conn.refused = conn.refused, ""
                refuse(reason)
            raise


class GuardedConnection(sqlite3.Connection):
    """The writer. Outside a block only the library uses it, through plain cursors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.session: SqliteSession | None = None
        """The session of the block that user code is in."""
        self.refused = ""
        self._ours = False
        self._cursors: list[weakref.ref[sqlite3.Cursor]] = []
        self._watched = False
        self._defers = False
        super().__init__(*args, **kwargs)
        super().set_authorizer(self._authorize)

    # For the library.

    def own(self, statement: str) -> None:
        """Run a transaction statement of ours."""
        self._ours = True
        try:
            sqlite3.Cursor(self).execute(statement)
        finally:
            self._ours = False

    def own_script(self, script: str) -> None:
        """Run a script of ours, each statement to its end."""
        self._ours = True
        try:
            sqlite3.Cursor(self).executescript(script)
        finally:
            self._ours = False

    def lend(self, session: SqliteSession) -> None:
        """User code may use the connection from now on."""
        self.session = session

    def reclaim(self) -> None:
        """User code may not use it any more. Cursors left open would hold on to an old snapshot, so they are closed."""
        self.session = None
        self.refused = ""
        for reference in self._cursors:
            cursor = reference()
            if cursor is not None:
                sqlite3.Cursor.close(cursor)
        self._cursors.clear()
        self.row_factory = None
        self.text_factory = str
        if self._watched:
            super().set_trace_callback(None)
            super().set_progress_handler(None, 0)
            self._watched = False
        if self._defers:  # it would last until the COMMIT, which others may share
            self.own("PRAGMA defer_foreign_keys = OFF")
            self._defers = False

    def check_open(self) -> None:
        if self.session is None:
            raise TransactionMisuseError("This transaction is over: its connection works only inside the block.")
        if not self.in_transaction:
            raise TransactionMisuseError(
                "The transaction was rolled back inside the block (an OR ROLLBACK, a full disk): leave the block."
            )

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action not in _JUDGED or self._ours or self.session is None:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            self.refused = f"{first} ends or starts a transaction"
        elif action == _SAVEPOINT:
            if (second or "").lower() != SAVEPOINT:
                return sqlite3.SQLITE_OK
            self.refused = f"the savepoint {second} is not yours"
        elif action == sqlite3.SQLITE_PRAGMA:
            if second is None or (first or "").lower() in HARMLESS_PRAGMAS:
                self._defers |= (first or "").lower() == "defer_foreign_keys"
                return sqlite3.SQLITE_OK
            self.refused = f"PRAGMA {first} would change the connection for others"
        else:
            self.refused = "ATTACH and DETACH would change the connection for others"
        return sqlite3.SQLITE_DENY

    # For user code.

    def cursor(self, factory: Any = GuardedCursor) -> Any:
        self.check_open()
        if factory is not GuardedCursor:
            factory = _guarded_class(factory)
        cursor = super().cursor(factory)
        if len(self._cursors) >= CURSORS_KEPT:
            self._cursors = [reference for reference in self._cursors if reference() is not None]
        self._cursors.append(weakref.ref(cursor))
        return cursor

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def executescript(self, *_: object) -> Any:
        refuse("executescript() commits first")

    def commit(self) -> None:
        if not self._ours:  # Python 3.10 calls it before a script
            refuse("commit()")

    def rollback(self) -> None:
        refuse("rollback()")

    def close(self) -> None:
        if self.session is not None:
            refuse("close()")
        super().close()

    def __enter__(self) -> Any:
        refuse("'with' on the connection commits at its end")

    def __exit__(self, *_: object) -> Any:
        return False

    def set_authorizer(self, *_: Any, **__: Any) -> None:
        refuse("set_authorizer() would switch the guard off")

    def set_trace_callback(self, *args: Any, **kwargs: Any) -> None:
        self._watched = True
        super().set_trace_callback(*args, **kwargs)

    def set_progress_handler(self, *args: Any, **kwargs: Any) -> None:
        self._watched = True
        super().set_progress_handler(*args, **kwargs)

    def deserialize(self, *_: Any, **__: Any) -> None:
        refuse("deserialize() would replace the database")

    # The supertype declares attributes, but implements properties.
    @property
    def isolation_level(self) -> Any:
        return None

    @isolation_level.setter
    def isolation_level(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        refuse("setting isolation_level commits")

    @property
    def autocommit(self) -> int:
        return -1  # what sqlite3 calls LEGACY_TRANSACTION_CONTROL from Python 3.12 on

    @autocommit.setter
    def autocommit(self, value: int) -> None:
        refuse("setting autocommit commits")


def refuse(what: str) -> NoReturn:
    raise TransactionMisuseError(
        f"Refused inside this block: {what}. The block commits when it ends, and rolls back on an exception."
    )


_SAVEPOINT = 32  # SQLITE_SAVEPOINT: the sqlite3 module has no name for it before Python 3.11
_JUDGED = frozenset(
    (sqlite3.SQLITE_TRANSACTION, _SAVEPOINT, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
)
_classes: dict[type, type] = {}


def _guarded_class(factory: Any) -> type:
    """A cursor class of the user's, with the guard in front of it."""
    if not (isinstance(factory, type) and issubclass(factory, sqlite3.Cursor)):
        raise TypeError("A cursor factory must be a subclass of sqlite3.Cursor here.")
    if factory is sqlite3.Cursor:
        return GuardedCursor
    if factory not in _classes:
        _classes[factory] = type(f"Guarded{factory.__name__}", (GuardedCursor, factory), {})
    return _classes[factory]

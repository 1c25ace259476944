"""Sessions on SQLite: how named queries run on a connection."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

from queuert.errors import QueuertError, StaleSnapshotError
from queuert.hooks import Hooks
from queuert.sqlite.errors import is_busy, is_snapshot
from queuert.sqlite.guard import BEGIN_IMMEDIATE, COMMIT, SAVEPOINT, GuardedConnection
from queuert.storage.loader import Query
from queuert.storage.protocol import Fault, Params, Row

T = TypeVar("T")


class SqliteSession:
    """A connection in a transaction of ours."""

    def __init__(self, raw: sqlite3.Connection, hooks: Hooks | None = None, *, mutex: threading.Lock | None = None) -> None:
        self.raw = raw
        self.hooks = hooks
        # For readers that share a connection: the module may hand two threads the same prepared statement.
        self._mutex = mutex

    def run(self, query: Query, params: Params) -> list[Row]:
        if self._mutex is None:
            return self._run(query, params)
        with self._mutex:
            return self._run(query, params)

    def _run(self, query: Query, params: Params) -> list[Row]:
        # Not raw.cursor(): that would have the user's row factory.
        cursor = sqlite3.Cursor(self.raw)
        rows: list[Row] = []
        for statement in query.statements:
            cursor.execute(statement, params)
            if cursor.description is not None:
                rows = cursor.fetchall()
        return rows

    def change(self, query: Query, params: Params) -> int:
        return sqlite3.Cursor(self.raw).execute(query.statements[0], params).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._statement(f"SAVEPOINT {SAVEPOINT}")
        with self.hooks.savepoint() if self.hooks is not None else nullcontext():
            try:
                yield
            except BaseException:
                # The transaction may be gone, and the savepoint with it: then the error that did it is the one to tell.
                with suppress(sqlite3.Error, QueuertError):
                    self._statement(f"ROLLBACK TO {SAVEPOINT}")
                    self._statement(f"RELEASE {SAVEPOINT}")
                raise
            self._statement(f"RELEASE {SAVEPOINT}")

    def fault(self) -> Fault:
        return "elsewhere" if self.raw.in_transaction else "database"

    def _statement(self, statement: str) -> None:
        if isinstance(self.raw, GuardedConnection):
            self.raw.own(statement)
        else:
            sqlite3.Cursor(self.raw).execute(statement)


class SingleSession(SqliteSession):
    """The writer for one query: a lone statement is a transaction by itself, without the journal that one inside BEGIN keeps
    to be undone alone."""

    raw: GuardedConnection

    def _run(self, query: Query, params: Params) -> list[Row]:
        if len(query.statements) == 1:
            return super()._run(query, params)
        self.raw.own(BEGIN_IMMEDIATE)
        rows = super()._run(query, params)
        self.raw.own(COMMIT)
        return rows


class BlockSession(SqliteSession):
    """The session of a block: user code has its connection, and could have lost the transaction."""

    raw: GuardedConnection

    def _run(self, query: Query, params: Params) -> list[Row]:
        self.raw.check_open()
        if self.raw.text_factory is str:
            return super()._run(query, params)
        return _with_text(self.raw, lambda: super(BlockSession, self)._run(query, params))

    def change(self, query: Query, params: Params) -> int:
        self.raw.check_open()
        return super().change(query, params)

    def _statement(self, statement: str) -> None:
        self.raw.check_open()
        super()._statement(statement)


class JoinedSession(SqliteSession):
    """The user's own connection in the user's own transaction."""

    def __init__(self, raw: sqlite3.Connection, hooks: Hooks | None, *, begin: str | None) -> None:
        super().__init__(raw, hooks)
        # The statement with which the driver would open the transaction; run before the first of ours.
        self._begin = begin

    def _run(self, query: Query, params: Params) -> list[Row]:
        with self._explained():
            if self.raw.text_factory is str:
                return super()._run(query, params)
            return _with_text(self.raw, lambda: super(JoinedSession, self)._run(query, params))

    def change(self, query: Query, params: Params) -> int:
        with self._explained():
            return super().change(query, params)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        self._open()
        started = time.monotonic()
        try:
            yield
        except sqlite3.OperationalError as error:
            if self._is_stale(error, time.monotonic() - started):
                raise StaleSnapshotError from error
            raise

    def _statement(self, statement: str) -> None:
        self._open()
        super()._statement(statement)

    def _open(self) -> None:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            if not self.raw.in_transaction:
                sqlite3.Cursor(self.raw).execute(begin)

    def _is_stale(self, error: sqlite3.OperationalError, waited: float) -> bool:
        if hasattr(error, "sqlite_errorcode") or not is_busy(error):
            return is_snapshot(error)
        # Python 3.10 does not tell; but only a stale snapshot is refused without waiting.
        timeout = sqlite3.Cursor(self.raw).execute("PRAGMA busy_timeout").fetchone()[0] / 1000
        return waited < float(timeout) / 2


def _with_text(conn: sqlite3.Connection, call: Callable[[], T]) -> T:
    """Run our statements with plain strings on a connection that makes something else of text."""
    text_factory = conn.text_factory
    conn.text_factory = str
    try:
        return call()
    finally:
        conn.text_factory = text_factory

"""SQLite on Django's connections."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from django.db import Error as DjangoError
from django.db import connections, transaction

from queuert.contrib.django.provider import OnDjango, hooks_of
from queuert.errors import DatabaseUnavailableError, TransactionMisuseError
from queuert.hooks import Hooks
from queuert.sqlite.borrowed import BorrowedSqlite, SqliteLoan, is_idle, path_of
from queuert.sqlite.errors import is_busy
from queuert.sqlite.session import JoinedSession, SqliteSession
from queuert.sqlite.transaction import BUSY_TRIES
from queuert.storage.loader import Query
from queuert.storage.protocol import Params, Row, Session
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import driver_error, unwrap
from queuert.storage.urls import MEMORY, absolute


class DjangoSqlite(OnDjango, BorrowedSqlite):
    """The tables are in the file that Django uses, or in the in-memory database of a test."""

    def __init__(self, alias: str, *, busy_timeout: float, check_foreign_keys: bool) -> None:
        self.alias = alias
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        """Django's connections that the library has worked on, of all threads."""
        self._open_at_fork: list[sqlite3.Connection] = []
        super().__init__(self._name(), busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys)

    def __repr__(self) -> str:
        return f"DjangoSqlite({self.alias!r})"

    def _name(self) -> str:
        wrapper = self._wrapper
        return MEMORY if wrapper.is_in_memory_db() else path_of(os.fspath(wrapper.settings_dict["NAME"]))

    # Tests change the name of the database after the app was made.

    @property
    def path(self) -> str:
        return absolute(self._name())

    @path.setter
    def path(self, _: str) -> None: ...

    @property
    def in_memory(self) -> bool:
        return self.path == MEMORY

    @in_memory.setter
    def in_memory(self, _: bool) -> None: ...

    # Sessions.

    @contextmanager
    def _block(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        wrapper = self._wrapper
        if wrapper.in_atomic_block:
            with self._joined_block(wrapper) as session:
                yield session
            return
        with ExitStack() as turn:
            turn.enter_context(self._turn(writes=True))
            turn.enter_context(self._inside_block())
            self._connected()
            with transaction.atomic(using=self.alias):
                # Before any other effect, which may want to write itself.
                transaction.on_commit(turn.close, using=self.alias)
                self._begin_now(wrapper.connection)
                session = DjangoBlockSession(wrapper, hooks_of(wrapper))
                yield session
                session.check_open()

    def _begin_now(self, raw: sqlite3.Connection) -> None:
        """Django has begun, deferred; nothing is in it yet."""
        cursor = sqlite3.Cursor(raw)
        cursor.execute("ROLLBACK")
        tries = 0
        while True:
            tries += 1
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or tries >= BUSY_TRIES:
                    self._raise(error)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> SqliteSession:
        wrapper = self._wrapper
        if unwrap(conn, reading=reading) is wrapper.connection and wrapper.connection is not None:
            return self._joined(wrapper, reading=reading, hooks=hooks)
        return super().join(conn, reading=reading, hooks=hooks)

    def _joined(self, wrapper: Any, *, reading: bool = False, hooks: Hooks | None = None) -> DjangoSqliteSession:
        unwrap(wrapper, reading=reading)  # refuses one that can only be rolled back
        self._use(wrapper)
        return DjangoSqliteSession(wrapper, hooks or hooks_of(wrapper))

    def lend(self, session: Session) -> AbstractContextManager[Any]:
        return nullcontext(session.raw)

    # Connections.

    @contextmanager
    def _loan(self) -> Iterator[SqliteLoan]:
        yield _DjangoLoan(self._connected())

    def _connected(self) -> sqlite3.Connection:
        wrapper = self._wrapper
        try:
            wrapper.ensure_connection()
        except DjangoError as error:
            raise DatabaseUnavailableError(f"{self.path} cannot be opened: {driver_error(error)}.") from error
        raw: sqlite3.Connection = wrapper.connection
        self._use(wrapper)
        if not raw.in_transaction:
            self.prepare_connection(raw)
        return raw

    def trouble(self, error: BaseException) -> Trouble | None:
        return super().trouble(driver_error(error))

    # Forks. Django's connections belong to threads, and only their own can close them.

    def before_fork(self) -> None:
        if self.alias in connections:  # a test's database may be gone
            super().before_fork()

    def after_fork(self) -> Iterable[object]:
        return super().after_fork() if self.alias in connections else ()

    def _use(self, wrapper: Any) -> None:
        self.refuse_inherited()
        if wrapper not in self._used:
            with self._mutex:
                self._used.add(wrapper)

    def _open_connections(self) -> list[sqlite3.Connection]:
        with self._mutex:
            return [wrapper.connection for wrapper in self._used if wrapper.connection is not None]

    def _close_idle(self) -> None:
        wrapper = self._wrapper
        if wrapper.connection is not None and not wrapper.in_atomic_block and is_idle(wrapper.connection):
            wrapper.close()
        self._open_at_fork = self._open_connections()

    def forked(self) -> None:
        self._open_at_fork = []
        super().forked()

    def _let_go(self) -> Iterable[object]:
        found = [*self._open_at_fork, *self._open_connections(), *super()._let_go()]
        self._open_at_fork = []
        self._used.clear()
        return {id(raw): raw for raw in found}.values()


class DjangoSqliteSession(JoinedSession):
    """Savepoints are Django's, so that its `on_commit` knows of them."""

    def __init__(self, wrapper: Any, hooks: Hooks | None) -> None:
        super().__init__(wrapper.connection, hooks, begin=None)
        self._wrapper = wrapper

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        inside = self._wrapper.in_atomic_block
        with transaction.atomic(using=self._wrapper.alias) if inside else super().savepoint():
            yield


class DjangoBlockSession(DjangoSqliteSession):
    """The session of a block of ours: user code could have ended its transaction with SQL."""

    def check_open(self) -> None:
        if not self.raw.in_transaction:
            raise TransactionMisuseError(
                "The transaction was ended inside the block, by COMMIT or ROLLBACK as SQL: leave that to the block."
            )

    def _run(self, query: Query, params: Params) -> list[Row]:
        self.check_open()
        return super()._run(query, params)

    def change(self, query: Query, params: Params) -> int:
        self.check_open()
        return super().change(query, params)


class _DjangoLoan(SqliteLoan):
    """Django believes in autocommit; nothing of Django's runs while we have it."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.handle = raw

    def begin(self, statement: str) -> None:
        sqlite3.Cursor(self.raw).execute(statement)

    def commit(self) -> None:
        sqlite3.Cursor(self.raw).execute("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            sqlite3.Cursor(self.raw).execute("ROLLBACK")

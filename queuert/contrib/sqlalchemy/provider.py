"""The provider: which engine, and how to use its connections on either database."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from queuert.contrib.sqlalchemy.hooks import hooks_of
from queuert.contrib.sqlalchemy.loans import ConnectionLoan, SessionFactory, SessionLoan, connection_loan, session_loan
from queuert.contrib.sqlalchemy.shared import SharedSession
from queuert.errors import DatabaseUnavailableError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.sqlite.borrowed import BorrowedSqlite, LentSession, SqliteLoan, path_of, refuse_shared
from queuert.sqlite.opening import pragma
from queuert.sqlite.session import SqliteSession
from queuert.storage.protocol import Database, Provider
from queuert.storage.protocol import Session as QuerySession
from queuert.storage.unwrap import unwrap
from queuert.storage.urls import MEMORY

DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}


class SQLAlchemyProvider(Provider):
    """Lends an engine's connections to a `Queuert`.

        app = Queuert(SQLAlchemyProvider(engine))

    With a `session_factory` (a `sessionmaker`, a `scoped_session`, or a function) the blocks of the library, such as
    `with job.complete() as session`, give an ORM session in the block's transaction; without one, the driver's connection.

    With a `session` (a `scoped_session`) a call without `conn=` takes part in that session's transaction if one is open on this
    thread; otherwise it commits by itself. It is the `session_factory` too, unless another one is given.

    On
    SQLite the engine's connections get what the library needs (foreign keys, WAL, a transaction around savepoints), unless
    `configure_connections=False`. The engine stays yours: `app.close()` does not dispose of it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        session_factory: SessionFactory | None = None,
        session: scoped_session[Any] | None = None,
        configure_connections: bool = True,
    ) -> None:
        if hasattr(engine, "sync_engine"):
            raise TypeError("This library is synchronous: pass an engine of create_engine, not an AsyncEngine.")
        if not isinstance(engine, Engine):
            raise TypeError(f"SQLAlchemyProvider takes a sqlalchemy Engine, not {type(engine).__name__}.")
        if session_factory is not None and not callable(session_factory):
            raise TypeError(f"session_factory must be a sessionmaker or another callable, not {session_factory!r}.")
        if session is not None and not isinstance(session, scoped_session):
            raise TypeError(f"session must be a scoped_session, not {type(session).__name__}.")
        _check_driver(engine)
        self.engine = engine
        self.session = session
        self.session_factory = session if session_factory is None else session_factory
        self._configure = configure_connections

    def __repr__(self) -> str:
        return f"SQLAlchemyProvider({self.engine!r})"

    def database(self, *, busy_timeout: float, check_foreign_keys: bool) -> Database:
        if self.engine.dialect.name == "postgresql":
            from queuert.contrib.sqlalchemy.postgres import EnginePostgres  # psycopg is an extra

            return EnginePostgres(self.engine, self.session_factory, self.session)
        database = EngineSqlite(
            self.engine,
            self.session_factory,
            self.session,
            busy_timeout=busy_timeout,
            check_foreign_keys=check_foreign_keys,
        )
        event.listen(self.engine, "connect", database.opened)
        if self._configure:
            event.listen(self.engine, "connect", lambda raw, _: database.prepare_connection(raw))
            event.listen(self.engine, "savepoint", _begin_before_savepoint)
        return database


class EngineSqlite(BorrowedSqlite):
    """SQLite on an engine's connections."""

    def __init__(
        self,
        engine: Engine,
        factory: SessionFactory | None,
        session: scoped_session[Any] | None,
        *,
        busy_timeout: float,
        check_foreign_keys: bool,
    ) -> None:
        path = _sqlite_path(engine)
        super().__init__(path, busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys)
        if self.in_memory and not isinstance(engine.pool, StaticPool):
            raise UnsupportedDatabaseError(
                "An in-memory database of this engine is another one in each thread: make the engine with "
                "poolclass=StaticPool and connect_args={'check_same_thread': False}, or use a file."
            )
        self._engine = engine
        self._factory = factory
        self._shared = SharedSession(session, engine)
        self.around_attempt = self._shared.around_attempt
        self._records: weakref.WeakSet[Any] = weakref.WeakSet()
        """The pool's entries for connections that it opened."""
        self._old_pools: weakref.WeakSet[Pool] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"EngineSqlite({self._engine!r})"

    def ambient(self) -> object | None:
        return self._shared.in_transaction()

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> SqliteSession:
        raw = unwrap(conn, reading=reading)
        lent = self.lent_session
        if lent is not None and lent.raw is raw:
            return lent
        self.refuse_inherited()
        if isinstance(raw, sqlite3.Connection) and not (reading or raw.in_transaction or pragma(raw, "foreign_keys")):
            self.prepare_connection(raw)
        return super().join(raw, reading=reading, hooks=hooks_for(conn, self, hooks, reading=reading))

    def lend(self, session: QuerySession) -> AbstractContextManager[Any]:
        assert isinstance(session, LentSession)
        return flushed(session.loan)

    def _check_shared(self) -> None:
        # Before it is taken from the pool: giving it back would roll back what is open on it.
        pool = self._engine.pool
        if isinstance(pool, StaticPool):
            raw: Any = pool.connection.dbapi_connection
            if getattr(raw, "autocommit", None) is not False:
                refuse_shared(raw)

    @contextmanager
    def _loan(self) -> Iterator[SqliteLoan]:
        self._check_shared()
        with available(), connection_loan(self._engine) as loan:
            yield _EngineLoan(loan, self)

    @contextmanager
    def _block_loan(self) -> Iterator[SqliteLoan]:
        if self._factory is None:
            with self._loan() as loan:
                yield loan
            return
        self._check_shared()
        with available(), session_loan(self._engine, self._factory, lambda raw: raw.in_transaction) as loan:
            yield _EngineLoan(loan, self)

    def open_watcher(self) -> sqlite3.Connection:
        if not os.path.exists(self.path):  # a URI, or a creator of the user's: ask where it leads
            with self._loan() as loan:
                rows = sqlite3.Cursor(loan.raw).execute("PRAGMA database_list").fetchall()
                self.path = next(row[2] for row in rows if row[1] == "main")
        return super().open_watcher()

    # Forks.

    def opened(self, _: object, record: Any) -> None:
        with self._mutex:
            self._records.add(record)

    def _close_idle(self) -> None:
        pool = self._engine.pool
        if isinstance(pool, (StaticPool, SingletonThreadPool)):
            return  # theirs are in use
        for old in list(self._old_pools):  # where a connection goes that was in use at an earlier fork
            old.dispose()
        self._old_pools.add(pool)
        self._engine.dispose()

    def _let_go(self) -> Iterable[object]:
        pool = let_go_of_pool(self._engine)
        inherited = [record.dbapi_connection for record in self._records if record.dbapi_connection is not None]
        self._records.clear()
        return [*pool, *inherited] if inherited else ()


class _EngineLoan(SqliteLoan):
    """SQLAlchemy believes in a transaction, and we say how SQLite begins it."""

    def __init__(self, loan: ConnectionLoan | SessionLoan, database: EngineSqlite) -> None:
        self._loan = loan
        self._database = database
        self.raw = loan.raw
        self.handle = loan.handle

    def begin(self, statement: str) -> None:
        self._loan.begin()
        self.raw = self._loan.raw
        cursor = sqlite3.Cursor(self.raw)
        if self.raw.in_transaction:  # begun by the driver (autocommit=False) or by an event of the user's; nothing is in it
            cursor.execute("ROLLBACK")
        if not pragma(self.raw, "foreign_keys"):  # a connection that is older than the app
            self._database.prepare_connection(self.raw)
        cursor.execute(statement)

    def commit(self) -> None:
        self._loan.commit()

    def rollback(self) -> None:
        self._loan.rollback()

    def flush(self) -> None:
        self._loan.flush()


@contextmanager
def flushed(loan: Any) -> Iterator[Any]:
    """What user code gets; at the end of its block everything is sent to the database, so that it can be refused there."""
    yield loan.handle
    loan.flush()


@contextmanager
def available() -> Iterator[None]:
    """A pool that gives no connection is a database that cannot be reached."""
    try:
        yield
    except exc.TimeoutError as error:
        raise DatabaseUnavailableError(f"The engine's pool has no connection to give: {error}") from error


def hooks_for(conn: object, database: Database, hooks: Hooks | None, *, reading: bool) -> Hooks | None:
    """The hooks of `app.hooks()` if there are some, else those of the user's session."""
    if isinstance(conn, scoped_session):
        conn = conn()
    if hooks is not None or reading or not isinstance(conn, Session):
        return hooks
    return hooks_of(conn, database)


def let_go_of_pool(engine: Engine) -> Iterable[object]:
    """In a forked child: the engine gets a new pool, and the old one, with the parent's connections, is never touched."""
    pool = engine.pool
    with suppress(Exception):
        engine.dispose(close=False)
    return (pool,)


def _begin_before_savepoint(conn: Connection, _: object) -> None:
    """The driver begins a transaction before a write, not before a savepoint; releasing that one would commit."""
    raw: Any = conn.connection.driver_connection
    if not raw.in_transaction:
        sqlite3.Cursor(raw).execute("BEGIN")


def _check_driver(engine: Engine) -> None:
    name, driver = engine.dialect.name, engine.dialect.driver
    if name not in DRIVERS:
        raise UnsupportedDatabaseError(
            f"This library works on SQLite and PostgreSQL; the engine is on {name} ({engine.url.drivername})."
        )
    if driver != DRIVERS[name] or engine.dialect.is_async:
        right = "postgresql+psycopg://" if name == "postgresql" else "sqlite:///"
        raise UnsupportedDatabaseError(
            f"The engine uses the driver {driver!r}; this library needs {DRIVERS[name]!r}: make it with {right}..."
        )


def _sqlite_path(engine: Engine) -> str:
    path = engine.url.database
    if not path or path == MEMORY or "mode=memory" in path or engine.url.query.get("mode") == "memory":
        return MEMORY
    return path_of(path)

"""PostgreSQL on an engine's connections."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

# First, since it says what to install where psycopg is missing.
from queuert.postgres.connections import warn_if_small
from queuert.postgres.session import BlockSession, Connection, PostgresSession

# isort: split
import psycopg
from psycopg import pq
from sqlalchemy import exc
from sqlalchemy.engine import Engine
from sqlalchemy.orm import scoped_session

from queuert.contrib.sqlalchemy.loans import SessionFactory, connection_loan, session_loan
from queuert.contrib.sqlalchemy.provider import available, flushed, hooks_for, let_go_of_pool
from queuert.contrib.sqlalchemy.shared import SharedSession
from queuert.errors import DatabaseUnavailableError, TransactionMisuseError
from queuert.hooks import Hooks
from queuert.postgres.database import PostgresDatabase
from queuert.postgres.lending import is_alive
from queuert.postgres.transaction import begin, check_still_open
from queuert.storage.protocol import Block, ManagedBlock
from queuert.storage.protocol import Session as QuerySession
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import driver_error, unwrap
from queuert.storage.urls import scrub


class LentPostgresSession(BlockSession):
    """The session of a block, with the loan that user code works on."""

    def __init__(self, loan: Any, hooks: Hooks) -> None:
        super().__init__(loan.raw, hooks)
        self.loan = loan


class EnginePostgres(PostgresDatabase):
    """Borrows from the engine's pool instead of one of our own."""

    def __init__(self, engine: Engine, factory: SessionFactory | None, session: scoped_session[Any] | None = None) -> None:
        super().__init__(_url(engine))
        self._engine = engine
        # Connections that workers may use at a time.
        self._needed = 0
        self._factory = factory
        self._shared = SharedSession(session, engine)
        self.around_attempt = self._shared.around_attempt

    def __repr__(self) -> str:
        return f"EnginePostgres({self._engine!r})"

    # Sessions.

    def block(self, *, shared: bool = False) -> Block:
        return ManagedBlock(self._block())

    @contextmanager
    def _block(self) -> Iterator[PostgresSession]:
        self._refuse_inside_block()
        hooks = Hooks()
        pid = os.getpid()
        with self._inside_block(), self._block_loan() as loan:
            try:
                self._begin_on(loan)
                if loan.raw.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                    begin(loan.raw)
                session = self._thread.lent = LentPostgresSession(loan, hooks)
                yield session
                if os.getpid() != pid:
                    raise TransactionMisuseError("The process forked inside this block: only the parent can commit it.")
                check_still_open(loan.raw)
                loan.commit()
            except BaseException as error:
                hooks.discard()
                if os.getpid() == pid:
                    self._undo(loan, error)
                if isinstance(error, exc.DBAPIError) and isinstance(error.orig, psycopg.Error) and _is_commit(error):
                    raise error.orig from None
                raise
            finally:
                self._thread.lent = None
        hooks.flush()

    def _begin_on(self, loan: Any) -> None:
        """A connection that died in the pool is replaced before anything is sent on it."""
        with self._reachable():
            loan.begin()
            while not is_alive(loan.raw):
                loan.invalidate()
                loan.rollback()
                loan.begin()

    def _undo(self, loan: Any, error: BaseException) -> None:
        with suppress(Exception):
            if loan.raw is not None and loan.raw.closed:
                loan.invalidate()
            loan.rollback()

    @contextmanager
    def _block_loan(self) -> Iterator[Any]:
        loans: AbstractContextManager[Any] = (
            connection_loan(self._engine) if self._factory is None else session_loan(self._engine, self._factory, _wrote)
        )
        with self._reachable():
            loan = loans.__enter__()
        try:
            yield loan
        except BaseException as error:
            if not loans.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            loans.__exit__(None, None, None)

    def ambient(self) -> object | None:
        return self._shared.in_transaction()

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> PostgresSession:
        raw = unwrap(conn, reading=reading)
        lent: LentPostgresSession | None = getattr(self._thread, "lent", None)
        if lent is not None and lent.raw is raw:
            return lent
        return super().join(raw, reading=reading, hooks=hooks_for(conn, self, hooks, reading=reading))

    def lend(self, session: QuerySession) -> AbstractContextManager[Any]:
        assert isinstance(session, LentPostgresSession)
        return flushed(session.loan)

    def trouble(self, error: BaseException) -> Trouble | None:
        return super().trouble(driver_error(error))

    # Connections.

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        fairy, raw = self._checkout()
        autocommit, pid = raw.autocommit, os.getpid()
        try:
            if not autocommit:
                raw.autocommit = True
            yield raw
        finally:
            if os.getpid() == pid:
                self._checkin(fairy, raw, autocommit)

    def _checkout(self) -> tuple[Any, Connection]:
        while True:
            with self._reachable():
                fairy = self._engine.raw_connection()
            raw: Any = fairy.driver_connection
            if is_alive(raw):
                return fairy, raw
            fairy.invalidate()

    def _checkin(self, fairy: Any, raw: Connection, autocommit: bool) -> None:
        try:
            if not raw.closed and raw.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                raw.rollback()
            if not raw.closed and raw.autocommit != autocommit:
                raw.autocommit = autocommit
        except psycopg.Error:
            raw.close()
        if raw.closed:
            fairy.invalidate()
        else:
            fairy.close()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Errors of connecting, without the password that some of them quote."""
        with available():
            try:
                yield
            except (exc.DBAPIError, psycopg.Error) as error:
                url = self._engine.url.render_as_string(hide_password=False)
                problem = scrub(str(driver_error(error)), url).strip()
                raise DatabaseUnavailableError(f"{self._engine.url!r} cannot be reached: {problem}") from None

    def open_listener(self) -> Connection:
        """Taken out of the pool for good, so that whatever the engine does to connect is done here too."""
        with self._reachable():
            fairy = self._engine.raw_connection()
        raw = cast(Connection, fairy.driver_connection)  # the driver was checked at the start
        fairy.detach()
        raw.autocommit = True
        return raw

    def reserve(self, connections: int) -> None:
        """The engine's pool has the size that its owner gave it."""
        self._needed = max(0, self._needed + connections)
        pool: Any = self._engine.pool
        if connections > 0 and hasattr(pool, "size") and hasattr(pool, "_max_overflow") and pool._max_overflow >= 0:
            warn_if_small(pool.size() + pool._max_overflow, self._needed)

    def close(self) -> None:
        """The engine is the user's."""

    def after_fork(self) -> Iterable[object]:
        self._thread.lent = None
        return let_go_of_pool(self._engine)


def _wrote(raw: Any) -> bool:
    """Whether the open transaction has written: PostgreSQL numbers only those that did."""
    if raw.pgconn.transaction_status == pq.TransactionStatus.IDLE:
        return False
    cursor = psycopg.Cursor(raw)
    return cursor.execute("SELECT txid_current_if_assigned() IS NOT NULL").fetchone() == (True,)


def _is_commit(error: exc.DBAPIError) -> bool:
    """Whether it is COMMIT that failed: SQLAlchemy has no statement for that."""
    return error.statement is None


def _url(engine: Engine) -> str:
    """For messages: the options of the engine are used through the engine alone."""
    return engine.url.set(drivername="postgresql", password=None).render_as_string()

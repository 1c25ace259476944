"""A transaction for user code, on a connection of the pool.

It refuses `commit()` and `rollback()`, which are the block's, and a child that was forked inside it does not end it. On a
connection of our own the last query may carry the COMMIT along.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from queuert.hooks import Hooks
from queuert.postgres.direct import OwnConnection, open_inside
from queuert.postgres.session import BlockSession, Connection
from queuert.postgres.transaction import begin, check_still_open, commit
from queuert.sqlite.guard import TransactionMisuseError

if TYPE_CHECKING:
    from queuert.postgres.database import PostgresDatabase

BEGIN_TRIES: Final = 3
_UNCHANGED: Final = object()


class Block:
    """Entered and left by one thread."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._hooks = Hooks()
        self._pid = os.getpid()
        self._transaction: Any = None
        """psycopg's own, on a connection of a user's pool."""
        self._isolation: Any = _UNCHANGED

    def __enter__(self) -> BlockSession:
        database = self._database
        database._refuse_inside_block()
        self._conn = conn = self._begin()
        self._kept = conn.row_factory, conn.cursor_factory, conn.prepare_threshold
        database._enter_block()
        try:
            self._session = database._lent[conn] = BlockSession(conn, self._hooks)
        except BaseException as error:
            self._roll_back(error)
            self._give_back()
            raise
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        try:
            if error is None:
                self._check()
                self._commit()
            else:
                self._roll_back(error)
        except BaseException as problem:
            self._hooks.discard()
            if error is None:
                self._roll_back(problem)
            raise
        finally:
            self._give_back()
        if error is not None:
            self._hooks.discard()
            return isinstance(error, psycopg.Rollback)  # psycopg's way of saying: undo it, and go on
        self._hooks.flush()
        return False

    def _begin(self) -> Connection:
        """A connection with a transaction open. One that turns out to be dead is replaced: nothing has happened on it yet."""
        tries = 0
        while True:
            tries += 1
            self._borrowed = self._database._borrow()
            conn = self._borrowed.__enter__()
            try:
                self._begin_on(conn)
            except BaseException as error:
                self._borrowed.__exit__(None, None, None)
                if not isinstance(error, psycopg.OperationalError) or not conn.closed or tries == BEGIN_TRIES:
                    raise
            else:
                return conn

    def _begin_on(self, conn: Connection) -> None:
        if isinstance(conn, OwnConnection):
            begin(conn)
            conn.lent = True
            return
        # Whatever the default of a user's pool: who closes a chain must see who has come to wait for it.
        before, self._isolation = conn.isolation_level, _UNCHANGED
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        transaction = conn.transaction()
        try:
            transaction.__enter__()
        except BaseException:
            if not conn.closed and conn.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                conn.isolation_level = before
            raise
        self._transaction, self._isolation = transaction, before

    def _check(self) -> None:
        conn = self._conn
        if os.getpid() != self._pid:
            raise TransactionMisuseError("The process forked inside this block: only the parent can commit it.")
        if self._session.committed:
            return
        if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            with conn.pipeline() as pipeline:
                pipeline.sync()
        check_still_open(conn)
        if isinstance(conn, OwnConnection) and open_inside(conn):
            raise TransactionMisuseError("A transaction() was entered inside the block and not left: nothing of it is saved.")

    def _commit(self) -> None:
        conn = self._conn
        if isinstance(conn, OwnConnection):
            conn.lent = False
            if not self._session.committed:
                commit(conn)
        else:
            transaction, self._transaction = self._transaction, None
            transaction.__exit__(None, None, None)

    def _roll_back(self, error: BaseException) -> None:
        """What goes wrong here is not worth telling beside what went wrong before: the connection is thrown away then."""
        conn = self._conn
        if os.getpid() != self._pid:
            return
        if isinstance(conn, OwnConnection):
            conn.lent = False
            if not conn.closed and conn.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                with suppress(psycopg.Error):
                    conn.rollback()
        elif self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            with suppress(psycopg.Error):
                transaction.__exit__(type(error), error, error.__traceback__)

    def _give_back(self) -> None:
        conn, database = self._conn, self._database
        database._exit_block()
        database._lent.pop(conn, None)
        conn.row_factory, conn.cursor_factory, conn.prepare_threshold = self._kept
        if self._isolation is not _UNCHANGED and conn.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            conn.isolation_level = self._isolation  # otherwise it is thrown away
        self._borrowed.__exit__(None, None, None)

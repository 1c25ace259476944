"""A transaction for user code, on a connection of the pool.

It refuses `commit()` and `rollback()`, which are the block's, and a child that was forked inside it does not end it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from queuert.errors import StaleSnapshotError, TransactionMisuseError
from queuert.hooks import Hooks
from queuert.postgres.connection import OwnConnection
from queuert.postgres.direct import DirectConnection
from queuert.postgres.errors import FIXED_SNAPSHOT, LEASE_LOST, has_stale_statements
from queuert.postgres.session import BlockSession, Connection, OurCursor, sync
from queuert.postgres.transaction import begin, check_still_open
from queuert.storage.loader import Query
from queuert.storage.protocol import ABOVE_READ_COMMITTED, Block, Commit, Committed, Params, Row

if TYPE_CHECKING:
    from queuert.postgres.database import PostgresDatabase

BEGIN_TRIES: Final = 3
CAN_PIPELINE: Final = psycopg.Pipeline.is_supported()
_UNCHANGED: Final = object()


class PostgresBlock(Block):
    """Entered and left by one thread."""

    session: BlockSession

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._hooks = Hooks()
        self._pid = os.getpid()
        # psycopg's own, on a connection of a user's pool.
        self._transaction: Any = None
        self._isolation: Any = _UNCHANGED

    def __enter__(self) -> BlockSession:
        database = self._database
        database._refuse_inside_block()
        self._conn = conn = self._begin()
        self._kept = conn.row_factory, conn.cursor_factory, conn.prepare_threshold
        database._enter_block()
        try:
            self.session = database._lent[conn] = BlockSession(conn, self._hooks)
        except BaseException as error:
            self._roll_back(error)
            self._give_back()
            raise
        return self.session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if self._left:
            return False
        if error is None:
            self.commit().wait()
            return False
        try:
            self._roll_back(error)
        finally:
            self._hooks.discard()
            self._give_back()
        return isinstance(error, psycopg.Rollback)  # psycopg's way of saying: undo it, and go on

    def commit(self) -> Commit:
        self._left = True
        try:
            self._check()
            self._commit()
        except BaseException as problem:
            self._hooks.discard()
            self._roll_back(problem)
            raise
        finally:
            self._give_back()
        return Committed(self._hooks)

    def run_and_commit(self, query: Query, params: Params) -> tuple[list[Row], Commit | None] | None:
        conn = self._conn
        if not CAN_PIPELINE or not isinstance(conn, OwnConnection) or conn.open_inside or os.getpid() != self._pid:
            return None
        self.session.check_open()
        if conn.pgconn.transaction_status != pq.TransactionStatus.INTRANS:
            return None
        conn.lent = False
        try:
            rows = self._send_with_commit(conn, query, params)
        except psycopg.Error as error:
            conn.lent = True
            if error.sqlstate == FIXED_SNAPSHOT:
                raise StaleSnapshotError(ABOVE_READ_COMMITTED) from error
            if error.sqlstate != LEASE_LOST:
                raise
            conn.execute("ROLLBACK AND CHAIN")
            return [], None
        self._left = True
        self._give_back()
        return rows, Committed(self._hooks)

    def _send_with_commit(self, conn: OwnConnection, query: Query, params: Params) -> list[Row]:
        """In a pipeline: if the query fails, the server skips the COMMIT."""
        if isinstance(conn, DirectConnection) and conn.is_direct:
            return conn.run_query(query, params, commit=True)
        with conn.pipeline():
            cursor = OurCursor(conn, row_factory=tuple_row)
            cursor.execute(query.statements[0], [params[name] for name in query.params])
            conn.commit()
        return cursor.fetchall()

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
        sync(conn)
        check_still_open(conn)
        if isinstance(conn, OwnConnection) and conn.open_inside:
            raise TransactionMisuseError("A transaction() was entered inside the block and not left: nothing of it is saved.")

    def _commit(self) -> None:
        conn = self._conn
        if isinstance(conn, OwnConnection):
            conn.lent = False
            conn.commit()
        else:
            transaction, self._transaction = self._transaction, None
            transaction.__exit__(None, None, None)

    def _roll_back(self, error: BaseException) -> None:
        """What goes wrong here is not worth telling beside what went wrong before: the connection is thrown away then."""
        conn = self._conn
        if os.getpid() != self._pid:
            return
        if has_stale_statements(error):
            conn.close()
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

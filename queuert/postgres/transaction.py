"""One transaction on PostgreSQL, from BEGIN to the answer of COMMIT, or to what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from queuert.errors import TransactionMisuseError
from queuert.hooks import Hooks
from queuert.postgres.errors import GONE, has_stale_statements
from queuert.postgres.session import Connection, PostgresSession
from queuert.postgres.settings import reads_committed

T = TypeVar("T")

# Locks are taken and waited for, and what was committed meanwhile must be seen: whatever the server's default is.
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# For what is not urgent. Only in this transaction: the connection is everybody's.
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '200ms'"


class Try:
    """One try of a piece of work on one connection, and how far it came."""

    def __init__(self, single: bool, *, impatient: bool = False) -> None:
        self.single = single and not impatient
        self._impatient = impatient
        # Whether the connection is gone, rather than a statement refused.
        self.lost = False
        # Whether it may have committed although it raised.
        self.unknown = False

    def run(self, conn: Connection, work: Callable[[Any], T], hooks: Hooks) -> T:
        try:
            if self.single and reads_committed(conn):
                self.unknown = True
                return work(PostgresSession(conn, hooks))
            begin(conn)
            if self._impatient:
                conn.execute(_LOCK_TIMEOUT)
            result = work(PostgresSession(conn, hooks))
            check_still_open(conn)
            self.unknown = True
            conn.commit()
            return result
        except psycopg.Error as error:
            if has_stale_statements(error) and not conn.closed:
                conn.close()
                self.unknown = False  # the server has refused it
            self.lost = bool(conn.closed) or error.sqlstate in GONE
            raise


def begin(conn: Connection) -> None:
    # Straight to libpq: BEGIN waits for nothing, and psycopg's way costs 30 µs more.
    result = conn.pgconn.exec_(_BEGIN)
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(result.get_error_message().strip() or "BEGIN failed")


def check_still_open(conn: Connection) -> None:
    """At the end of a transaction: COMMIT would be a silent ROLLBACK, or a no-op, unless it is open and healthy."""
    if conn.closed:
        raise TransactionMisuseError("The connection was closed inside the transaction: nothing of it is saved.")
    status = conn.pgconn.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise TransactionMisuseError(
            "A statement failed inside the transaction and its error was swallowed, so PostgreSQL can only roll it all "
            "back: run what may fail in a savepoint (`with conn.transaction():`)."
        )
    if status != pq.TransactionStatus.INTRANS:
        raise TransactionMisuseError(
            "The transaction was ended inside the block, by COMMIT or ROLLBACK as SQL: leave that to the block."
        )

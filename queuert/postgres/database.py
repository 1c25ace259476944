"""PostgreSQL: transactions, and what goes wrong with them. Its connections are in `postgres_connections.py`.

Our connections are in autocommit, so that a single statement needs no BEGIN and COMMIT; a user's pool is switched to
it while we hold one of its connections, and back. A read borrows a connection and leaves no transaction open.

What is retried, and when that is safe:

- An error before COMMIT was sent (a deadlock, a serialization failure, a lost connection): the server has rolled
  back, so the work runs again, at most `len(RETRY_PAUSES)` times.
- A connection lost while COMMIT, or a single statement, was under way: it may have succeeded. `recover` looks;
  without one the error is the caller's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar

# First, since it says what to install where psycopg is missing.
from queuert.postgres.session import Connection, PostgresSession, sync

# isort: split
import psycopg
from psycopg import pq, sql

from queuert.errors import TransactionRequiredError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.notify.protocol import Notifier
from queuert.postgres import errors, migrator
from queuert.postgres.block import PostgresBlock
from queuert.postgres.connections import CONNECT_TIMEOUT, POOL_TIMEOUT, Connections, check_url, jittered
from queuert.postgres.dialect import POSTGRES
from queuert.postgres.listener import PostgresNotifier
from queuert.postgres.repository import PostgresRepository
from queuert.postgres.transaction import Try
from queuert.storage import forks
from queuert.storage.loader import Script
from queuert.storage.names import TABLES, Names
from queuert.storage.protocol import Block, Database
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import Target, parse_target

T = TypeVar("T")

RETRY_PAUSES: Final = (0.02, 0.1, 0.3, 1.0)
_PAUSES: Final = (*RETRY_PAUSES, None)


class PostgresDatabase(Database):
    """A PostgreSQL database: a URL, for a pool of our own, or a user's `psycopg_pool.ConnectionPool`.

        database = PostgresDatabase("postgresql://localhost/shop")
        with database.block() as session: ...

    `pool_size` limits our own pool, `prepared_statements=False` is for PgBouncer in transaction mode, and `listen_url`
    gives LISTEN a connection that does not go through it.
    """

    dialect = POSTGRES
    loses_answers = True
    stores_nul = False

    def __init__(
        self,
        target: object,
        *,
        pool_size: int | None = None,
        prepared_statements: bool = True,
        listen_url: str | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        pool_timeout: float = POOL_TIMEOUT,
    ) -> None:
        super().__init__()
        self.target: Target = parse_target(target)
        if self.target.dialect != "postgres":
            raise UnsupportedDatabaseError(f"{self.target} is not a PostgreSQL database.")
        self._connections = Connections(
            self.target,
            pool_size=pool_size,
            prepared_statements=prepared_statements,
            connect_timeout=connect_timeout,
            pool_timeout=pool_timeout,
        )
        self._listen_url = _listen_url(listen_url)
        self._lent: dict[Connection, PostgresSession] = {}
        """The sessions of the blocks that are open, by connection."""
        forks.watch(self)

    def __repr__(self) -> str:
        return f"PostgresDatabase({str(self.target)!r})"

    def repository(self, names: Names) -> PostgresRepository:
        return PostgresRepository(names)

    def notifier(self, names: Names, *, seldom: bool = False) -> Notifier | None:
        return PostgresNotifier(self.open_listener, names.channel_prefix, sends=lambda: self.tells_other_processes)

    # Sessions

    @contextmanager
    def read(self) -> Iterator[PostgresSession]:
        self._refuse_inside_block()
        with self._borrow() as conn:
            try:
                yield PostgresSession(conn)
            except psycopg.Error as error:
                if errors.has_stale_statements(error):
                    conn.close()
                raise

    def run(
        self,
        work: Callable[[Any], T],
        *,
        recover: Callable[[Any], T | None] | None = None,
        single: bool = False,
    ) -> T:
        self._refuse_inside_block()
        hooks = Hooks()
        result = self._run(work, recover, hooks, single=single)
        hooks.flush()
        return result

    def _run(
        self,
        work: Callable[[Any], T],
        recover: Callable[[Any], T | None] | None,
        hooks: Hooks,
        *,
        single: bool = False,
        repeatable: bool = False,
    ) -> T:
        for pause in _PAUSES:
            attempt = Try(single, impatient=self._thread.impatient)
            try:
                with self._borrow() as conn:
                    return attempt.run(conn, work, hooks)
            except psycopg.Error as error:
                if attempt.lost and attempt.unknown and not repeatable:
                    if recover is None:
                        raise
                    time.sleep(jittered(RETRY_PAUSES[0]))
                    # The effects that the lost try collected stay collected: it may turn out that they are due.
                    found = self._run(recover, None, Hooks(), repeatable=True)
                    if found is not None:
                        return found
                hooks.discard()
                if pause is None or not (attempt.lost or error.sqlstate in errors.CONFLICTS):
                    raise
                time.sleep(jittered(pause))
            except BaseException:
                hooks.discard()
                raise
        raise AssertionError("the last try returns or raises")

    def block(self, *, shared: bool = False) -> Block:
        return PostgresBlock(self)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> PostgresSession:
        raw = unwrap(conn, reading=reading)
        if not isinstance(raw, psycopg.Connection):
            raise wrong_connection(conn, raw, "a psycopg.Connection")
        sync(raw)  # a pipeline may have BEGIN still under way
        status = raw.pgconn.transaction_status
        if status == pq.TransactionStatus.INERROR:
            raise TransactionRequiredError(
                "The transaction on this connection has failed, and PostgreSQL accepts no more in it: roll it back."
            )
        if status == pq.TransactionStatus.IDLE and raw.autocommit and not reading:
            raise TransactionRequiredError(
                "This connection is in autocommit with no transaction open, so the job would commit alone: "
                "call inside `with conn.transaction():`."
            )
        # The connection of a block of ours: its effects wait for the block's commit.
        return self._lent.get(raw) or PostgresSession(raw, hooks)

    def configure(self, conn: Any) -> None:
        """Nothing to set: a PostgreSQL connection is fine as it is."""
        raw = unwrap(conn, reading=True)
        if not isinstance(raw, psycopg.Connection):
            raise wrong_connection(conn, raw, "a psycopg.Connection")

    # Errors

    def trouble(self, error: BaseException) -> Trouble | None:
        return errors.trouble(error)

    def missing(self, error: BaseException) -> str | None:
        return errors.missing(error)

    # Maintenance

    def migrate(self, names: Names, known: list[Script]) -> list[str]:
        self._refuse_inside_block()
        with self.read() as session:
            if migrator.is_current(session, names, known):
                return []
        return migrator.migrate(self.open_listener, names, known)

    def vacuum(self, names: Names, *, full: bool = False, stop: threading.Event | None = None) -> bool:
        """VACUUM our tables, in a connection of its own."""
        self._refuse_inside_block()
        tables = [f"{names.prefix}{table}" for table in TABLES if table != "migration"]
        named = sql.SQL(", ").join(sql.Identifier(names.schema, table) for table in tables)
        options = sql.SQL("FULL, ANALYZE" if full else "ANALYZE")
        with self._borrow() as conn:
            conn.execute(sql.SQL("VACUUM ({}) {}").format(options, named))
        return True

    # Connections

    def close(self) -> None:
        self._connections.close()

    def reserve(self, connections: int) -> None:
        self._connections.resize(connections)

    def open_listener(self) -> Connection:
        """A connection of the caller's own, in autocommit, for LISTEN."""
        return self._connections.connect(self._listen_url)

    def keep_connection(self) -> None:
        self._connections.keep()

    def own_connection(self) -> None:
        self._connections.open_own()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._connections.deadlines.within(seconds)

    def cut_overdue(self) -> list[str]:
        return self._connections.deadlines.cut_overdue()

    def thread_ends(self) -> None:
        self._connections.thread_ends()

    def _borrow(self) -> AbstractContextManager[Connection]:
        return self._connections.borrow()

    def after_fork(self) -> Iterable[object]:
        return self._connections.after_fork()


def _listen_url(url: object) -> str | None:
    if url is None:
        return None
    target = parse_target(url)
    if target.url is None:
        raise UnsupportedDatabaseError(
            "listen_url must be the URL of the PostgreSQL server itself: postgresql://host/database."
        )
    check_url(target.url)
    return target.url

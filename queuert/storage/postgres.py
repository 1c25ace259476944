"""PostgreSQL: the pool, transactions, and what goes wrong with them.

Our connections are in autocommit, so that a single statement needs no BEGIN and COMMIT; a user's pool is switched to
it while we hold one of its connections, and back. A read borrows a connection and leaves no transaction open.

What is retried, and when that is safe:

- An error before COMMIT was sent (a deadlock, a serialization failure, a lost connection): the server has rolled
  back, so the work runs again, at most `len(RETRY_PAUSES)` times.
- A connection lost while COMMIT, or a single statement, was under way: it may have succeeded. `recover` looks;
  without one the error is the caller's.
- A connection that died in the pool is noticed before anything is sent on it: a healthy idle one has nothing to read.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar

# First, since it says what to install where psycopg is missing.
from queuert.storage.postgres_session import Connection, PostgresSession

# isort: split
import psycopg
import psycopg_pool
from psycopg import conninfo, pq, sql

from queuert.errors import DatabaseUnavailableError, TransactionRequiredError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.storage import forks
from queuert.storage.base import Database
from queuert.storage.postgres_block import Block
from queuert.storage.postgres_direct import OwnConnection, open_inside
from queuert.storage.postgres_transaction import Attempt
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import Target, parse_target, safe_url, scrub

T = TypeVar("T")

POOL_SIZE: Final = 10
OLDEST_SERVER: Final = 120_000
CONNECT_TIMEOUT: Final = 5.0
POOL_TIMEOUT: Final = 10.0
# The pool pauses longer and longer between its tries to connect, up to minutes after the server is back. So it gives up soon,
# and who still waits asks it again.
RECONNECT_TIMEOUT: Final = 3.0
ASK_AGAIN: Final = 2.0
RETRY_PAUSES: Final = (0.02, 0.1, 0.3, 1.0)
_PAUSES: Final = (*RETRY_PAUSES, None)

# A vanished client must not hold its row locks for hours, nor a vanished server its client: about a minute, both ways.
KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
TCP_USER_TIMEOUT: Final = 60_000
SERVER_SETTINGS: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": str(TCP_USER_TIMEOUT),
}

KEPT_FOR: Final = 1800.0
"""Seconds that a thread keeps one connection: servers collect caches for each."""
# What is planned once, and for tables of any size.
KEPT_SETTINGS: Final = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"
KEPT_RESET: Final = "RESET plan_cache_mode; RESET enable_seqscan; RESET jit"

# Deadlock, serialization failure: the server rolled back, and another try may go through.
_CONFLICTS: Final = frozenset(("40P01", "40001"))
# The server goes down, comes up, has no room, or the lock could not be had in time.
_OUTAGES: Final = frozenset(("57P01", "57P02", "57P03", "57P05", "53300", "53400", "55P03", "25P03"))


class PostgresDatabase(Database):
    """A PostgreSQL database: a URL, for a pool of our own, or a user's `psycopg_pool.ConnectionPool`.

        database = PostgresDatabase("postgresql://localhost/shop")
        with database.block() as session: ...

    `pool_size` limits our own pool, `prepared_statements=False` is for PgBouncer in transaction mode, and `listen_url`
    gives LISTEN a connection that does not go through it.
    """

    dialect = "postgres"

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
        if pool_size is not None and (isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1):
            raise ValueError(f"pool_size must be a whole number of at least 1, not {pool_size!r}.")
        self.pool_size = pool_size or POOL_SIZE
        self.prepared_statements = prepared_statements
        self.connect_timeout = connect_timeout
        self.pool_timeout = pool_timeout
        self._listen_url = parse_target(listen_url).url if listen_url is not None else None
        if self.target.url is not None:
            _check_url(self.target.url)
        self._reserved = 0
        self._lent: dict[Connection, PostgresSession] = {}
        """The sessions of the blocks that are open, by connection."""
        self._pool: Any = self.target.pool
        self._opening = threading.Lock()
        self._inherited = False
        self._block_hooks: weakref.WeakKeyDictionary[Connection, Hooks] = weakref.WeakKeyDictionary()
        self._keeping = threading.local()
        self._kept: set[_Kept] = set()
        forks.watch(self)

    def __repr__(self) -> str:
        return f"PostgresDatabase({str(self.target)!r})"

    # Sessions.

    @contextmanager
    def read(self) -> Iterator[PostgresSession]:
        self._refuse_inside_block()
        with self._borrow() as conn:
            yield PostgresSession(conn)

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
            attempt = Attempt(single)
            try:
                with self._borrow() as conn:
                    return attempt.run(conn, work, hooks)
            except psycopg.Error as error:
                if attempt.lost and attempt.unknown and not repeatable:
                    if recover is None:
                        raise
                    time.sleep(_jittered(RETRY_PAUSES[0]))
                    # The effects that the lost try collected stay collected: it may turn out that they are due.
                    found = self._run(recover, None, Hooks(), repeatable=True)
                    if found is not None:
                        return found
                hooks.discard()
                if pause is None or not (attempt.lost or error.sqlstate in _CONFLICTS):
                    raise
                time.sleep(_jittered(pause))
            except BaseException:
                hooks.discard()
                raise
        raise AssertionError("the last try returns or raises")

    def block(self, *, shared: bool = False) -> AbstractContextManager[PostgresSession]:
        return Block(self)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> PostgresSession:
        raw = unwrap(conn, reading=reading)
        if not isinstance(raw, psycopg.Connection):
            raise wrong_connection(conn, raw, "a psycopg.Connection")
        status = raw.pgconn.transaction_status
        if status == pq.TransactionStatus.INERROR:
            raise TransactionRequiredError(
                "The transaction on this connection has failed, and PostgreSQL accepts no more in it: roll it back."
            )
        # A pipeline may have BEGIN still under way: then psycopg knows of the transaction and the server does not yet.
        if status == pq.TransactionStatus.IDLE and raw.autocommit and not reading and not getattr(raw, "_num_transactions", 0):
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

    def is_transient(self, error: BaseException) -> bool:
        if isinstance(error, (DatabaseUnavailableError, psycopg_pool.PoolTimeout, psycopg_pool.TooManyRequests)):
            return True
        if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return False
        state = error.sqlstate
        return state is None or state in _CONFLICTS or state in _OUTAGES or state.startswith("08")

    def close(self) -> None:
        if self.target.pool is not None:
            return  # the user's own
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    # Capacity.

    def reserve(self, connections: int) -> None:
        """Make room in our own pool, for as long as a worker runs."""
        self._resize(connections)

    def release(self, connections: int) -> None:
        """Take the room back."""
        self._resize(-connections)

    def _resize(self, change: int) -> None:
        with self._opening:
            self._reserved = max(0, self._reserved + change)
            if self.target.pool is None and self._pool is not None:
                self._pool.resize(min_size=0, max_size=self.pool_size + self._reserved)

    # Maintenance, and connections for special uses.

    def vacuum(self, tables: Sequence[str], *, schema: str = "public", full: bool = False) -> None:
        """VACUUM these tables, in a connection of its own."""
        self._refuse_inside_block()
        names = sql.SQL(", ").join(sql.Identifier(schema, table) for table in tables)
        options = sql.SQL("FULL, ANALYZE" if full else "ANALYZE")
        with self._borrow() as conn:
            conn.execute(sql.SQL("VACUUM ({}) {}").format(options, names))

    def open_listener(self) -> Connection:
        """A connection of the caller's own, in autocommit, for LISTEN."""
        return self._connect(self._listen_url)

    # Connections.

    def keep_connection(self) -> None:
        if self.target.pool is None and self.prepared_statements:
            self._keeping.kept = kept = _Kept(self)
            self._kept.add(kept)

    def thread_ends(self) -> None:
        kept = getattr(self._keeping, "kept", None)
        if kept is not None:
            del self._keeping.kept
            self._kept.discard(kept)
            kept.drop()

    def _borrow(self) -> AbstractContextManager[Connection]:
        """A connection in autocommit with nothing open; broken ones are thrown away."""
        return getattr(self._keeping, "kept", None) or _Borrowed(self)

    def _take(self, pool: Any) -> Connection:
        deadline = time.monotonic() + self.pool_timeout
        patience = ASK_AGAIN if self.target.pool is None else self.pool_timeout
        while True:
            try:
                conn: Connection = pool.getconn(timeout=max(0.05, min(patience, deadline - time.monotonic())))
            except psycopg_pool.PoolClosed as error:
                if self.target.pool is None and pool is not self._pool:
                    raise DatabaseUnavailableError("The pool was closed while this call waited for a connection.") from None
                raise DatabaseUnavailableError(f"The pool is not open: {error}.") from None
            except psycopg_pool.TooManyRequests as error:
                raise DatabaseUnavailableError(f"The pool has no connection to give: {error}.") from error
            except psycopg_pool.PoolTimeout:
                if time.monotonic() < deadline:
                    continue
                raise self._why_timeout(pool) from None
            if _is_alive(conn) and _is_plain(conn):
                return conn
            conn.close()
            pool.putconn(conn)

    def _give_back(self, pool: Any, conn: Connection, autocommit: bool) -> None:
        try:
            # What user code has left open would be in the way of whoever gets it next.
            if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF or open_inside(conn):
                conn.close()
            if conn.pgconn.transaction_status != pq.TransactionStatus.IDLE and not conn.closed:
                conn.rollback()
            if conn.autocommit != autocommit and not conn.closed:
                conn.autocommit = autocommit
        except psycopg.Error:
            conn.close()
        pool.putconn(conn)

    def _ready_pool(self) -> Any:
        if self._inherited:
            raise DatabaseUnavailableError("This pool was opened by the process that forked this one: make a new one here.")
        pool = self._pool
        if pool is None:
            with self._opening:
                pool = self._pool
                if pool is None:
                    pool = self._pool = self._open_pool()
        return pool

    def _open_pool(self) -> Any:
        # The pool connects in the background and tells nobody why it cannot: connect once here, for the reason.
        with self._connect(None) as conn:
            if conn.info.server_version < OLDEST_SERVER:
                raise UnsupportedDatabaseError(
                    f"PostgreSQL {conn.info.server_version // 10_000} is too old: this library needs "
                    f"{OLDEST_SERVER // 10_000} or newer."
                )
        info, kwargs = self._connection_options(None)
        pool: psycopg_pool.ConnectionPool[Connection] = psycopg_pool.ConnectionPool(
            info,
            kwargs=kwargs,
            min_size=0,
            max_size=self.pool_size + self._reserved,
            timeout=self.pool_timeout,
            reconnect_timeout=RECONNECT_TIMEOUT,
            configure=_configure,
            connection_class=OwnConnection,
            name="queuert-pool",
            open=False,
        )
        if type(getattr(pool, "_pool", None)) is deque:
            pool._pool = _Stack()
        pool.open()
        _pools[pool] = os.getpid()
        return pool

    def _connect(self, url: str | None) -> Connection:
        info, kwargs = self._connection_options(url)
        deadline = time.monotonic() + self.connect_timeout
        while True:
            try:
                conn = psycopg.connect(info, **kwargs)
            except psycopg.Error as error:
                if error.sqlstate == "57P03" and time.monotonic() < deadline:  # it is starting up
                    time.sleep(_jittered(0.1))
                    continue
                # Without the driver's error behind it: some of them quote the whole URL.
                raise DatabaseUnavailableError(
                    f"{safe_url(info)} cannot be reached: {scrub(str(error), info).strip()}"
                ) from None
            _configure(conn)
            return conn

    def _connection_options(self, url: str | None) -> tuple[str, dict[str, Any]]:
        pool: Any = self.target.pool
        url = url or self.target.url
        if url is None:
            return _value(pool.conninfo), {**(_value(pool.kwargs) or {}), "autocommit": True}
        options: dict[str, Any] = {
            **KEEPALIVES,
            "tcp_user_timeout": TCP_USER_TIMEOUT,
            "connect_timeout": max(2, round(self.connect_timeout)),  # libpq takes 1 for 2
            "fallback_application_name": "queuert",
            "client_encoding": "UTF8",  # or psycopg reads text as bytes from a database without an encoding
        }
        for name in conninfo.conninfo_to_dict(url):
            options.pop(name, None)  # what the URL says wins
        options["autocommit"] = True
        if not self.prepared_statements:
            options["prepare_threshold"] = None
        return url, options

    def _why_timeout(self, pool: Any) -> DatabaseUnavailableError:
        """Why the pool gave no connection in time: the server does not answer, or all are in use."""
        try:
            self._connect(None).close()
        except DatabaseUnavailableError as reason:
            return reason
        return DatabaseUnavailableError(
            f"No connection became free within {self.pool_timeout:g} seconds: all {pool.max_size} of the pool are in "
            "use. Give it more with pool_size=, or end transactions sooner."
        )

    def after_fork(self) -> Iterable[object]:
        self._opening = threading.Lock()
        kept, self._kept, self._keeping = self._kept, set(), threading.local()
        pool = self._pool
        if pool is None:
            return kept
        if self.target.pool is None:
            self._pool = None
            return (pool, *kept)
        self._inherited = self._inherited or not pool.closed
        return ()


class _Stack(deque[Any]):
    """The idle connections of a pool, the one that was used last in front.

    psycopg_pool takes turns: after a burst a worker that has little to do would come to each of many connections for the
    first time, and the server would plan everything anew.
    """

    append = deque.appendleft


class _Borrowed:
    """A connection for a `with` block. Not a generator, which costs twice as much: every call comes through here."""

    __slots__ = ("_autocommit", "_conn", "_database", "_pid", "_pool")

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def __enter__(self) -> Connection:
        database = self._database
        self._pool = pool = database._ready_pool()
        self._conn = conn = database._take(pool)
        self._autocommit, self._pid = conn.autocommit, os.getpid()
        if not self._autocommit:
            try:
                conn.autocommit = True
            except BaseException:
                self._give_back()
                raise
        return conn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if os.getpid() == self._pid:  # a child that was forked inside the block leaves it to the parent
            self._database._give_back(self._pool, self._conn, self._autocommit)


class _Kept:
    """The connection that a thread of ours keeps, for as long as it is good. Entered again and again by that thread."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._borrowed: _Borrowed | None = None
        self._conn: OwnConnection
        self._threshold: int | None
        self._until = 0.0

    def __enter__(self) -> Connection:
        if self._borrowed is not None and not self._is_good():
            self.drop()
        if self._borrowed is None:
            borrowed = _Borrowed(self._database)
            conn = borrowed.__enter__()
            assert isinstance(conn, OwnConnection)
            self._conn, self._borrowed = conn, borrowed
            self._until, self._threshold = time.monotonic() + KEPT_FOR, self._conn.prepare_threshold
            self._conn.was_kept = True
            try:
                self._conn.execute(KEPT_SETTINGS)
            except BaseException:
                self.drop()
                raise
            self._conn.prepare_threshold = 0
        return self._conn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        conn = self._conn
        if conn.closed or conn.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self.drop()

    def _is_good(self) -> bool:
        borrowed = self._borrowed
        return (
            borrowed is not None
            and borrowed._pool is self._database._pool
            and time.monotonic() < self._until
            and _is_alive(self._conn)
        )

    def drop(self) -> None:
        """Give it back as it is. Who gets it next takes the settings off: a server that hangs does not hold up the end."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            self._conn.prepare_threshold = self._threshold
            borrowed.__exit__(None, None, None)


# Pools of our own that are open, and the processes that opened them.
_pools: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@atexit.register
def _close_pools() -> None:
    """A script that ends without close(): from Python 3.13 on its pool's threads would keep it for twenty seconds."""
    for pool, pid in list(_pools.items()):
        if pid == os.getpid():
            pool.close(timeout=1)


def _is_alive(conn: Connection) -> bool:
    """Whether an idle connection is still good, without a round trip: one that the server closed has an end to read."""
    if conn.closed:
        return False
    try:
        if not _readable(conn.pgconn.socket):
            return True
        conn.pgconn.consume_input()
        if _readable(conn.pgconn.socket):  # still: the end of the stream, or more than was read at once
            conn.pgconn.consume_input()
    except psycopg.Error:
        return False
    return conn.pgconn.status == pq.ConnStatus.OK


def _is_plain(conn: Connection) -> bool:
    """Whether a connection has the settings of any other; one that a thread had for itself gets them here."""
    if isinstance(conn, OwnConnection) and conn.was_kept:
        try:
            conn.execute(KEPT_RESET)
        except psycopg.Error:
            return False
        conn.was_kept = False
    return True


def _readable(descriptor: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _configure(conn: Connection) -> None:
    """Server-side settings of a new connection. Not through `options`: PgBouncer refuses those."""
    settings: Any = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SERVER_SETTINGS.items())
    with contextlib.suppress(psycopg.errors.DatabaseError):
        conn.execute("SELECT " + settings)
        if not conn.autocommit:
            conn.commit()
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # once, instead of around every block


def _check_url(url: str) -> None:
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise UnsupportedDatabaseError(f"{safe_url(url)!r} is not a PostgreSQL URL: {scrub(str(error), url).strip()}") from None


def _value(option: Any) -> Any:
    """An option of a pool, which may be a function that gives it."""
    return option() if callable(option) else option


def _jittered(pause: float) -> float:
    return pause * random.uniform(0.5, 1.5)

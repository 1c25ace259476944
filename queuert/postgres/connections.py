"""Connections to a PostgreSQL server: opened with our settings, pooled, lent to whoever needs one, and kept by some threads.

The pool is one of our own, or a user's `psycopg_pool.ConnectionPool`, whose connections are left as they were found. One
that died in a pool is noticed before anything is sent on it: a healthy idle connection has nothing to read.

`_opening` is the only lock here. It guards which pool there is, and is held while the first connection is made, so that all
who need one then wait for a single try, and get the reason if it fails.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

# First, since it says what to install where psycopg is missing.
from queuert.postgres.pool_log import POOL_NAME, quiet
from queuert.postgres.session import Connection

# isort: split
import psycopg
import psycopg_pool
from psycopg import conninfo, pq

from queuert.errors import DatabaseUnavailableError, UnsupportedDatabaseError
from queuert.postgres import settings
from queuert.postgres.connection import OwnConnection
from queuert.postgres.deadlines import Deadlines
from queuert.postgres.direct import DirectConnection
from queuert.postgres.lending import Borrowed, Kept, Own, is_alive, is_plain
from queuert.postgres.settings import TCP_USER_TIMEOUT
from queuert.postgres.stack import lend_last_used
from queuert.storage.urls import MASK, Target, safe_url, scrub

logger = logging.getLogger("queuert.postgres")

POOL_SIZE: Final = 10
OLDEST_SERVER: Final = 120_000
CONNECT_TIMEOUT: Final = 5.0
POOL_TIMEOUT: Final = 10.0
# The pool pauses longer and longer between its tries to connect, up to minutes after the server is back. So it gives up soon,
# and who still waits asks it again.
RECONNECT_TIMEOUT: Final = 3.0
ASK_AGAIN: Final = 2.0

# A vanished server must not hold up its client for hours: about a minute. `settings` has the other way.
KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class Connections:
    """The connections of one database. `pool_size` limits our own pool, which grows while workers run."""

    def __init__(
        self, target: Target, *, pool_size: int | None, prepared_statements: bool, connect_timeout: float, pool_timeout: float
    ) -> None:
        if pool_size is not None and (isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1):
            raise ValueError(f"pool_size must be a whole number of at least 1, not {pool_size!r}.")
        if target.url is not None:
            check_url(target.url)
        self._target = target
        self._pool_size = pool_size or POOL_SIZE
        self._prepared_statements = prepared_statements
        self._connect_timeout = connect_timeout
        self._pool_timeout = pool_timeout
        self._reserved = 0
        self.pool: Any = target.pool
        self._opening = threading.Lock()
        self._inherited = False
        self._keeping = threading.local()
        self._kept: set[Kept] = set()
        self.deadlines = Deadlines()

    def borrow(self) -> AbstractContextManager[Connection]:
        """A connection in autocommit with nothing open; broken ones are thrown away."""
        return getattr(self._keeping, "kept", None) or Borrowed(self)

    def keep(self) -> None:
        """This thread keeps the connection that it borrows next, until `thread_ends`."""
        if self._target.pool is None and self._prepared_statements:
            self._keeping.kept = kept = Kept(self)
            self._kept.add(kept)

    def open_own(self) -> None:
        """This thread has a connection of its own, outside of the pool, from now on until `thread_ends`."""
        self._keeping.kept = kept = Own(self)
        self._kept.add(kept)
        kept.open()

    def thread_ends(self) -> None:
        kept = getattr(self._keeping, "kept", None)
        if kept is not None:
            del self._keeping.kept
            self._kept.discard(kept)
            kept.drop()

    def resize(self, change: int) -> None:
        """Make room in our own pool, or take it back."""
        with self._opening:
            self._reserved = max(0, self._reserved + change)
            if self._target.pool is not None and change > 0:
                warn_if_small(self._target.pool.max_size, self._reserved)
            if self._target.pool is None and self.pool is not None:
                self.pool.resize(min_size=0, max_size=self._pool_size + self._reserved)

    def close(self) -> None:
        if self._target.pool is not None:
            return  # the user's own
        with self._opening:
            pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def after_fork(self) -> Iterable[object]:
        self._opening = threading.Lock()
        kept, self._kept, self._keeping = self._kept, set(), threading.local()
        pool = self.pool
        if pool is None:
            return kept
        if self._target.pool is None:
            self.pool = None
            return (pool, *kept)
        self._inherited = self._inherited or not pool.closed
        return ()

    def _take(self, pool: Any) -> Connection:
        deadline = time.monotonic() + self._pool_timeout
        patience = ASK_AGAIN if self._target.pool is None else self._pool_timeout
        while True:
            try:
                conn: Connection = pool.getconn(timeout=max(0.05, min(patience, deadline - time.monotonic())))
            except psycopg_pool.PoolClosed as error:
                if self._target.pool is None and pool is not self.pool:
                    raise DatabaseUnavailableError("The pool was closed while this call waited for a connection.") from None
                raise DatabaseUnavailableError(f"The pool is not open: {error}.") from None
            except psycopg_pool.TooManyRequests as error:
                raise DatabaseUnavailableError(f"The pool has no connection to give: {error}.") from error
            except psycopg_pool.PoolTimeout:
                if time.monotonic() < deadline:
                    continue
                raise self._why_timeout(pool) from None
            if is_alive(conn) and self.is_trusted(conn) and is_plain(conn):
                return conn
            conn.close()
            pool.putconn(conn)

    def is_trusted(self, conn: Connection) -> bool:
        """Whether a connection was made after the last one that carried nothing any more: the others may be like that too."""
        return not isinstance(conn, OwnConnection) or conn.made_at >= self.deadlines.distrusted_before

    def _give_back(self, pool: Any, conn: Connection, autocommit: bool) -> None:
        try:
            # What user code has left open would be in the way of whoever gets it next.
            if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF or (isinstance(conn, OwnConnection) and conn.open_inside):
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
        pool = self.pool
        if pool is None:
            with self._opening:
                pool = self.pool
                if pool is None:
                    pool = self.pool = self._open_pool()
        return pool

    def _open_pool(self) -> Any:
        # The pool connects in the background and tells nobody why it cannot: connect once here, for the reason.
        with self.connect() as conn:
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
            max_size=self._pool_size + self._reserved,
            timeout=self._pool_timeout,
            reconnect_timeout=RECONNECT_TIMEOUT,
            configure=self._configure,
            connection_class=DirectConnection,
            name=POOL_NAME,
            open=False,
        )
        quiet(DirectConnection)
        lend_last_used(pool)
        pool.open()
        _pools[pool] = os.getpid()
        return pool

    def connect(self, url: str | None = None) -> Connection:
        """A connection of the caller's own, in autocommit."""
        info, kwargs = self._connection_options(url)
        deadline = time.monotonic() + self._connect_timeout
        while True:
            try:
                conn = psycopg.connect(info, **kwargs)
            except psycopg.Error as error:
                if error.sqlstate == "57P03" and time.monotonic() < deadline:  # it is starting up
                    time.sleep(jittered(0.1))
                    continue
                # Without the driver's error behind it: some of them quote the whole URL.
                raise DatabaseUnavailableError(
                    f"{safe_url(info)} cannot be reached: {scrub(str(error), info).strip()}"
                ) from None
            self._configure(conn)
            return conn

    def _configure(self, conn: Connection) -> None:
        settings.configure(conn, session_lasts=self._prepared_statements)

    def _connection_options(self, url: str | None) -> tuple[str, dict[str, Any]]:
        pool: Any = self._target.pool
        url = url or self._target.url
        if url is None:
            return _value(pool.conninfo), {**(_value(pool.kwargs) or {}), "autocommit": True}
        options: dict[str, Any] = {
            **KEEPALIVES,
            "tcp_user_timeout": TCP_USER_TIMEOUT,
            "connect_timeout": max(2, round(self._connect_timeout)),  # libpq takes 1 for 2
            "fallback_application_name": "queuert",
            "client_encoding": "UTF8",  # or psycopg reads text as bytes from a database without an encoding
        }
        for name in conninfo.conninfo_to_dict(url):
            options.pop(name, None)  # what the URL says wins
        options["autocommit"] = True
        if not self._prepared_statements:
            options["prepare_threshold"] = None
        return url, options

    def _why_timeout(self, pool: Any) -> DatabaseUnavailableError:
        """Why the pool gave no connection in time: the server does not answer, or all are in use."""
        try:
            self.connect().close()
        except DatabaseUnavailableError as reason:
            return reason
        return DatabaseUnavailableError(
            f"No connection became free within {self._pool_timeout:g} seconds: all {pool.max_size} of the pool are in "
            "use. Give it more with pool_size=, or end transactions sooner."
        )


def warn_if_small(size: int | None, needed: int) -> None:
    """Say that a user's pool is smaller than what its workers may use at a time."""
    if size is not None and size < needed:
        logger.warning(
            "The pool has at most %d connections, and the workers of this process may use %d at a time: handlers will wait for "
            "one another. Give it a max_size of at least %d, or lower the concurrency.",
            size,
            needed,
            needed,
            extra={"event": "pool_too_small", "size": size, "needed": needed},
        )


# Pools of our own that are open, and the processes that opened them.
_pools: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@atexit.register
def _close_pools() -> None:
    """A script that ends without close(): from Python 3.13 on its pool's threads would keep it for twenty seconds."""
    for pool, pid in list(_pools.items()):
        if pid == os.getpid():
            pool.close(timeout=1)


def check_url(url: str) -> None:
    """Refuse what libpq cannot read. Nothing of it is repeated, not even what the driver quotes: it may be of a password."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        problem = re.sub(r'"[^"]*("|$)', MASK, str(error).strip(), flags=re.DOTALL)
        raise UnsupportedDatabaseError(
            f"This is not a PostgreSQL URL, such as postgresql://user:password@host/database: {problem}. "
            "Write special characters of a password in percent-encoding."
        ) from None


def _value(option: Any) -> Any:
    """An option of a pool, which may be a function that gives it."""
    return option() if callable(option) else option


def jittered(pause: float) -> float:
    return pause * random.uniform(0.5, 1.5)

"""How a connection is lent: for a `with` block, to a thread that keeps one of the pool, to a thread that has its own.

Who has which is noted, so that one that carries nothing any more can be cut (`deadlines.py`).
"""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from queuert.errors import DatabaseUnavailableError
from queuert.postgres.connection import OwnConnection
from queuert.postgres.settings import OUR_SEARCH_PATH

if TYPE_CHECKING:
    from queuert.postgres.connections import Connections

Connection = psycopg.Connection[Any]

KEPT_FOR: Final = 1800.0
"""Seconds that a thread keeps one connection: servers collect caches for each."""
# What is planned once, and for tables of any size.
KEPT_SETTINGS: Final = (
    f"SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off; SET search_path = {OUR_SEARCH_PATH}"
)
KEPT_RESET: Final = "RESET plan_cache_mode; RESET enable_seqscan; RESET jit; RESET search_path"


class Borrowed:
    """A connection for a `with` block. Not a generator, which costs twice as much: every call comes through here."""

    __slots__ = ("_autocommit", "_conn", "_connections", "_pid", "_pool")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> Connection:
        connections = self._connections
        self._pool = pool = connections._ready_pool()
        self._conn = conn = connections._take(pool)
        self._autocommit, self._pid = conn.autocommit, os.getpid()
        connections.deadlines.begin(conn)
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
        self._connections.deadlines.end(self._conn)
        if os.getpid() == self._pid:  # a child that was forked inside the block leaves it to the parent
            self._connections._give_back(self._pool, self._conn, self._autocommit)


class Kept:
    """The connection that a thread of ours keeps, for as long as it is good. Entered again and again by that thread."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._borrowed: Borrowed | None = None
        self._conn: OwnConnection
        self._threshold: int | None
        self._until = 0.0

    def __enter__(self) -> Connection:
        if self._borrowed is not None and not self._is_good():
            self.drop()
        if self._borrowed is None:
            borrowed = Borrowed(self._connections)
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
        self._connections.deadlines.begin(self._conn)
        return self._conn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        conn = self._conn
        self._connections.deadlines.end(conn)
        if conn.closed or conn.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self.drop()

    def _is_good(self) -> bool:
        borrowed = self._borrowed
        return (
            borrowed is not None
            and borrowed._pool is self._connections.pool
            and time.monotonic() < self._until
            and is_alive(self._conn)
            and self._connections.is_trusted(self._conn)
        )

    def drop(self) -> None:
        """Give it back as it is. The next borrower resets the settings: a server that hangs does not hold up the end."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            self._conn.prepare_threshold = self._threshold
            borrowed.__exit__(None, None, None)


class Own(Kept):
    """A connection of a thread's own, outside of the pool: whatever the others do with theirs, it need not wait for one."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._own: Connection | None = None

    def open(self) -> None:
        """Open it ahead of need; if that cannot be done now, it is done when it is needed."""
        with contextlib.suppress(DatabaseUnavailableError):
            self._own = self._connections.connect()

    def __enter__(self) -> Connection:
        deadlines = self._connections.deadlines
        if self._own is not None and not is_alive(self._own):
            self._own.close()
            self._own = None
        if self._own is None:
            self.open()
        if self._own is None:  # the server gives no more connections: maybe the pool has one
            self._borrowed = Borrowed(self._connections)
            return self._borrowed.__enter__()
        deadlines.begin(self._own)
        return self._own

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.__exit__(None, None, None)
            return
        if self._own is None:
            return
        self._connections.deadlines.end(self._own)
        if self._own.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self._own.close()

    def drop(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()


def is_alive(conn: Connection) -> bool:
    """Whether an idle connection is still good, without a round trip: one that the server closed has an end to read.

    By reading, which does not block, and not by poll(), which leaves Python's lock to others and has to wait to get it back.
    """
    if conn.closed:
        return False
    try:
        conn.pgconn.consume_input()  # maybe the server's last words
        conn.pgconn.consume_input()  # and the end behind them
    except psycopg.Error:
        return False
    return conn.pgconn.status == pq.ConnStatus.OK


def is_plain(conn: Connection) -> bool:
    """Whether a connection has the settings of any other; one that a thread had for itself gets them here."""
    if isinstance(conn, OwnConnection) and conn.was_kept:
        try:
            conn.execute(KEPT_RESET)
        except psycopg.Error:
            return False
        conn.was_kept = False
    return True

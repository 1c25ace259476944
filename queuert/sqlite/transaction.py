"""One write transaction on SQLite, from BEGIN to COMMIT, or to what went wrong. The write lock is held.

How it waits for other processes: it begins deferred and its first statement is a write, which waits for `busy_timeout`. It is
tried `BUSY_TRIES` times, so it gives up after about three times the busy timeout. A transaction that read first can find its
snapshot out of date (SQLITE_BUSY_SNAPSHOT); it starts again at once, on a new connection, since a cursor that somebody left
open would keep the old snapshot alive, and IMMEDIATE, or other processes that write all the time would make it fail again and
again. Blocks for user code begin so at once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from queuert.hooks import Hooks
from queuert.sqlite.connections import Connections
from queuert.sqlite.errors import is_busy, is_snapshot, raise_explained
from queuert.sqlite.guard import BEGIN, BEGIN_IMMEDIATE, COMMIT, ROLLBACK, GuardedConnection
from queuert.sqlite.session import SingleSession, SqliteSession

T = TypeVar("T")

logger = logging.getLogger("queuert.sqlite")

BUSY_TRIES = 3
SNAPSHOT_TRIES = 20


def transact(connections: Connections, work: Callable[[Any], T], hooks: Hooks, *, single: bool) -> T:
    """Run `work` in a transaction of its own, and again where that can help."""
    busy = snapshots = 0
    while True:
        conn = connections.writer()
        try:
            if single:
                return work(SingleSession(conn, hooks))
            conn.own(BEGIN_IMMEDIATE if busy or snapshots else BEGIN)
            result = work(SqliteSession(conn, hooks))
            conn.own(COMMIT)
            return result
        except BaseException as error:
            hooks.discard()
            roll_back(connections, conn)
            if not isinstance(error, sqlite3.OperationalError):
                raise
            if is_snapshot(error) and snapshots < SNAPSHOT_TRIES:
                snapshots += 1
                connections.discard(conn)
            elif is_busy(error) and busy < BUSY_TRIES - 1:
                busy += 1
                connections.discard_if_unsure(conn, error)
            else:
                raise_explained(error, connections.path, connections.busy_timeout)
        finally:
            connections.close_if_retired(conn)


def begin_immediate(connections: Connections) -> GuardedConnection:
    """The writer, with a transaction open that no other process can get in the way of."""
    tries = 0
    while True:
        tries += 1
        conn = connections.writer()
        try:
            conn.own(BEGIN_IMMEDIATE)
            return conn
        except sqlite3.OperationalError as error:
            if is_snapshot(error) and tries <= SNAPSHOT_TRIES:
                connections.discard(conn)
            elif is_busy(error) and tries < BUSY_TRIES:
                connections.discard_if_unsure(conn, error)
            else:
                raise_explained(error, connections.path, connections.busy_timeout)


def roll_back(connections: Connections, conn: GuardedConnection) -> None:
    if conn.in_transaction:
        try:
            conn.own(ROLLBACK)
        except sqlite3.Error:
            logger.exception("A rollback failed; the connection is replaced.")
            connections.discard(conn)

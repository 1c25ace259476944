"""Deadlines for statements of our own threads: a connection that carries nothing any more must not hold a thread for ever.

A proxy, a firewall or a frozen host can leave a connection open over which nothing comes back. The thread that waits for an
answer cannot help itself. So it says how long it is ready to wait (`within`), and somebody else, a worker's watchdog, cuts
what is overdue: the socket is shut down, which ends the wait with an error like that of any lost connection, and the server
is asked to give up the statement. A thread that was cut gets twice the time the next time, until something succeeds in time: a
server that is merely slow is not cut for ever.

No locks: the dictionaries are changed by the threads whose numbers are the keys, one item at a time.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import capabilities

CANCEL_WITHIN = 5.0
MOST_TIMES = 16

Connection = psycopg.Connection[Any]


class Deadlines:
    """Which thread uses which connection, and until when it is ready to wait."""

    def __init__(self) -> None:
        # Seconds for each use of a connection, by thread.
        self._allowed: dict[int, float] = {}
        self._in_use: dict[int, tuple[Connection, float]] = {}
        self._factor: dict[int, int] = {}
        # Connections that are older than this may be cut off too.
        self.distrusted_before = 0.0

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Each use of a connection by this thread in here is cut after so many seconds."""
        thread = threading.get_ident()
        self._allowed[thread] = seconds
        try:
            yield
        finally:
            self._allowed.pop(thread, None)

    def begin(self, conn: Connection) -> None:
        """This thread uses a connection from now on. Nothing is noted of those that wait for as long as it takes."""
        thread = threading.get_ident()
        allowed = self._allowed.get(thread)
        if allowed is not None:
            self._in_use[thread] = conn, time.monotonic() + allowed * self._factor.get(thread, 1)

    def end(self, conn: Connection) -> None:
        thread = threading.get_ident()
        used = self._in_use.get(thread)
        if used is not None and used[0] is conn:
            del self._in_use[thread]
            if time.monotonic() < used[1]:
                self._factor.pop(thread, None)

    def cut_overdue(self) -> list[str]:
        """Cut the connections of those who wait for too long; the names of these threads."""
        now = time.monotonic()
        overdue = [(thread, conn) for thread, (conn, until) in list(self._in_use.items()) if until <= now]
        return [self._cut(thread, conn, now) for thread, conn in overdue if not conn.closed]

    def _cut(self, thread: int, conn: Connection, now: float) -> str:
        self._in_use.pop(thread, None)
        self._factor[thread] = min(self._factor.get(thread, 1) * 2, MOST_TIMES)
        self.distrusted_before = now
        if capabilities.has_cancel_safe():  # the older way holds Python's lock while it waits
            threading.Thread(target=_cancel, args=(conn,), name="queuert-cancel", daemon=True).start()
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)
        return next((each.name for each in threading.enumerate() if each.ident == thread), str(thread))


def _cancel(conn: Connection) -> None:
    """Have the server give up the statement, and its locks. In a thread of its own: it connects to the server."""
    with suppress(Exception):
        conn.cancel_safe(timeout=CANCEL_WITHIN)

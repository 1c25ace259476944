"""A PostgreSQL connection that one thread waits on, with a deadline, while others may wake it.

While that thread only waits, in `select`, another may `begin` a statement; who does so when is for the caller to order.

`Connection.execute` waits for an answer for as long as the socket lives, and a socket whose other end was cut off
without a word lives for hours. So this talks to libpq without blocking, as psycopg itself does, but waits for the
socket, the waker and the clock together.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, PGnotify

SETTINGS = b"SET client_encoding = 'UTF8'; SET synchronous_commit = off;"
"""A notice is not worth a wait for the disk: the crash that loses it takes the listeners' connections along."""

Connect = Callable[[], "psycopg.Connection[Any]"]
Deadline = Callable[[], float]
"""When to give up, on the monotonic clock; asked again after each wake-up, since a stop brings it forward."""
Ready = list[tuple[selectors.SelectorKey, int]]


class Waker:
    """Ends another thread's wait on a selector."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        with suppress(OSError):  # Full: it is awake already. Closed: nobody waits any more.
            self._writer.send(b"w")

    def clear(self) -> None:
        self.wait(0)

    def wait(self, seconds: float) -> None:
        """Until it is used, or the time is over."""
        with suppress(OSError):
            self._reader.settimeout(max(0.0, seconds))
            self._reader.recv(4096)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Link:
    """A connection for one thread. Any error leaves it fit only to be closed."""

    def __init__(self, connect: Connect, waker: Waker, *, setup: bytes = b"", deadline: Deadline) -> None:
        self._conn = connect()
        _open_links.add(self)
        self._pg = self._conn.pgconn
        self.backend_pid: int = self._pg.backend_pid
        self._waker = waker
        self._selector = selectors.DefaultSelector()
        try:
            self._selector.register(self._pg.socket, selectors.EVENT_READ)
            self._selector.register(waker, selectors.EVENT_READ)
            self.execute(SETTINGS + setup, deadline=deadline)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> None:
        """Until the server sent something, the waker was used, or the time is over. Raises if the server is gone."""
        self.receive(self.select(seconds))

    def select(self, seconds: float) -> Ready:
        """The waiting alone, during which another thread may `begin` a statement."""
        return self._selector.select(max(0.0, seconds))

    def receive(self, ready: Ready) -> None:
        """Take what has come."""
        for key, _ in ready:
            if key.fileobj is self._waker:
                self._waker.clear()
            else:
                self._pg.consume_input()

    def notifications(self) -> Iterator[PGnotify]:
        """What has arrived since the last call."""
        while (notification := self._pg.notifies()) is not None:
            yield notification

    def execute(self, sql: bytes, params: Sequence[bytes] | None = None, *, deadline: Deadline) -> None:
        """Run one statement, or several without parameters."""
        if params is None:
            self._pg.send_query(sql)
        else:
            self._pg.send_query_params(sql, params)
        self.finish(deadline=deadline)

    def begin(self, sql: bytes, params: Sequence[bytes]) -> None:
        """Send one statement, and leave its answer to `finish`."""
        self._pg.send_query_params(sql, params)
        if self._pg.flush():  # not all of it could be sent: who waits has to go on with it
            self._waker.wake()

    def finish(self, *, deadline: Deadline) -> None:
        """Wait for the answer."""
        while self._unfinished():
            seconds = deadline() - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("PostgreSQL did not answer in time")
            self.wait(seconds)

    def _unfinished(self) -> bool:
        if self._pg.flush():
            self._selector.modify(self._pg.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return True
        self._selector.modify(self._pg.socket, selectors.EVENT_READ)
        while not self._pg.is_busy():
            result = self._pg.get_result()
            if result is None:
                return False
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                raise psycopg.OperationalError(result.error_message.decode("utf-8", "replace"))
        return True

    def close(self) -> None:
        self._selector.close()
        self._conn.close()
        _open_links.discard(self)


# A forked child keeps its parent's links alive through this, and never says goodbye to the server in the parent's name.
_open_links: set[Link] = set()

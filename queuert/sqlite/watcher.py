"""Notices between the processes that share an SQLite file.

SQLite tells nobody of a commit, but `PRAGMA data_version` differs after any other connection has committed, and asking
for it costs a few microseconds. It does not say what changed, so a change is delivered as "anything may have". Commits
of this process count too: they wake its subscribers a second time, at most once a poll.

Fifty times a second, even microseconds add up. So most polls only look at the times of the write-ahead log, which every
commit writes to, and ask SQLite when those changed, for a while after that, and every second anyway. Nobody may open
the log or its index to read more: closing such a handle would drop the locks of this process's connections.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable

from queuert.notify.in_process import Deliver, InProcessNotifier
from queuert.notify.protocol import ANYTHING
from queuert.notify.watcher import Watcher

POLL = 0.02  # idle: 0.4 % of a core where a bare sleep(0.02) costs 0.25 %; 0.65 % without the times of the log
SELDOM = 0.25
"""Seconds between polls where another notifier carries what we tell."""
GRAIN = 2.0
"""Seconds in which a file system may give two writes the same time."""
LOOK_ANYWAY = 1.0
"""Seconds after which the times are not trusted, and the file's name is checked to lead to the file that is open."""


class SqliteFileNotifier(InProcessNotifier):
    """Tells this process at once, and other processes within `poll` seconds of the commit.

    `open_watcher` opens a connection to the file that nobody else uses, with `check_same_thread=False`: a fork closes it
    in another thread. While there is no file it raises, and does not create one. `watches` is asked whether there is a
    file to watch at all.
    """

    def __init__(
        self,
        open_watcher: Callable[[], sqlite3.Connection],
        poll: float = POLL,
        *,
        watches: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._open_watcher = open_watcher
        self._poll = poll
        self._watches = watches

    def _make_watcher(self, deliver: Deliver) -> Watcher | None:
        return _FileWatcher(self._open_watcher, deliver, self._poll) if self._watches() else None


class _FileWatcher(Watcher):
    source = "other processes on the SQLite file"
    longest_pause = 1.0

    def __init__(self, open_watcher: Callable[[], sqlite3.Connection], deliver: Deliver, poll: float) -> None:
        super().__init__("queuert-notify-sqlite")
        self.first_pause = poll
        self._open = open_watcher
        self._deliver = deliver
        self._poll = poll
        self._conn: sqlite3.Connection | None = None
        # Opened to end a wait. An Event would do, and costs a fifth of the whole poll more.
        self._gate = threading.Lock()
        self._gate.acquire()
        _watchers.add(self)

    def interrupt(self) -> None:
        if self._gate.locked():
            self._gate.release()

    def describe(self, error: Exception) -> str:
        return f"{type(error).__name__}: {error}"

    def watch(self) -> None:
        version = None
        try:
            with _no_fork:
                self._conn = conn = self._open()
                # A poll that finds the file locked comes back at the next one; to wait would delay stop() and fork().
                conn.execute("PRAGMA busy_timeout = 0").fetchall()
                file = _File(_path(conn))
            while not self.stopping.is_set():
                if file.may_have_changed():
                    with _no_fork:
                        if self.has_let_go:
                            return
                        seen = _data_version(conn)
                    if seen is not None and seen != version:
                        if version is None:
                            self.works()
                        version = seen
                        # At first, too: a commit between the subscription and now would be missed otherwise.
                        self._deliver(ANYTHING)
                self._gate.acquire(timeout=self._poll)
        finally:
            with _no_fork:
                self.let_go()

    @property
    def has_let_go(self) -> bool:
        return self._conn is None

    def let_go(self) -> None:
        """Close the connection; the next poll opens another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()


# A child must not inherit an open SQLite file: it would take its parent's locks for its own, and cannot close the file
# without harm. So the fork waits until no watcher is inside SQLite, and each lets go of its connection.
_no_fork = threading.Lock()
_watchers: weakref.WeakSet[_FileWatcher] = weakref.WeakSet()


def _before_fork() -> None:
    _no_fork.acquire()
    for watcher in list(_watchers):
        watcher.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_no_fork.release, after_in_child=_no_fork.release)


class _File:
    """The database file and its write-ahead log, from outside."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._log_path = path + "-wal"
        self._log: os.stat_result | None = None
        self._identity = _identity(path)
        self._ask_until = 0.0
        self._look_at = 0.0

    def may_have_changed(self) -> bool:
        """Whether to ask SQLite. Raises FileNotFoundError if this is not the file any more that was opened."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_ANYWAY
            if _identity(self._path) != self._identity:
                raise FileNotFoundError(f"{self._path} was replaced")
            return True
        try:
            log = os.stat(self._log_path)
        except OSError:
            return True
        if self._log is None or (log.st_mtime_ns, log.st_size) != (self._log.st_mtime_ns, self._log.st_size):
            self._log = log
            self._ask_until = now + GRAIN
        return now < self._ask_until


def _data_version(conn: sqlite3.Connection) -> int | None:
    """The number that changes with each commit of others, or None while the file is locked."""
    try:
        # fetchall ends the statement, and with it the read lock.
        return int(conn.execute("PRAGMA data_version").fetchall()[0][0])
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return None
        raise


def _path(conn: sqlite3.Connection) -> str:
    return str(next(row[2] for row in conn.execute("PRAGMA database_list").fetchall() if row[1] == "main"))


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino

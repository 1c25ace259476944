"""The connections of this process to one SQLite database: opened when they are needed, kept, and closed.

A file has one writer, for whoever holds the write lock, and a few readers that are lent out. A `:memory:` database is one
connection for everything.

Who closes what: a connection that is in use is closed by its user. `retire()` only makes sure that nobody gets it again.

A fork. SQLite keeps its locks in tables of the process. A child that inherits an open file takes the locks for its own and has
none of them: its parent's last close would delete the WAL that the child writes to. So the parent closes what it can before,
and a file that was open all the same is not touched by the child.

Two locks are here, both taken after the database's read/write lock, in this order: `statements`, by which those who read from
one connection take turns; `_mutex`, which guards the lists of connections and is never held while a database is waited for.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from queuert.errors import DatabaseUnavailableError
from queuert.sqlite.files import OpenFile
from queuert.sqlite.guard import ROLLBACK, GuardedConnection
from queuert.sqlite.opening import Conn, Synchronous, connect
from queuert.storage.urls import MEMORY

IDLE_READERS = 8
FORK_PATIENCE = 5.0  # seconds that a fork waits for this process's transactions


class Connections:
    """What is open, and what is in use."""

    def __init__(self, path: str, *, synchronous: Synchronous, busy_timeout: float) -> None:
        self.path = path
        self.busy_timeout = busy_timeout
        self.statements = threading.Lock()
        self.opened: set[sqlite3.Connection] = set()
        self._in_memory = path == MEMORY
        self._synchronous: Synchronous = synchronous
        self._mutex = threading.Lock()
        self._writer: GuardedConnection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._borrowed = 0
        """Readers in use."""
        self._readers_change = threading.Condition(self._mutex)
        self._generation = 0
        """How often all of them were retired."""
        self._forking = False
        self._orphaned = False
        self._file = OpenFile(path)

    # The writer.

    def writer(self) -> GuardedConnection:
        """The write lock is held."""
        writer = self._writer
        if not self._in_memory and self._file.was_replaced() and not (writer is not None and writer.in_transaction):
            self._reopen()
            writer = None
        if writer is None:
            writer = self._open(GuardedConnection, writes=True)
            with self._mutex:
                self._writer = writer
        return writer

    def shared(self) -> GuardedConnection:
        """The connection of an in-memory database; the read lock is held, by others too."""
        with self.statements:
            return self.writer()

    def discard(self, conn: GuardedConnection) -> None:
        """Give up a writer that cannot be used any more. The next use opens another."""
        if self._in_memory:
            return
        with self._mutex:
            if self._writer is conn:
                self._writer = None
        self.close(conn)

    def discard_if_unsure(self, conn: GuardedConnection, error: sqlite3.OperationalError) -> None:
        """Python 3.10 does not tell whether it was the snapshot."""
        if not hasattr(error, "sqlite_errorcode"):
            self.discard(conn)

    def close_if_retired(self, conn: GuardedConnection) -> None:
        """`retire()` was called while the writer was in use."""
        if conn is not self._writer and conn in self.opened:
            self.close(conn)

    # Readers.

    def borrow_reader(self) -> tuple[sqlite3.Connection, int]:
        """A reader, and the generation that it is given back with."""
        if self._file.was_replaced():
            with self._mutex:
                idle, self._idle = self._idle, []
            for conn in idle:
                self.close(conn)
        with self._mutex:
            while self._forking:
                self._readers_change.wait()
            self._borrowed += 1
            generation = self._generation
            if self._idle:
                return self._idle.pop(), generation
        try:
            return self._open(sqlite3.Connection, writes=False), generation
        except BaseException:
            self._reader_left()
            raise

    def give_back(self, conn: sqlite3.Connection, generation: int) -> None:
        if conn not in self.opened:
            return  # a child that forked in here
        try:
            if conn.in_transaction:
                conn.execute(ROLLBACK)
            with self._mutex:
                keep = generation == self._generation and len(self._idle) < IDLE_READERS
                if keep:
                    self._idle.append(conn)
        except sqlite3.Error:
            keep = False
        if not keep:
            self.close(conn)
        self._reader_left()

    def _reader_left(self) -> None:
        with self._mutex:
            self._borrowed -= 1
            if self._forking:
                self._readers_change.notify_all()

    # Opening and closing.

    def _open(self, factory: type[Conn], *, writes: bool) -> Conn:
        if self._orphaned:
            raise DatabaseUnavailableError(
                "This in-memory database belongs to the process that forked this one: use a file to share it."
            )
        self._file.check_there()
        conn = open_connection(self.path, factory, writes=writes, synchronous=self._synchronous, busy_timeout=self.busy_timeout)
        self.opened.add(conn)
        self._file.was_opened()
        return conn

    def _reopen(self) -> None:
        """The name leads to another file: what is open belongs to the old one. SQLite leaves the new one's log alone then."""
        writer = self.retire()
        if writer is not None:
            self.close(writer)
        self._file.forget()

    def close(self, conn: sqlite3.Connection) -> None:
        self.opened.discard(conn)
        with suppress(sqlite3.Error):
            conn.close()

    def drop(self, conn: sqlite3.Connection) -> None:
        """Several may be using it: it closes when the last of them drops it."""
        self.opened.discard(conn)

    def retire(self) -> GuardedConnection | None:
        """Close the readers that nobody uses; the others, and the writer that is returned, are not used again."""
        with self._mutex:
            idle, self._idle = self._idle, []
            writer, self._writer = self._writer, None
            self._generation += 1
        for conn in idle:
            self.close(conn)
        return writer

    # Forks.

    def before_fork(self, deadline: float) -> GuardedConnection | None:
        """Lend no readers, wait for those in use, and close them; returns the writer, which is the lock's holder's to close."""
        with self._mutex:
            self._forking = True
            self._readers_change.wait_for(lambda: not self._borrowed, max(0.0, deadline - time.monotonic()))
            idle, self._idle = self._idle, []
            writer = self._writer
        for conn in idle:
            self.close(conn)
        return writer

    def forked(self) -> None:
        """The fork is over: lend readers again."""
        if self._forking:
            with self._mutex:
                self._forking = False
                self._readers_change.notify_all()

    def after_fork(self) -> Iterable[object]:
        """In the child: forget them all; returns what must never be closed."""
        inherited = [*self.opened]
        if self._writer is not None:
            self._writer.session = None
            self._orphaned = self._in_memory
        if inherited and not self._in_memory:
            leave_open(self.path)
        self.statements = threading.Lock()
        self._mutex = threading.Lock()
        self._readers_change = threading.Condition(self._mutex)
        self._writer = None
        self._idle = []
        self.opened = set()
        self._borrowed = 0
        self._forking = False
        return inherited


def open_connection(path: str, factory: type[Conn], *, writes: bool, synchronous: Synchronous, busy_timeout: float) -> Conn:
    """A connection that is the caller's to close."""
    if was_left_open(path):
        raise DatabaseUnavailableError(
            f"{path} was in use by the process that forked this one, inside a transaction: SQLite cannot work here. "
            "Fork outside of transactions, or start processes with the spawn method; under uWSGI set "
            "py-call-uwsgi-fork-hooks = true."
        )
    return connect(path, factory, writes=writes, synchronous=synchronous, busy_timeout=busy_timeout)


_left_open: set[str] = set()
"""Files that this process inherited open, and must not touch."""


def leave_open(path: str) -> None:
    """In a child: this file was inherited open."""
    _left_open.add(os.path.realpath(path))


def was_left_open(path: str) -> bool:
    return bool(_left_open) and os.path.realpath(path) in _left_open

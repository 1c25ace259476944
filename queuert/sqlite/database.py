"""SQLite: the ways to open a session on one database, and its maintenance.

A file has one writer connection, shared by the process, and a few readers (`sqlite_connections.py`). The writer is guarded by
the write side of a fair lock, so that this process's writers queue instead of spinning on SQLITE_BUSY; `busy_timeout` is for
other processes (`sqlite_transaction.py`). Readers have their own snapshot (WAL) and take no lock. A `:memory:` database is one
connection for everything, and its readers take the read side.

Transactions that follow one another closely share a COMMIT (`group_commit.py`).

The read/write lock is taken here, and always before the locks of the connections. After-commit effects run with none held.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from queuert.hooks import Hooks
from queuert.options import Duration
from queuert.sqlite.base import SqliteBase
from queuert.sqlite.block import SqliteBlock
from queuert.sqlite.connections import FORK_PATIENCE, Connections
from queuert.sqlite.group_commit import Group, GroupCommit
from queuert.sqlite.guard import BEGIN, COMMIT, GuardedConnection
from queuert.sqlite.opening import (
    Synchronous,
)
from queuert.sqlite.rwlock import RWLock
from queuert.sqlite.session import SqliteSession
from queuert.storage import forks
from queuert.storage.protocol import Block
from queuert.storage.unwrap import unwrap

T = TypeVar("T")

logger = logging.getLogger("queuert.sqlite")

YIELD_TO_WRITERS = 0.00005
"""Seconds that leave Python's lock to the thread that was just given the write lock: it is soon in SQLite, and we go on."""
CHECKPOINT_TRIES = 3  # a reader may be in the way
CHECKPOINT_PAUSE = 0.2
CHECKPOINT_WAIT = 0.2  # seconds that a truncating checkpoint waits for readers while this process's writers queue


class SqliteDatabase(SqliteBase):
    """A SQLite file, or `:memory:`.

        database = SqliteDatabase("shop.db")
        with database.block() as session: ...

    `synchronous` is SQLite's (`full` survives a power cut, `normal` may lose the last commits in one), `busy_timeout`
    how many seconds to wait for another process's transaction, `check_foreign_keys` whether joined connections are
    checked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        busy_timeout: Duration = 10.0,
        check_foreign_keys: bool = True,
    ) -> None:
        super().__init__(path, synchronous=synchronous, busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys)
        self._lock_is_forks = False
        self._connections = Connections(self.path, synchronous=synchronous, busy_timeout=self.busy_timeout)
        self._group_commit = GroupCommit(self._connections)
        # Where a commit does not wait for the disk, there is nothing to share.
        self._shares = not self.in_memory and synchronous in ("full", "extra")
        forks.watch(self)

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path!r})"

    # Sessions

    @contextmanager
    def read(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        if self.in_memory:
            with self._locked(writes=False):
                yield SqliteSession(self._connections.shared(), mutex=self._connections.statements)
            return
        conn, generation = self._connections.borrow_reader()
        try:
            # One snapshot for all that is read here; it starts with the first query and costs two statements of no I/O.
            conn.execute(BEGIN)
            yield SqliteSession(conn)
            conn.execute(COMMIT)
        finally:
            self._connections.give_back(conn, generation)

    def run(
        self,
        work: Callable[[Any], T],
        *,
        recover: Callable[[Any], T | None] | None = None,
        single: bool = False,
    ) -> T:
        # Answers of SQLite do not get lost, so there is nothing to recover.
        self._refuse_inside_block()
        hooks = Hooks()
        with self._locked(writes=True):
            result = self._group_commit.transact(work, hooks, single=single)
            awaited = self._lock.waiting_writers
        if awaited:
            time.sleep(YIELD_TO_WRITERS)
        hooks.flush()
        return result

    def block(self, *, shared: bool = False) -> Block:
        return SqliteBlock(self, shared=shared and self._shares)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> SqliteSession:
        raw = unwrap(conn, reading=reading)
        if isinstance(raw, GuardedConnection):  # of a block of ours
            raw.check_open()
            assert raw.session is not None
            return raw.session
        return super().join(raw if isinstance(raw, sqlite3.Connection) else conn, reading=reading, hooks=hooks)

    def close(self) -> None:
        writer = self._connections.retire()
        if writer is None:
            return
        try:
            self._lock.acquire_write(timeout=0)
        except (TimeoutError, RuntimeError):
            if self.in_memory:
                self._connections.drop(writer)
            return  # in use: whoever uses it closes it
        try:
            self._group_commit.commit_for_members()
            self._connections.close(writer)
        finally:
            self._lock.release_write()

    @contextmanager
    def _maintenance(self) -> Iterator[GuardedConnection]:
        """The writer, in its turn and with nothing open."""
        with self._locked(writes=True):
            self._group_commit.commit_for_members()
            conn = self._connections.writer()
            try:
                yield conn
            except sqlite3.OperationalError as error:
                self._raise(error)
            finally:
                self._connections.close_if_retired(conn)

    # Whose turn it is.

    def _enter_group(self, *, shared: bool) -> Group:
        """Wait for our turn, and join the transaction that was handed over, or begin one. Who does not share is alone."""
        self._lock.acquire_write()
        try:
            return self._group_commit.enter(shared=shared)
        except BaseException:
            self._lock.release_write()
            raise

    def _leave_group(self, group: Group, error: BaseException | None = None, *, shared: bool) -> None:
        """Our work is done, or undone: hand the transaction over or end it."""
        try:
            if not self._group_commit.leave(group, error):
                return
            if shared and group.members and self._lock.waiting_writers and not group.full:
                return  # whoever is next goes on in it
            if error is None:
                self._group_commit.commit()
            else:
                self._group_commit.commit_for_members()
        finally:
            self._lock.release_write()

    def _await_group(self, group: Group) -> None:
        """Return when what we did is on the disk."""
        while not group.wait():
            self._lock.acquire_write()
            try:
                if self._group_commit.is_open(group):
                    self._group_commit.commit_for_members()
            finally:
                self._lock.release_write()

    # Forks.

    def before_fork(self) -> None:
        """Wait until nobody is in a transaction, and close everything; `forked()` lets the others go on."""
        if self.in_memory:
            return
        deadline = time.monotonic() + FORK_PATIENCE
        with suppress(TimeoutError, RuntimeError):  # somebody's long block, or one that this thread is in itself
            self._lock.acquire_write(FORK_PATIENCE)
            self._lock_is_forks = True
        writer = self._connections.before_fork(deadline)
        if writer is not None and self._lock_is_forks:
            self._group_commit.commit_for_members()
            self._connections.discard(writer)

    def forked(self) -> None:
        """The fork is over."""
        self._connections.forked()
        if self._lock_is_forks:
            self._lock_is_forks = False
            self._lock.release_write()

    def after_fork(self) -> Iterable[object]:
        inherited = self._connections.after_fork()
        self._group_commit.forget()
        self._lock = RWLock()
        self._lock_is_forks = False
        return inherited

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
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from queuert.errors import ForeignKeysDisabledError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.options import Duration, seconds
from queuert.sqlite.block import Block
from queuert.sqlite.connections import Connections, open_connection
from queuert.sqlite.errors import is_transient, raise_explained
from queuert.sqlite.group_commit import Group, GroupCommit
from queuert.sqlite.guard import BEGIN, COMMIT, GuardedConnection
from queuert.sqlite.opening import (
    Synchronous,
    implicit_begin,
    outside_transaction,
    pragma,
    run_pragma,
    switch_to_wal,
)
from queuert.sqlite.rwlock import RWLock
from queuert.sqlite.session import JoinedSession, SqliteSession
from queuert.sqlite.vacuum import vacuum_in_steps
from queuert.storage import forks
from queuert.storage.protocol import Database
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import MEMORY, absolute

T = TypeVar("T")

logger = logging.getLogger("queuert.sqlite")

FORK_PATIENCE = 5.0  # seconds that a fork waits for this process's transactions
AFTER_YOU = 0.00005
"""Seconds that leave Python's lock to the thread that was just given the write lock: it is soon in SQLite, and we go on."""
CHECKPOINT_WAIT = 0.2  # seconds that a truncating checkpoint waits for readers while this process's writers queue


class SqliteDatabase(Database):
    """A SQLite file, or `:memory:`.

        database = SqliteDatabase("shop.db")
        with database.block() as session: ...

    `synchronous` is SQLite's (`full` survives a power cut, `normal` may lose the last commits in one), `busy_timeout`
    how many seconds to wait for another process's transaction, `check_foreign_keys` whether joined connections are
    checked.
    """

    dialect = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        busy_timeout: Duration = 10.0,
        check_foreign_keys: bool = True,
    ) -> None:
        super().__init__()
        if synchronous not in ("off", "normal", "full", "extra"):
            raise ValueError(f"synchronous must be 'off', 'normal', 'full' or 'extra', not {synchronous!r}.")
        self.path = absolute(os.fspath(path))
        self.in_memory = self.path == MEMORY
        self.synchronous: Synchronous = synchronous
        self.busy_timeout = seconds(busy_timeout, "busy_timeout")
        self.check_foreign_keys = check_foreign_keys
        self._lock = RWLock()
        self._lock_is_forks = False
        self._connections = Connections(self.path, synchronous=synchronous, busy_timeout=self.busy_timeout)
        self._group_commit = GroupCommit(self._connections)
        # Where a commit does not wait for the disk, there is nothing to share.
        self._shares = not self.in_memory and synchronous in ("full", "extra")
        forks.watch(self)

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path!r})"

    # Sessions.

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
            time.sleep(AFTER_YOU)
        hooks.flush()
        return result

    def block(self, *, shared: bool = False) -> AbstractContextManager[SqliteSession]:
        return Block(self, shared=shared and self._shares)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> SqliteSession:
        raw = unwrap(conn, reading=reading)
        if isinstance(raw, GuardedConnection):
            raw.check_open()
            assert raw.session is not None
            return raw.session
        if not isinstance(raw, sqlite3.Connection):
            raise wrong_connection(conn, raw, "a sqlite3.Connection")
        begin = None
        if not reading:
            if not raw.in_transaction:
                begin = implicit_begin(raw)
            if self.check_foreign_keys and not pragma(raw, "foreign_keys"):
                raise ForeignKeysDisabledError
        return JoinedSession(raw, hooks, begin=begin)

    def configure(self, conn: Any) -> None:
        raw = unwrap(conn, reading=True)
        if isinstance(raw, GuardedConnection):
            return
        if not isinstance(raw, sqlite3.Connection):
            raise wrong_connection(conn, raw, "a sqlite3.Connection")
        with outside_transaction(raw):
            run_pragma(raw, f"busy_timeout = {int(self.busy_timeout * 1000)}")
            run_pragma(raw, "foreign_keys = ON")
            if any(file for _, name, file in run_pragma(raw, "database_list") if name == "main"):
                switch_to_wal(raw, self.path, self.busy_timeout)

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

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

    # Maintenance.

    def vacuum(self, *, full: bool = False, stop: threading.Event | None = None) -> bool:
        """Give free pages back to the file system; False, with a warning, if this file cannot do it without `full`.

        It goes in steps between which others write, until `stop` is set. `full` rewrites the whole file, while nobody can
        write, and makes it one that can.
        """
        self._refuse_inside_block()
        if full:
            with self._maintenance() as conn:
                run_pragma(conn, "auto_vacuum = INCREMENTAL")
                sqlite3.Cursor(conn).execute("VACUUM")
            return True
        with self._maintenance() as conn:
            incremental = bool(pragma(conn, "auto_vacuum") == 2)
        if incremental:
            vacuum_in_steps(self._vacuum_step, stop)
        else:
            logger.warning(
                "%s was not made with incremental auto-vacuum, so nothing was given back: "
                "vacuum(full=True) rewrites it once, and turns it on.",
                self.path,
            )
        return incremental

    def _vacuum_step(self, pages: int) -> int:
        """Give so many pages back; how many are left."""
        with self._maintenance() as conn:
            # As a script: execute() would take one step, which is one page.
            conn.own_script(f"PRAGMA incremental_vacuum({pages})")
            return int(pragma(conn, "freelist_count"))

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

    def checkpoint(self) -> bool:
        """Write the WAL back and cut it to nothing; False if a reader kept that from happening just now."""
        self._refuse_inside_block()
        if self.in_memory:
            return True
        with self._maintenance() as conn:
            run_pragma(conn, f"busy_timeout = {int(min(CHECKPOINT_WAIT, self.busy_timeout) * 1000)}")
            try:
                return not pragma(conn, "wal_checkpoint(TRUNCATE)")
            finally:
                run_pragma(conn, f"busy_timeout = {int(self.busy_timeout * 1000)}")

    def open_watcher(self) -> sqlite3.Connection:
        """A connection of the caller's own that only reads, to poll `PRAGMA data_version` on."""
        if self.in_memory:
            raise UnsupportedDatabaseError("An in-memory database cannot be watched: nobody else can change it.")
        return open_connection(
            self.path, sqlite3.Connection, writes=False, synchronous=self.synchronous, busy_timeout=self.busy_timeout
        )

    # Whose turn it is.

    @contextmanager
    def _locked(self, *, writes: bool) -> Iterator[None]:
        lock = self._lock
        acquire, release = (lock.acquire_write, lock.release_write) if writes else (lock.acquire_read, lock.release_read)
        if lock.held:
            acquire()  # which raises
        try:
            acquire()
            yield
        finally:
            # A child that forked in here has another lock; an interrupt may have come before it was ours, or just after.
            if lock is self._lock and lock.held:
                release()

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

    def _raise(self, error: sqlite3.OperationalError) -> NoReturn:
        """Raise an error that says what to do."""
        raise_explained(error, self.path, self.busy_timeout)

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

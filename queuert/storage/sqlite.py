"""SQLite: connections, transactions, and what goes wrong with them.

A file has one writer connection, shared by the process, and a few readers. The writer is guarded by the write side of
a fair lock, so that this process's writers queue instead of spinning on SQLITE_BUSY; `busy_timeout` is for other
processes. Readers have their own snapshot (WAL) and take no lock. A `:memory:` database is one connection for
everything, and its readers take the read side.

Transactions that follow one another closely share a COMMIT (`group_commit.py`).

Locks, always taken in this order: the read/write lock, then `_mutex`. `_mutex` guards the lists of connections and is
never held while a database is waited for. After-commit effects run with neither held.

How a write transaction of ours waits for other processes: it begins deferred and its first statement is a write,
which waits for `busy_timeout`. It is tried `BUSY_TRIES` times, so it gives up after about three times the busy
timeout. A transaction that read first can find its snapshot out of date (SQLITE_BUSY_SNAPSHOT); it starts again at
once, on a new connection, since a cursor that somebody left open would keep the old snapshot alive, and IMMEDIATE, or other
processes that write all the time would make it fail again and again. Blocks for user code begin so at once.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from queuert.errors import DatabaseUnavailableError, ForeignKeysDisabledError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.options import Duration, seconds
from queuert.storage import forks
from queuert.storage.base import Database
from queuert.storage.group_commit import Group, SharedCommitError
from queuert.storage.guard import (
    BEGIN,
    BEGIN_IMMEDIATE,
    COMMIT,
    ROLLBACK,
    SAVEPOINT,
    GuardedConnection,
)
from queuert.storage.rwlock import RWLock
from queuert.storage.sqlite_block import Block
from queuert.storage.sqlite_opening import (
    Conn,
    Synchronous,
    connect,
    implicit_begin,
    outside_transaction,
    pragma,
    run_pragma,
    switch_to_wal,
)
from queuert.storage.sqlite_session import (
    JoinedSession,
    SingleSession,
    SqliteSession,
    is_busy,
    is_readonly,
    is_snapshot,
    is_transient,
)
from queuert.storage.sqlite_vacuum import vacuum_in_steps
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import MEMORY, absolute

T = TypeVar("T")

logger = logging.getLogger("queuert.sqlite")

BUSY_TRIES = 3
SNAPSHOT_TRIES = 20
IDLE_READERS = 8
FORK_PATIENCE = 5.0  # seconds that a fork waits for this process's transactions
AFTER_YOU = 0.00005
"""Seconds that leave Python's lock to the thread that was just given the write lock: it is soon in SQLite, and we go on."""
CHECKPOINT_WAIT = 0.2  # seconds that a truncating checkpoint waits for readers while this process's writers queue

_MEMBER = f"SAVEPOINT {SAVEPOINT}"
_MEMBER_DONE = f"RELEASE {SAVEPOINT}"
_MEMBER_UNDONE = f"ROLLBACK TO {SAVEPOINT}"


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
        self._mutex = threading.Lock()
        self._statements = threading.Lock()
        self._writer: GuardedConnection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._opened: set[sqlite3.Connection] = set()
        self._borrowed = 0
        """Readers in use."""
        self._readers_change = threading.Condition(self._mutex)
        self._forking = False
        self._lock_is_forks = False
        self._generation = 0
        self._orphaned = False
        self._group: Group | None = None
        # Where a commit does not wait for the disk, there is nothing to share.
        self._groups = not self.in_memory and synchronous in ("full", "extra")
        forks.watch(self)

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path!r})"

    # Sessions.

    @contextmanager
    def read(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        if self.in_memory:
            with self._locked(writes=False):
                yield SqliteSession(self._shared_connection(), mutex=self._statements)
            return
        conn, generation = self._borrow_reader()
        try:
            # One snapshot for all that is read here; it starts with the first query and costs two statements of no I/O.
            conn.execute(BEGIN)
            yield SqliteSession(conn)
            conn.execute(COMMIT)
        finally:
            self._give_back(conn, generation)

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
            result = self._transact(work, hooks, single=single)
            awaited = self._lock.waiting_writers
        if awaited:
            time.sleep(AFTER_YOU)
        hooks.flush()
        return result

    def block(self, *, shared: bool = False) -> AbstractContextManager[SqliteSession]:
        return Block(self, shared=shared and self._groups)

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
        with self._mutex:
            idle, self._idle = self._idle, []
            writer, self._writer = self._writer, None
            self._generation += 1
        for conn in idle:
            self._close(conn)
        if writer is None:
            return
        try:
            self._lock.acquire_write(timeout=0)
        except (TimeoutError, RuntimeError):
            if self.in_memory:
                self._opened.discard(writer)  # several may be reading: it closes when the last of them drops it
            return  # in use: whoever uses it closes it
        try:
            self._commit_for_members()
            self._close(writer)
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
            self._commit_for_members()
            try:
                yield self._write_connection()
            except sqlite3.OperationalError as error:
                self._raise(error)

    def checkpoint(self) -> bool:
        """Write the WAL back and cut it to nothing; False if a reader kept that from happening just now."""
        self._refuse_inside_block()
        if self.in_memory:
            return True
        with self._locked(writes=True):
            self._commit_for_members()
            conn = self._write_connection()
            run_pragma(conn, f"busy_timeout = {int(min(CHECKPOINT_WAIT, self.busy_timeout) * 1000)}")
            try:
                return not pragma(conn, "wal_checkpoint(TRUNCATE)")
            finally:
                run_pragma(conn, f"busy_timeout = {int(self.busy_timeout * 1000)}")

    def open_watcher(self) -> sqlite3.Connection:
        """A connection of the caller's own that only reads, to poll `PRAGMA data_version` on."""
        if self.in_memory:
            raise UnsupportedDatabaseError("An in-memory database cannot be watched: nobody else can change it.")
        conn = self._connect(sqlite3.Connection, writes=False)
        self._opened.discard(conn)
        return conn

    # Transactions, with the write lock held.

    def _transact(self, work: Callable[[Any], T], hooks: Hooks, *, single: bool) -> T:
        group = self._open_group()
        if group is not None:
            with suppress(SharedCommitError):  # it was for another's fault: we do it again, alone
                return self._transact_in_group(group, work, hooks)
        busy = snapshots = 0
        while True:
            conn = self._write_connection()
            try:
                if single:
                    return work(SingleSession(conn, hooks))
                conn.own(BEGIN_IMMEDIATE if busy or snapshots else BEGIN)
                result = work(SqliteSession(conn, hooks))
                conn.own(COMMIT)
                return result
            except BaseException as error:
                hooks.discard()
                self._roll_back(conn)
                if not isinstance(error, sqlite3.OperationalError):
                    raise
                if is_snapshot(error) and snapshots < SNAPSHOT_TRIES:
                    snapshots += 1
                    self._discard(conn)
                elif is_busy(error) and busy < BUSY_TRIES - 1:
                    busy += 1
                    self._discard_if_unsure(conn, error)
                else:
                    self._raise(error)
            finally:
                self._close_if_retired(conn)

    # Group commit; see group_commit.py. The write lock is held while a group's transaction is worked in.

    def _enter_group(self, *, shared: bool) -> Group:
        """Wait for our turn, and join the transaction that was handed over, or begin one. Who does not share is alone."""
        self._lock.acquire_write()
        try:
            if not shared:
                self._commit_for_members()
            group = self._open_group()
            if group is None:
                group = self._group = Group(self._begin_immediate())
            group.conn.own(_MEMBER)
        except BaseException:
            self._lock.release_write()
            raise
        return group

    def _open_group(self) -> Group | None:
        group = self._group
        if group is not None and not group.conn.in_transaction:
            # An interrupt came between its COMMIT and the word of it. Who waits for it has to look.
            self._fail_group(sqlite3.OperationalError("the transaction has ended"))
            return None
        return group

    def _leave_group(self, group: Group, error: BaseException | None = None, *, shared: bool) -> None:
        """Our work is done, or undone: hand the transaction over or end it."""
        try:
            self._end_member(group, error, shared=shared)
        finally:
            self._lock.release_write()

    def _await_group(self, group: Group) -> None:
        """Return when what we did is on the disk."""
        while not group.wait():
            self._lock.acquire_write()
            try:
                if self._group is group:
                    self._commit_for_members()
            finally:
                self._lock.release_write()

    def _end_member(self, group: Group, error: BaseException | None, *, shared: bool) -> None:
        conn = group.conn
        if not conn.in_transaction:  # rolled back by SQLite itself, with everybody's work
            self._group = None
            group.end(error or sqlite3.OperationalError("the transaction was rolled back; the disk may be full"))
            self._close_if_retired(conn)
            return
        try:
            if error is not None:
                conn.own(_MEMBER_UNDONE)
            conn.own(_MEMBER_DONE)
        except BaseException as broken:  # or interrupted, and nobody knows how far it came
            self._fail_group(broken)
            raise
        group.members += error is None
        if shared and group.members and self._lock.waiting_writers and not group.full:
            return  # whoever is next goes on in it
        if error is None:
            self._commit_group()
        else:
            self._commit_for_members()

    def _commit_group(self) -> None:
        """Commit the open group, if there is one, and tell its members; raises what one of them is to raise."""
        group = self._open_group()
        if group is None:
            return
        try:
            group.conn.own(COMMIT)
            self._end_group(group)
        except Exception as error:
            self._fail_group(error, alone=group.members == 1)
            group.check()
            raise
        except BaseException as interrupt:  # it may have come with the answer: then the COMMIT is done
            if group.conn.in_transaction:
                self._fail_group(interrupt)
            else:
                self._end_group(group)
            raise

    def _commit_for_members(self) -> None:
        """Commit the open group, if there is one, for others: what it fails with is theirs."""
        with suppress(Exception):
            self._commit_group()

    def _end_group(self, group: Group) -> None:
        self._group = None
        group.end()
        self._close_if_retired(group.conn)

    def _fail_group(self, error: BaseException, *, alone: bool = False) -> None:
        group, self._group = self._group, None
        if group is not None:
            self._roll_back(group.conn)
            group.end(error, alone=alone)
            self._close_if_retired(group.conn)

    def _transact_in_group(self, group: Group, work: Callable[[Any], T], hooks: Hooks) -> T:
        """Our own short transaction, in one that was handed over: it commits both."""
        group.conn.own(_MEMBER)
        try:
            result = work(SqliteSession(group.conn, hooks))
            group.conn.own(_MEMBER_DONE)
        except BaseException:
            hooks.discard()
            try:
                group.conn.own(_MEMBER_UNDONE)
                group.conn.own(_MEMBER_DONE)
            except sqlite3.Error as broken:  # SQLite has rolled all of it back, or an interrupt came after the release
                self._fail_group(broken)
            else:
                self._commit_for_members()
            raise
        group.members += 1
        try:
            self._commit_group()
        except Exception as error:
            hooks.discard()
            raise SharedCommitError(str(error)) from error
        return result

    def _begin_immediate(self) -> GuardedConnection:
        tries = 0
        while True:
            tries += 1
            conn = self._write_connection()
            try:
                conn.own(BEGIN_IMMEDIATE)
                return conn
            except sqlite3.OperationalError as error:
                if is_snapshot(error) and tries <= SNAPSHOT_TRIES:
                    self._discard(conn)
                elif is_busy(error) and tries < BUSY_TRIES:
                    self._discard_if_unsure(conn, error)
                else:
                    self._raise(error)

    def _roll_back(self, conn: GuardedConnection) -> None:
        if conn.in_transaction:
            try:
                conn.own(ROLLBACK)
            except sqlite3.Error:
                logger.exception("A rollback failed; the connection is replaced.")
                self._discard(conn)

    def _raise(self, error: sqlite3.OperationalError) -> NoReturn:
        """Raise an error that says what to do; a busy database stays the driver's own error, with a note."""
        if is_readonly(error):
            raise DatabaseUnavailableError(f"{self.path} cannot be written: {error}.") from error
        if is_busy(error) and sys.version_info >= (3, 11):
            error.add_note(
                f"Another transaction held {self.path} for longer than the busy timeout of {self.busy_timeout:g} "
                "seconds. If it is one of this thread's own, pass its connection as conn=."
            )
        raise error

    # Connections.

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

    def _write_connection(self) -> GuardedConnection:
        """The writer; the write lock is held."""
        writer = self._writer
        if writer is None:
            writer = self._connect(GuardedConnection, writes=True)
            with self._mutex:
                self._writer = writer
        return writer

    def _shared_connection(self) -> GuardedConnection:
        """The connection of an in-memory database; the read lock is held, by others too."""
        with self._statements:
            return self._write_connection()

    def _borrow_reader(self) -> tuple[sqlite3.Connection, int]:
        with self._mutex:
            while self._forking:
                self._readers_change.wait()
            self._borrowed += 1
            generation = self._generation
            if self._idle:
                return self._idle.pop(), generation
        try:
            return self._connect(sqlite3.Connection, writes=False), generation
        except BaseException:
            self._reader_left()
            raise

    def _give_back(self, conn: sqlite3.Connection, generation: int) -> None:
        if conn not in self._opened:
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
            self._close(conn)
        self._reader_left()

    def _reader_left(self) -> None:
        with self._mutex:
            self._borrowed -= 1
            if self._forking:
                self._readers_change.notify_all()

    def _discard(self, conn: GuardedConnection) -> None:
        """Give up a writer that cannot be used any more. The next use opens another."""
        if self.in_memory:
            return
        with self._mutex:
            if self._writer is conn:
                self._writer = None
        self._close(conn)

    def _discard_if_unsure(self, conn: GuardedConnection, error: sqlite3.OperationalError) -> None:
        """Python 3.10 does not tell whether it was the snapshot."""
        if not hasattr(error, "sqlite_errorcode"):
            self._discard(conn)

    def _close_if_retired(self, conn: GuardedConnection) -> None:
        """close() was called while the writer was in use."""
        if conn is not self._writer and conn in self._opened:
            self._close(conn)

    def _close(self, conn: sqlite3.Connection) -> None:
        self._opened.discard(conn)
        with suppress(sqlite3.Error):
            conn.close()

    def _connect(self, factory: type[Conn], *, writes: bool) -> Conn:
        if self._orphaned:
            raise DatabaseUnavailableError(
                "This in-memory database belongs to the process that forked this one: use a file to share it."
            )
        if os.path.realpath(self.path) in _left_open:
            raise DatabaseUnavailableError(
                f"{self.path} was in use by the process that forked this one, inside a transaction: SQLite cannot work here. "
                "Fork outside of transactions, or start processes with the spawn method; under uWSGI set "
                "py-call-uwsgi-fork-hooks = true."
            )
        conn = connect(self.path, factory, writes=writes, synchronous=self.synchronous, busy_timeout=self.busy_timeout)
        self._opened.add(conn)
        return conn

    # Forks.

    def before_fork(self) -> None:
        """Wait until nobody is in a transaction, and close everything; `forked()` lets the others go on.

        SQLite keeps its locks in tables of the process. A child that inherits an open file takes the locks for its own and
        has none of them: its parent's last close would delete the WAL that the child writes to.
        """
        if self.in_memory:
            return
        deadline = time.monotonic() + FORK_PATIENCE
        with suppress(TimeoutError, RuntimeError):  # somebody's long block, or one that this thread is in itself
            self._lock.acquire_write(FORK_PATIENCE)
            self._lock_is_forks = True
        with self._mutex:
            self._forking = True
            self._readers_change.wait_for(lambda: not self._borrowed, max(0.0, deadline - time.monotonic()))
            idle, self._idle = self._idle, []
            writer = self._writer if self._lock_is_forks else None
        for conn in idle:
            self._close(conn)
        if writer is not None:
            self._commit_for_members()
            self._discard(writer)

    def forked(self) -> None:
        """The fork is over."""
        if not self._forking:
            return
        with self._mutex:
            self._forking = False
            self._readers_change.notify_all()
        if self._lock_is_forks:
            self._lock_is_forks = False
            self._lock.release_write()

    def after_fork(self) -> Iterable[object]:
        inherited = [*self._opened]
        if self._writer is not None:
            self._writer.session = None
            self._orphaned = self.in_memory
        if inherited and not self.in_memory:
            _left_open.add(os.path.realpath(self.path))
        self._lock = RWLock()
        self._mutex = threading.Lock()
        self._statements = threading.Lock()
        self._readers_change = threading.Condition(self._mutex)
        self._writer = None
        self._group = None
        self._idle = []
        self._opened = set()
        self._borrowed = 0
        self._forking = self._lock_is_forks = False
        return inherited


_left_open: set[str] = set()
"""Files that this process inherited open, and must not touch."""

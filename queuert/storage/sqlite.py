"""SQLite: connections, transactions, and what goes wrong with them.

A file has one writer connection, shared by the process, and a few readers. The writer is guarded by the write side of
a fair lock, so that this process's writers queue instead of spinning on SQLITE_BUSY; `busy_timeout` is for other
processes. Readers have their own snapshot (WAL) and take no lock. A `:memory:` database is one connection for
everything, and its readers take the read side.

Locks, always taken in this order: the read/write lock, then `_mutex`. `_mutex` guards the lists of connections and is
never held while a database is waited for. After-commit effects run with neither held.

How a write transaction of ours waits for other processes: it begins deferred and its first statement is a write,
which waits for `busy_timeout`. It is tried `BUSY_TRIES` times, so it gives up after about three times the busy
timeout. A transaction that read first can find its snapshot out of date (SQLITE_BUSY_SNAPSHOT); it starts again at
once, on a new connection, since a cursor that somebody left open would keep the old snapshot alive. Blocks for user
code begin IMMEDIATE and cannot meet that.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal, NoReturn, TypeVar

from queuert.errors import (
    DatabaseUnavailableError,
    ForeignKeysDisabledError,
    QueuertError,
    StaleSnapshotError,
    TransactionRequiredError,
    UnsupportedDatabaseError,
)
from queuert.hooks import Hooks
from queuert.options import Duration, seconds
from queuert.storage import forks
from queuert.storage.base import Database, Params, Row
from queuert.storage.guard import SAVEPOINT_PREFIX, GuardedConnection, TransactionMisuseError
from queuert.storage.rwlock import RWLock
from queuert.storage.sqlfiles import Query
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import MEMORY, absolute

T = TypeVar("T")
Synchronous = Literal["off", "normal", "full", "extra"]

logger = logging.getLogger("queuert.sqlite")

OLDEST_SQLITE = (3, 35, 0)  # RETURNING
BUSY_TRIES = 3
SNAPSHOT_TRIES = 20
IDLE_READERS = 8
CACHED_STATEMENTS = 256
WAL_PAGES = 1_000
WAL_BYTES = 64 * 1024 * 1024
CHECKPOINT_WAIT = 0.2  # seconds that a truncating checkpoint waits for readers while this process's writers queue

# SQLite's result codes; the sqlite3 module reports them from Python 3.11 on.
_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _PROTOCOL, _BUSY_SNAPSHOT = 5, 6, 8, 10, 13, 15, 517

# The comment keeps a user's plain COMMIT from finding ours in the statement cache, where nobody judges it any more.
_BEGIN = "BEGIN /* queuert */"
_BEGIN_IMMEDIATE = "BEGIN IMMEDIATE /* queuert */"
_COMMIT = "COMMIT /* queuert */"
_ROLLBACK = "ROLLBACK /* queuert */"

_savepoint_numbers = itertools.count(1)


class SqliteSession:
    """A connection in a transaction of ours."""

    dialect = "sqlite"

    def __init__(self, raw: sqlite3.Connection, hooks: Hooks | None = None, *, mutex: threading.Lock | None = None) -> None:
        self.raw = raw
        self.hooks = hooks
        self._mutex = mutex
        """For readers that share a connection: the module may hand two threads the same prepared statement."""

    def run(self, query: Query, params: Params) -> list[Row]:
        if self._mutex is None:
            return self._run(query, params)
        with self._mutex:
            return self._run(query, params)

    def _run(self, query: Query, params: Params) -> list[Row]:
        # Not raw.cursor(): that would have the user's row factory.
        cursor = sqlite3.Cursor(self.raw)
        if len(query.parts) == 1:
            return cursor.execute(query.parts[0], params).fetchall()
        rows: list[Row] = []
        returned: list[Row] = []
        for part in query.parts:
            if ":returned" in part:
                cursor.execute(part, {**params, "returned": json.dumps(returned)})
            else:
                cursor.execute(part, params)
            rows = cursor.fetchall()
            if cursor.description is not None:
                returned = rows
        return rows

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        name = f"{SAVEPOINT_PREFIX}{next(_savepoint_numbers)}"
        self._statement(f"SAVEPOINT {name}")
        with self.hooks.savepoint() if self.hooks is not None else nullcontext():
            try:
                yield
            except BaseException:
                # The transaction may be gone, and the savepoint with it: then the error that did it is the one to tell.
                with suppress(sqlite3.Error, QueuertError):
                    self._statement(f"ROLLBACK TO {name}")
                    self._statement(f"RELEASE {name}")
                raise
            self._statement(f"RELEASE {name}")

    def pipeline(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _statement(self, statement: str) -> None:
        if isinstance(self.raw, GuardedConnection):
            self.raw.own(statement)
        else:
            sqlite3.Cursor(self.raw).execute(statement)


class BlockSession(SqliteSession):
    """The session of a block: user code has its connection, and could have lost the transaction."""

    raw: GuardedConnection

    def _run(self, query: Query, params: Params) -> list[Row]:
        self.raw.check_open()
        if self.raw.text_factory is str:
            return super()._run(query, params)
        return _with_text(self.raw, lambda: super(BlockSession, self)._run(query, params))

    def _statement(self, statement: str) -> None:
        self.raw.check_open()
        super()._statement(statement)


class JoinedSession(SqliteSession):
    """The user's own connection in the user's own transaction."""

    def __init__(self, raw: sqlite3.Connection, hooks: Hooks | None, *, begin: str | None) -> None:
        super().__init__(raw, hooks)
        self._begin = begin
        """The statement with which the driver would open the transaction; run before the first of ours."""

    def _run(self, query: Query, params: Params) -> list[Row]:
        self._open()
        started = time.monotonic()
        try:
            if self.raw.text_factory is str:
                return super()._run(query, params)
            return _with_text(self.raw, lambda: super(JoinedSession, self)._run(query, params))
        except sqlite3.OperationalError as error:
            if self._is_stale(error, time.monotonic() - started):
                raise StaleSnapshotError from error
            raise

    def _statement(self, statement: str) -> None:
        self._open()
        super()._statement(statement)

    def _open(self) -> None:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            if not self.raw.in_transaction:
                sqlite3.Cursor(self.raw).execute(begin)

    def _is_stale(self, error: sqlite3.OperationalError, waited: float) -> bool:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None or not is_busy(error):
            return code == _BUSY_SNAPSHOT
        # Python 3.10 does not tell; but only a stale snapshot is refused without waiting.
        timeout = sqlite3.Cursor(self.raw).execute("PRAGMA busy_timeout").fetchone()[0] / 1000
        return waited < float(timeout) / 2


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
        self.synchronous = synchronous
        self.busy_timeout = seconds(busy_timeout, "busy_timeout")
        self.check_foreign_keys = check_foreign_keys
        self._lock = RWLock()
        self._mutex = threading.Lock()
        self._statements = threading.Lock()
        self._writer: GuardedConnection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._opened: set[sqlite3.Connection] = set()
        self._generation = 0
        self._orphaned = False
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
            conn.execute(_BEGIN)
            yield SqliteSession(conn)
            conn.execute(_COMMIT)
        finally:
            self._give_back(conn, generation)

    def run(
        self,
        work: Callable[[Any], T],
        *,
        recover: Callable[[Any], T | None] | None = None,
        single: bool = False,
    ) -> T:
        # Answers of SQLite do not get lost, so there is nothing to recover; and BEGIN costs no round trip.
        self._refuse_inside_block()
        hooks = Hooks()
        with self._locked(writes=True):
            result = self._transact(work, hooks)
        hooks.flush()
        return result

    @contextmanager
    def block(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        hooks = Hooks()
        with self._locked(writes=True), self._inside_block():
            pid = os.getpid()
            conn = self._begin_immediate()
            session = BlockSession(conn, hooks)
            conn.lend(session)
            try:
                yield session
                if os.getpid() != pid:
                    raise TransactionMisuseError("The process forked inside this block: only the parent can commit it.")
                conn.check_open()
                conn.reclaim()
                conn.own(_COMMIT)
            except BaseException:
                hooks.discard()
                if os.getpid() == pid:
                    conn.reclaim()
                    self._roll_back(conn)
                raise
            finally:
                self._close_if_retired(conn)
        hooks.flush()

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
                begin = _implicit_begin(raw)
            if self.check_foreign_keys and not _pragma(raw, "foreign_keys"):
                raise ForeignKeysDisabledError
        return JoinedSession(raw, hooks, begin=begin)

    def configure(self, conn: Any) -> None:
        raw = unwrap(conn, reading=True)
        if isinstance(raw, GuardedConnection):
            return
        if not isinstance(raw, sqlite3.Connection):
            raise wrong_connection(conn, raw, "a sqlite3.Connection")
        with _outside_transaction(raw):
            _run_pragma(raw, f"busy_timeout = {int(self.busy_timeout * 1000)}")
            _run_pragma(raw, "foreign_keys = ON")
            if any(file for _, name, file in _run_pragma(raw, "database_list") if name == "main"):
                self._switch_to_wal(raw)

    def is_transient(self, error: BaseException) -> bool:
        if not isinstance(error, sqlite3.OperationalError):
            return False
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return is_busy(error) or "disk" in str(error)
        return code & 0xFF in (_BUSY, _LOCKED, _IOERR, _FULL, _PROTOCOL)

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
            self._close(writer)
        finally:
            self._lock.release_write()

    # Maintenance.

    def vacuum(self, *, full: bool = False) -> bool:
        """Give free pages back to the file system; False, with a warning, if this file cannot do it without `full`.

        `full` rewrites the whole file, while nobody can write, and makes it one that can.
        """
        self._refuse_inside_block()
        with self._locked(writes=True):
            conn = self._write_connection()
            try:
                if full:
                    _run_pragma(conn, "auto_vacuum = INCREMENTAL")
                    sqlite3.Cursor(conn).execute("VACUUM")
                elif _pragma(conn, "auto_vacuum") == 2:
                    # As a script: execute() would take one step, which is one page.
                    conn.own_script("PRAGMA incremental_vacuum")
                else:
                    logger.warning(
                        "%s was not made with incremental auto-vacuum, so nothing was given back: "
                        "vacuum(full=True) rewrites it once, and turns it on.",
                        self.path,
                    )
                    return False
            except sqlite3.OperationalError as error:
                self._raise(error)
        return True

    def checkpoint(self) -> bool:
        """Write the WAL back and cut it to nothing; False if a reader kept that from happening just now."""
        self._refuse_inside_block()
        if self.in_memory:
            return True
        with self._locked(writes=True):
            conn = self._write_connection()
            _run_pragma(conn, f"busy_timeout = {int(min(CHECKPOINT_WAIT, self.busy_timeout) * 1000)}")
            try:
                return not _pragma(conn, "wal_checkpoint(TRUNCATE)")
            finally:
                _run_pragma(conn, f"busy_timeout = {int(self.busy_timeout * 1000)}")

    def open_watcher(self) -> sqlite3.Connection:
        """A connection of the caller's own that only reads, to poll `PRAGMA data_version` on."""
        if self.in_memory:
            raise UnsupportedDatabaseError("An in-memory database cannot be watched: nobody else can change it.")
        conn = self._connect(sqlite3.Connection, writes=False)
        self._opened.discard(conn)
        return conn

    # Transactions, with the write lock held.

    def _transact(self, work: Callable[[Any], T], hooks: Hooks) -> T:
        busy = snapshots = 0
        while True:
            conn = self._write_connection()
            try:
                conn.own(_BEGIN)
                result = work(SqliteSession(conn, hooks))
                conn.own(_COMMIT)
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

    def _begin_immediate(self) -> GuardedConnection:
        tries = 0
        while True:
            tries += 1
            conn = self._write_connection()
            try:
                conn.own(_BEGIN_IMMEDIATE)
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
                conn.own(_ROLLBACK)
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
        acquire()
        try:
            yield
        finally:
            if lock is self._lock:  # a child that forked in here has another
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
            generation = self._generation
            if self._idle:
                return self._idle.pop(), generation
        return self._connect(sqlite3.Connection, writes=False), generation

    def _give_back(self, conn: sqlite3.Connection, generation: int) -> None:
        if conn not in self._opened:
            return  # a child that forked in here
        try:
            if conn.in_transaction:
                conn.execute(_ROLLBACK)
        except sqlite3.Error:
            self._close(conn)
            return
        with self._mutex:
            keep = generation == self._generation and len(self._idle) < IDLE_READERS
            if keep:
                self._idle.append(conn)
        if not keep:
            self._close(conn)

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

    _Conn = TypeVar("_Conn", bound=sqlite3.Connection)

    def _connect(self, factory: type[_Conn], *, writes: bool) -> _Conn:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise UnsupportedDatabaseError(
                f"SQLite {sqlite3.sqlite_version} is too old: this library needs {'.'.join(map(str, OLDEST_SQLITE))} or newer."
            )
        if self._orphaned:
            raise DatabaseUnavailableError(
                "This in-memory database belongs to the process that forked this one: use a file to share it."
            )
        if not self.in_memory:
            self._check_path(writes)
        try:
            conn = sqlite3.connect(
                self.path,
                timeout=self.busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=CACHED_STATEMENTS,
                factory=factory,
            )
        except sqlite3.Error as error:
            raise DatabaseUnavailableError(f"{self.path} cannot be opened: {error}.") from error
        try:
            self._set_up(conn, writes)
        except sqlite3.DatabaseError as error:
            conn.close()
            if is_busy(error):
                raise
            raise DatabaseUnavailableError(f"{self.path} cannot be used as a database: {error}.") from error
        except BaseException:
            conn.close()
            raise
        self._opened.add(conn)
        return conn

    def _set_up(self, conn: sqlite3.Connection, writes: bool) -> None:
        if not _pragma(conn, "page_count"):
            _run_pragma(conn, "auto_vacuum = INCREMENTAL")  # has an effect only before the first table
        if not self.in_memory:
            if writes or os.access(self.path, os.W_OK):
                self._switch_to_wal(conn)
            _run_pragma(conn, f"wal_autocheckpoint = {WAL_PAGES}")
            _run_pragma(conn, f"journal_size_limit = {WAL_BYTES}")
        _run_pragma(conn, f"synchronous = {self.synchronous}")
        _run_pragma(conn, "foreign_keys = ON")
        if not _pragma(conn, "foreign_keys"):
            raise UnsupportedDatabaseError("This build of SQLite has no foreign keys; the library needs them.")
        if not writes:
            _run_pragma(conn, "query_only = ON")

    def _switch_to_wal(self, conn: sqlite3.Connection) -> None:
        """SQLite may answer "database is locked" at once, whatever the busy timeout: somebody else is switching."""
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                if _pragma(conn, "journal_mode") == "wal":
                    return
                mode = _pragma(conn, "journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.002, 0.02))
        if mode != "wal":
            raise DatabaseUnavailableError(
                f"{self.path} cannot be switched to WAL (it is {mode}): use a local, writable file system."
            )

    def _check_path(self, writes: bool) -> None:
        path, parent = self.path, os.path.dirname(self.path)
        problem = ""
        if os.path.isdir(path):
            problem = "it is a directory"
        elif not os.path.isdir(parent):
            problem = f"the directory {parent} does not exist"
        elif os.path.exists(path):
            if not os.access(path, os.R_OK):
                problem = "this user may not read it"
            elif writes and not os.access(path, os.W_OK):
                problem = "it is read-only for this user"
            elif writes and not os.access(parent, os.W_OK):
                problem = f"the directory {parent} is read-only for this user, and SQLite keeps its WAL there"
        elif not os.access(parent, os.W_OK):
            problem = f"it does not exist, and the directory {parent} is read-only for this user"
        if problem:
            raise DatabaseUnavailableError(f"{path} cannot be opened as a database: {problem}.")

    def after_fork(self) -> Iterable[object]:
        inherited = [*self._opened]
        if self._writer is not None:
            self._writer.session = None
            self._orphaned = self.in_memory
        self._lock = RWLock()
        self._mutex = threading.Lock()
        self._statements = threading.Lock()
        self._writer = None
        self._idle = []
        self._opened = set()
        return inherited


def is_busy(error: BaseException) -> bool:
    """Somebody else holds the database."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)
    return bool(code & 0xFF in (_BUSY, _LOCKED))


def is_snapshot(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) == _BUSY_SNAPSHOT


def is_readonly(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return "readonly database" in str(error) if code is None else code & 0xFF == _READONLY


def _implicit_begin(raw: sqlite3.Connection) -> str:
    """How the driver would open a transaction. It does so by itself only before INSERT, UPDATE, DELETE and REPLACE."""
    autocommit = getattr(raw, "autocommit", -1)  # -1: the style of before Python 3.12
    if autocommit is True or (autocommit == -1 and raw.isolation_level is None):
        raise TransactionRequiredError
    return f"BEGIN {raw.isolation_level or ''}".strip() if autocommit == -1 else "BEGIN"


def _run_pragma(conn: sqlite3.Connection, pragma: str) -> list[Any]:
    return sqlite3.Cursor(conn).execute(f"PRAGMA {pragma}").fetchall()


def _pragma(conn: sqlite3.Connection, pragma: str) -> Any:
    rows = _run_pragma(conn, pragma)
    return rows[0][0] if rows else None


def _with_text(conn: sqlite3.Connection, call: Callable[[], T]) -> T:
    """Run our statements with plain strings on a connection that makes something else of text."""
    text_factory = conn.text_factory
    conn.text_factory = str
    try:
        return call()
    finally:
        conn.text_factory = text_factory


@contextmanager
def _outside_transaction(conn: sqlite3.Connection) -> Iterator[None]:
    """These pragmas do nothing, or fail, inside a transaction; one with autocommit off is always in one."""
    if not conn.in_transaction:
        yield
        return
    if getattr(conn, "autocommit", -1) is not False or conn.total_changes:
        raise QueuertError("Call configure_connection(conn) before the connection's first transaction.")
    conn.autocommit = True  # type: ignore[attr-defined, unused-ignore]  # Python 3.12
    try:
        yield
    finally:
        conn.autocommit = False  # type: ignore[attr-defined, unused-ignore]

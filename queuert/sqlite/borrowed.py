"""SQLite on connections that somebody else opens: an context's, a framework's.

The library's own connections are replaced, and nothing else: the process's writers still queue in one fair lock, blocks for
user code begin IMMEDIATE, short transactions begin with a write and are tried again when another process is in the way. What
cannot be had here is the guard that refuses COMMIT inside a block; a transaction that was ended in one is noticed at its end.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from queuert.errors import DatabaseUnavailableError, StaleSnapshotError, TransactionMisuseError, TransactionRequiredError
from queuert.hooks import Hooks
from queuert.sqlite.base import SqliteBase
from queuert.sqlite.connections import FORK_PATIENCE, leave_open, was_left_open
from queuert.sqlite.errors import is_busy, is_snapshot
from queuert.sqlite.opening import pragma, run_pragma, switch_to_wal
from queuert.sqlite.rwlock import RWLock
from queuert.sqlite.session import JoinedSession, SqliteSession
from queuert.sqlite.transaction import BUSY_TRIES, SNAPSHOT_TRIES
from queuert.storage import forks
from queuert.storage.loader import Query
from queuert.storage.protocol import Block, ManagedBlock, Params, Row
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import driver_error

T = TypeVar("T")


class SqliteLoan(ABC):
    """One connection, while we have it."""

    raw: sqlite3.Connection
    handle: Any
    """What user code gets of it."""

    @abstractmethod
    def begin(self, statement: str) -> None:
        """Open a transaction with this statement, and let the owner know."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None:
        """Also where nothing is open."""


class BorrowedSqlite(SqliteBase):
    """SQLite on lent connections."""

    def __init__(self, path: str, *, busy_timeout: float, check_foreign_keys: bool) -> None:
        self._mutex = threading.Lock()
        """Guards what a subclass knows of its owner's connections; no other lock is taken inside."""
        super().__init__(path, synchronous="full", busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys)
        self._lock_is_forks = False
        forks.watch(self)

    @abstractmethod
    def _loan(self) -> AbstractContextManager[SqliteLoan]:
        """A connection for us alone, with nothing open on it; given back as it was found."""

    def _block_loan(self) -> AbstractContextManager[SqliteLoan]:
        """The same, for a block that user code works in."""
        return self._loan()

    # Sessions.

    @contextmanager
    def read(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        with self._turn(writes=False), self._loan() as loan:
            loan.begin("BEGIN")
            try:
                yield SqliteSession(loan.raw)
            finally:
                loan.rollback()

    def run(
        self,
        work: Callable[[Any], T],
        *,
        recover: Callable[[Any], T | None] | None = None,
        single: bool = False,
    ) -> T:
        self._refuse_inside_block()
        hooks = Hooks()
        with self._turn(writes=True), self._loan() as loan:
            result = self._work_on(loan, work, hooks, single=single)
        hooks.flush()
        return result

    def _work_on(self, loan: SqliteLoan, work: Callable[[Any], T], hooks: Hooks, *, single: bool = False) -> T:
        busy = snapshots = 0
        while True:
            try:
                # A lone query may have several statements, the first of which reads.
                loan.begin("BEGIN IMMEDIATE" if single or busy or snapshots else "BEGIN")
                result = work(SqliteSession(loan.raw, hooks))
                loan.commit()
                return result
            except BaseException as error:
                hooks.discard()
                with suppress(Exception):
                    loan.rollback()
                cause = driver_error(error)
                if not isinstance(cause, sqlite3.OperationalError):
                    raise
                if is_snapshot(cause) and snapshots < SNAPSHOT_TRIES:
                    snapshots += 1
                elif is_busy(cause) and busy < BUSY_TRIES - 1:
                    busy += 1
                else:
                    self._raise(cause)

    def block(self, *, shared: bool = False) -> Block:
        return ManagedBlock(self._block())

    @contextmanager
    def _block(self) -> Iterator[SqliteSession]:
        self._refuse_inside_block()
        hooks = Hooks()
        pid = os.getpid()
        with self._turn(writes=True), self._inside_block(), self._block_loan() as loan:
            self._begin_immediate_on(loan)
            session = LentSession(loan, hooks)
            self._thread.lent = session
            try:
                yield session
                if os.getpid() != pid:
                    raise TransactionMisuseError("The process forked inside this block: only the parent can commit it.")
                session.check_open()
                loan.commit()
            except BaseException:
                hooks.discard()
                if os.getpid() == pid:
                    loan.rollback()
                raise
            finally:
                self._thread.lent = None
        hooks.flush()

    def _begin_immediate_on(self, loan: SqliteLoan) -> None:
        tries = 0
        while True:
            tries += 1
            try:
                loan.begin("BEGIN IMMEDIATE")
                return
            except Exception as error:
                with suppress(Exception):
                    loan.rollback()
                cause = driver_error(error)
                if not isinstance(cause, sqlite3.OperationalError):
                    raise
                if not is_busy(cause) or tries >= BUSY_TRIES:
                    self._raise(cause)

    def _raise(self, error: sqlite3.OperationalError) -> NoReturn:
        if is_snapshot(error):  # also of a transaction that began IMMEDIATE
            raise StaleSnapshotError(
                "A query on this connection is still being read, and others have written since: read it to its end first."
            ) from error
        super()._raise(error)

    @property
    def lent_session(self) -> LentSession | None:
        """The session of the block that this thread is in."""
        session: LentSession | None = getattr(self._thread, "lent", None)
        return session

    def trouble(self, error: BaseException) -> Trouble | None:
        return super().trouble(driver_error(error))

    @contextmanager
    def _turn(self, *, writes: bool) -> Iterator[None]:
        if writes or self.in_memory:  # one connection for all: even readers must be alone on it
            with self._locked(writes=True):
                yield
        else:
            yield

    # What the library needs of a connection.

    def prepare_connection(self, raw: sqlite3.Connection) -> None:
        """Foreign keys and WAL, on a connection with nothing open; the owner's busy timeout stays as it is."""
        self.refuse_inherited()
        if self.check_foreign_keys and not pragma(raw, "foreign_keys"):
            run_pragma(raw, "foreign_keys = ON")
        file = next((file for _, name, file in run_pragma(raw, "database_list") if name == "main"), "")
        if not file:
            return
        try:
            switch_to_wal(raw, file, self.busy_timeout)
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise
            raise DatabaseUnavailableError(
                f"{file} cannot be used with WAL, which is kept beside the file ({error}): use a local, writable file system."
            ) from error

    @contextmanager
    def _maintenance(self) -> Iterator[sqlite3.Connection]:
        with self._turn(writes=True), self._loan() as loan:
            yield loan.raw

    def close(self) -> None:
        """Nothing here is ours to close."""

    # Forks. A child that opens a file which it inherited open has none of the locks that it believes to have: its parent's last
    # close would delete the WAL that the child writes to.

    @abstractmethod
    def _close_idle(self) -> None:
        """Close the owner's connections that nobody uses just now: it opens new ones by itself."""

    @abstractmethod
    def _let_go(self) -> Iterable[object]:
        """In a child: have the owner forget its connections; returns those that are open."""

    def before_fork(self) -> None:
        """Wait until nobody is in a transaction, and close what can be closed; `forked()` lets the others go on."""
        if self.in_memory:
            return
        with suppress(TimeoutError, RuntimeError):  # somebody's long block, or one that this thread is in itself
            self._lock.acquire_write(FORK_PATIENCE)
            self._lock_is_forks = True
        self._close_idle()

    def forked(self) -> None:
        """The fork is over."""
        if self._lock_is_forks:
            self._lock_is_forks = False
            self._lock.release_write()

    def after_fork(self) -> Iterable[object]:
        self._lock, self._lock_is_forks = RWLock(), False
        self._mutex = threading.Lock()
        self._thread.lent = None
        inherited = list(self._let_go())
        if inherited and not self.in_memory:
            leave_open(self.path)
        return inherited

    def refuse_inherited(self) -> None:
        """The file may not be used in a child that was forked while it was open."""
        if was_left_open(self.path):
            raise DatabaseUnavailableError(
                f"{self.path} was in use when this process was forked, and SQLite cannot work with it here: fork outside of "
                "transactions; under uWSGI set py-call-uwsgi-fork-hooks = true."
            )


class LentSession(SqliteSession):
    """The session of a block, on a connection that user code works on too."""

    def __init__(self, loan: SqliteLoan, hooks: Hooks) -> None:
        super().__init__(loan.raw, hooks)
        self.loan = loan
        self._inner = JoinedSession(loan.raw, hooks, begin=None)

    def check_open(self) -> None:
        if not self.raw.in_transaction:
            raise TransactionMisuseError(
                "The transaction was ended inside the block, by a commit or a rollback: leave that to the block."
            )

    def _run(self, query: Query, params: Params) -> list[Row]:
        self.check_open()
        return self._inner.run(query, params)  # keeps the user's text factory out

    def change(self, query: Query, params: Params) -> int:
        self.check_open()
        return self._inner.change(query, params)


def is_idle(raw: sqlite3.Connection) -> bool:
    """Whether nothing is open on it, not even a query that is still being read: then no function can be replaced."""
    if raw.in_transaction:
        return False
    try:
        for _ in range(2):
            raw.create_function("queuert_is_idle", 0, bool)
    except sqlite3.OperationalError:
        return False
    return True


def path_of(name: str) -> str:
    """The path in the name of a file, which may be a URI of SQLite's."""
    return unquote(urlsplit(name).path) if name.startswith("file:") else name


def refuse_shared(raw: sqlite3.Connection) -> None:
    """An in-memory database has one connection: while somebody is in a transaction on it, nobody else can begin one."""
    if raw.in_transaction:
        raise TransactionRequiredError(
            "The one connection of this in-memory database is in a transaction: end it first, or pass it as conn=."
        )

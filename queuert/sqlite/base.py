"""What a SQLite database is, whoever opens its connections: its queries and errors, whose turn it is to write, its maintenance.

`SqliteDatabase` opens its own connections; `BorrowedSqlite` works on those of a framework.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from queuert.errors import ForeignKeysDisabledError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.notify.protocol import Notifier
from queuert.options import Duration, seconds
from queuert.sqlite.connections import open_connection
from queuert.sqlite.dialect import SQLITE
from queuert.sqlite.errors import missing, raise_explained, trouble
from queuert.sqlite.guard import GuardedConnection
from queuert.sqlite.opening import (
    Synchronous,
    implicit_begin,
    outside_transaction,
    pragma,
    run_pragma,
    run_script,
    switch_to_wal,
)
from queuert.sqlite.repository import SqliteRepository
from queuert.sqlite.rwlock import RWLock
from queuert.sqlite.session import JoinedSession, SqliteSession
from queuert.sqlite.vacuum import vacuum_in_steps
from queuert.sqlite.watcher import POLL, SELDOM, SqliteFileNotifier
from queuert.storage import loader
from queuert.storage.loader import Script
from queuert.storage.migrations import status
from queuert.storage.names import Names
from queuert.storage.protocol import Database
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import unwrap, wrong_connection
from queuert.storage.urls import MEMORY, absolute

logger = logging.getLogger("queuert.sqlite")

CHECKPOINT_TRIES = 3  # a reader may be in the way
CHECKPOINT_PAUSE = 0.2
CHECKPOINT_WAIT = 0.2  # seconds that a truncating checkpoint waits for readers while this process's writers queue


class SqliteBase(Database):
    """A SQLite file, or `:memory:`."""

    dialect = SQLITE
    loses_answers = False
    stores_nul = True
    may_come_up = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous,
        busy_timeout: Duration,
        check_foreign_keys: bool,
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
        self._vacuums = True

    def repository(self, names: Names) -> SqliteRepository:
        return SqliteRepository(names)

    def notifier(self, names: Names, *, seldom: bool = False) -> Notifier | None:
        # Asked whether there is a file to watch when somebody subscribes: a framework's tests change it after the app was made.
        return SqliteFileNotifier(self.open_watcher, poll=SELDOM if seldom else POLL, watches=lambda: not self.in_memory)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> SqliteSession:
        raw = unwrap(conn, reading=reading)
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

    def trouble(self, error: BaseException) -> Trouble | None:
        return trouble(error)

    def missing(self, error: BaseException) -> str | None:
        return missing(error)

    def missing_file(self) -> str | None:
        return None if self.in_memory or os.path.exists(self.path) else self.path

    def file_size(self) -> int | None:
        return os.path.getsize(self.path) if os.path.exists(self.path) else 0

    def open_watcher(self) -> sqlite3.Connection:
        """A connection of the caller's own that only reads, to poll `PRAGMA data_version` on."""
        if self.in_memory:
            raise UnsupportedDatabaseError("An in-memory database cannot be watched: nobody else can change it.")
        return open_connection(
            self.path, sqlite3.Connection, writes=False, synchronous=self.synchronous, busy_timeout=self.busy_timeout
        )

    # Maintenance

    def migrate(self, names: Names, known: list[Script]) -> list[str]:
        """Each in one transaction, which begins IMMEDIATE: processes that start together take turns."""
        queries = loader.queries(SQLITE, names)
        with self.read() as session:
            pending = status(session, known, queries).pending
        applied = []
        for script in known:
            if script.name not in pending:
                continue
            with self.block() as session:
                if not session.run(queries["migration_table_exists"], {})[0][0]:
                    session.run(queries["create_migration_table"], {})
                if script.name not in status(session, known, queries).pending:
                    continue  # another process was quicker
                for statement in script.statements:
                    sqlite3.Cursor(session.raw).execute(statement)
                session.run(queries["record_migration"], {"name": script.name})
            applied.append(script.name)
        return applied

    def tidy(self, names: Names, stop: threading.Event) -> None:
        # One that cannot be vacuumed in passing has said so: once is enough.
        self._vacuums = self._vacuums and self.vacuum(names, stop=stop)
        for _ in range(CHECKPOINT_TRIES):
            if self.checkpoint() or stop.wait(CHECKPOINT_PAUSE):
                return

    def vacuum(self, names: Names, *, full: bool = False, stop: threading.Event | None = None) -> bool:
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
            run_script(conn, f"PRAGMA incremental_vacuum({pages})")
            return int(pragma(conn, "freelist_count"))

    def checkpoint(self) -> bool:
        """Write the WAL back and cut it to nothing; False if a reader kept that from happening just now."""
        self._refuse_inside_block()
        if self.in_memory:
            return True
        with self._maintenance() as conn:
            before = pragma(conn, "busy_timeout")
            run_pragma(conn, f"busy_timeout = {int(min(CHECKPOINT_WAIT, self.busy_timeout) * 1000)}")
            try:
                return not pragma(conn, "wal_checkpoint(TRUNCATE)")
            finally:
                run_pragma(conn, f"busy_timeout = {before}")

    @abstractmethod
    def _maintenance(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection that may write, in its turn and with nothing open."""

    # Whose turn it is

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

    def _raise(self, error: sqlite3.OperationalError) -> NoReturn:
        """Raise an error that says what to do."""
        raise_explained(error, self.path, self.busy_timeout)

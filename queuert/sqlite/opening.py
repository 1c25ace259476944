"""Opening a SQLite connection: is the file usable, and every setting that the library relies on."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from queuert.errors import DatabaseUnavailableError, QueuertError, TransactionRequiredError, UnsupportedDatabaseError
from queuert.sqlite.errors import is_busy
from queuert.sqlite.guard import GuardedConnection
from queuert.storage.urls import MEMORY

Synchronous = Literal["off", "normal", "full", "extra"]
Conn = TypeVar("Conn", bound=sqlite3.Connection)

OLDEST_SQLITE = (3, 35, 0)  # RETURNING
CACHED_STATEMENTS = 256
WAL_PAGES = 1_000
WAL_BYTES = 64 * 1024 * 1024


def connect(path: str, factory: type[Conn], *, writes: bool, synchronous: Synchronous, busy_timeout: float) -> Conn:
    """A connection in autocommit, usable from any thread; DatabaseUnavailableError says why it cannot be had."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise UnsupportedDatabaseError(f"SQLite {sqlite3.sqlite_version} is too old: this library needs {oldest} or newer.")
    if path != MEMORY:
        _check_path(path, writes)
    try:
        conn = sqlite3.connect(
            path,
            timeout=busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
            factory=factory,
        )
    except sqlite3.Error as error:
        raise DatabaseUnavailableError(f"{path} cannot be opened: {error}.") from error
    try:
        _set_up(conn, path, writes, synchronous, busy_timeout)
    except sqlite3.DatabaseError as error:
        conn.close()
        if is_busy(error):
            raise
        raise DatabaseUnavailableError(f"{path} cannot be used as a database: {error}.") from error
    except BaseException:
        conn.close()
        raise
    return conn


def _check_path(path: str, writes: bool) -> None:
    parent, problem = os.path.dirname(path), ""
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


def _set_up(conn: sqlite3.Connection, path: str, writes: bool, synchronous: Synchronous, busy_timeout: float) -> None:
    if not pragma(conn, "page_count"):
        run_pragma(conn, "auto_vacuum = INCREMENTAL")  # has an effect only before the first table
    if path != MEMORY:
        if writes or os.access(path, os.W_OK):
            switch_to_wal(conn, path, busy_timeout)
        run_pragma(conn, f"wal_autocheckpoint = {WAL_PAGES}")
        run_pragma(conn, f"journal_size_limit = {WAL_BYTES}")
    run_pragma(conn, f"synchronous = {synchronous}")
    run_pragma(conn, "foreign_keys = ON")
    if not pragma(conn, "foreign_keys"):
        raise UnsupportedDatabaseError("This build of SQLite has no foreign keys; the library needs them.")
    if not writes:
        run_pragma(conn, "query_only = ON")


def switch_to_wal(conn: sqlite3.Connection, path: str, busy_timeout: float) -> None:
    """SQLite may answer "database is locked" at once, whatever the busy timeout: somebody else is switching."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            if pragma(conn, "journal_mode") == "wal":
                return
            mode = pragma(conn, "journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.002, 0.02))
    if mode != "wal":
        raise DatabaseUnavailableError(f"{path} cannot be switched to WAL (it is {mode}): use a local, writable file system.")


def run_pragma(conn: sqlite3.Connection, text: str) -> list[Any]:
    return sqlite3.Cursor(conn).execute(f"PRAGMA {text}").fetchall()


def pragma(conn: sqlite3.Connection, name: str) -> Any:
    rows = run_pragma(conn, name)
    return rows[0][0] if rows else None


def run_script(conn: sqlite3.Connection, script: str) -> None:
    """Run a script of ours, each statement to its end."""
    if isinstance(conn, GuardedConnection):
        conn.own_script(script)
    else:
        sqlite3.Cursor(conn).executescript(script)


def implicit_begin(raw: sqlite3.Connection) -> str:
    """How the driver would open a transaction. It does so by itself only before INSERT, UPDATE, DELETE and REPLACE."""
    autocommit = getattr(raw, "autocommit", -1)  # -1: the style of before Python 3.12
    if autocommit is True or (autocommit == -1 and raw.isolation_level is None):
        raise TransactionRequiredError
    return f"BEGIN {raw.isolation_level or ''}".strip() if autocommit == -1 else "BEGIN"


@contextmanager
def outside_transaction(conn: sqlite3.Connection) -> Iterator[None]:
    """These pragmas do nothing, or fail, inside a transaction; one with autocommit off is always in one."""
    if not conn.in_transaction:
        yield
        return
    if getattr(conn, "autocommit", -1) is not False or conn.total_changes:
        raise QueuertError("Call configure_connection(conn) before the connection's first transaction.")
    switched: Any = conn  # there is no such attribute before Python 3.12
    switched.autocommit = True
    try:
        yield
    finally:
        switched.autocommit = False

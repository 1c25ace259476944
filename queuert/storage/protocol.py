"""What the repository needs from a database: sessions to run named queries in, and the ways to open one.

A *session* is one connection inside one transaction. A *database* opens sessions. Nothing here knows about jobs.

Which way to open a session:

- `read()`: the library's own connection, for reading. It never sees uncommitted work of others.
- `run(work)`: the library's own short write transaction. `work(session)` may be called again after a deadlock, a busy
  database or a lost connection, so it must do nothing but queries.
- `block()`: a transaction that user code gets the raw connection of. Never retried.
- `join(conn)`: the user's own connection in the user's own transaction. Commit and rollback stay the user's.

Inside a `block()`, opening another of the first three on the same thread would wait for itself or miss the block's own
writes; it raises TransactionRequiredError at once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from queuert.errors import TransactionRequiredError
from queuert.hooks import Hooks
from queuert.storage.sqlfiles import Query

ABOVE_READ_COMMITTED = (
    "A chain cannot be completed in this block under REPEATABLE READ or SERIALIZABLE: leave it at READ COMMITTED."
)

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, object]


class Session(Protocol):
    """A connection in a transaction, on which named queries run."""

    dialect: str
    raw: Any
    """The driver's connection: `sqlite3.Connection` or `psycopg.Connection`."""
    changed: int
    """Rows that the last query changed, if it was one statement; told on SQLite only."""
    hooks: Hooks | None
    """Effects that wait for the commit; None on a user's connection without `app.hooks()`: nobody tells us of its commit."""

    def run(self, query: Query, params: Params) -> list[Row]:
        """Run a query; the rows of its last statement that gives any. Errors of the driver pass through untranslated."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what happened inside on an exception, and leave the transaction usable."""

    def ends_with_next(self) -> None:
        """The next query that completes one job is the last one of the transaction: it may carry the COMMIT along."""

    def pipeline(self) -> AbstractContextManager[None]:
        """Send what is run inside without waiting for each answer, where the driver can; results inside still come back."""


class _Thread(threading.local):
    """Where one thread is. The defaults are the class's: a missing attribute would cost an exception on every call."""

    blocks = 0
    joined = False


class Commit(Protocol):
    """A block that was left, on its way to the disk."""

    @property
    def ended(self) -> bool:
        """Whether `wait` returns at once."""

    def wait(self) -> None:
        """Return when it is there, with its effects run; raises what it failed with. To be called once, by any thread."""


class Database(ABC):
    """Opens sessions on one database."""

    dialect: str
    remedy = "run app.migrate(), or `queuert migrate`"
    """What to do when tables are missing or out of date."""
    around_attempt: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered around every attempt, from before the handler to after the commit: what a framework needs there."""

    def __init__(self) -> None:
        self._thread = _Thread()

    @abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """A session for reading on a connection of ours."""

    @abstractmethod
    def run(
        self,
        work: Callable[[Session], T],
        *,
        recover: Callable[[Session], T | None] | None = None,
        single: bool = False,
    ) -> T:
        """Run `work` in a write transaction of our own and commit it, then flush the session's hooks.

        Deadlocks, serialization failures, a busy database and lost connections are retried a few times. When the answer to
        COMMIT was lost, `recover(session)` looks in a new transaction whether it had succeeded: a value is returned as the
        result, None means that it had not and `work` runs again. `single` promises that `work` runs one statement, which
        then needs no BEGIN and COMMIT of its own where the driver commits single statements by itself.
        """

    @abstractmethod
    def block(self, *, shared: bool = False) -> AbstractContextManager[Session]:
        """A transaction for user code; commits on a clean exit and then flushes the session's hooks.

        A `shared` one may be committed together with others, and is undone with them if that fails: for work that can be run
        again. Where there are such commits, it has a method `leave()` for those who need not wait: it takes the place of a
        clean exit and gives a `Commit`.
        """

    @abstractmethod
    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> Session:
        """A session on the user's own connection. Raises TransactionRequiredError if it is in autocommit with nothing open,
        unless only `reading`."""

    @abstractmethod
    def configure(self, conn: Any) -> None:
        """Set on a user's connection what the library needs."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Whether trying again later can help: the database is busy, down, or chose this transaction as a deadlock's victim."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection that is ours; idempotent. A later call opens new ones."""

    @property
    def tells_other_processes(self) -> bool:
        """Whether notices may leave this process; a test's database, which is dropped at its end, is better left alone."""
        return True

    # For connections that are lent by somebody else.

    def lend(self, session: Session) -> AbstractContextManager[Any]:
        """What user code gets of a block's session: the driver's connection, unless the database has something better."""
        return nullcontext(session.raw)

    def keep_connection(self) -> None:  # noqa: B027 - only where there is something to gain
        """This thread of the library asks often and must not wait: it keeps its connection, until `thread_ends`."""

    def thread_ends(self) -> None:  # noqa: B027 - only where connections belong to threads
        """A thread of the library that has used this database is about to end."""

    # Which thread is inside a block.

    @property
    def in_block(self) -> bool:
        return bool(self._thread.blocks)

    def _enter_block(self) -> None:
        """Marks this thread as inside a block, until `_exit_block`."""
        self._thread.blocks += 1

    def _exit_block(self) -> None:
        self._thread.blocks -= 1

    @contextmanager
    def _inside_block(self) -> Iterator[None]:
        """The same around a piece of code."""
        self._enter_block()
        try:
            yield
        finally:
            self._exit_block()

    @contextmanager
    def inside_users_block(self, inside: bool = True) -> Iterator[None]:
        """Marks this thread as inside a block of ours on the user's own connection; `inside=False` steps out for a moment."""
        before = self._thread.joined
        self._thread.joined = inside
        try:
            yield
        finally:
            self._thread.joined = before

    def _refuse_inside_block(self) -> None:
        if self.in_block or self._thread.joined:
            raise TransactionRequiredError(
                "A transaction of this app is open on this thread: pass its connection as conn=, or this call would wait "
                "for itself or miss what the transaction wrote."
            )


class Provider(ABC):
    """A framework that lends its own connections: a target for `Queuert`."""

    @abstractmethod
    def database(self, *, busy_timeout: float, check_foreign_keys: bool) -> Database:
        """The database for one app; connects to nothing. Raises if it is one that cannot be used."""

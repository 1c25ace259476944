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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from queuert.errors import TransactionRequiredError
from queuert.hooks import Hooks
from queuert.storage.loader import Dialect, Query, Script
from queuert.storage.names import Names
from queuert.storage.trouble import Trouble

if TYPE_CHECKING:
    from queuert.notify.protocol import Notifier
    from queuert.storage.repository import Repository

ABOVE_READ_COMMITTED = (
    "A chain cannot be completed in this block under REPEATABLE READ or SERIALIZABLE: leave it at READ COMMITTED."
)

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, object]
Fault = Literal["elsewhere", "database", "closed"]


class Session(Protocol):
    """A connection in a transaction, on which named queries run."""

    raw: Any
    """The driver's connection: `sqlite3.Connection` or `psycopg.Connection`."""
    hooks: Hooks | None
    """Effects that wait for the commit; None on a user's connection without `app.hooks()`: nobody tells us of its commit."""

    def run(self, query: Query, params: Params) -> list[Row]:
        """Run a query; the rows of its last statement that gives any. Errors of the driver pass through untranslated."""

    def change(self, query: Query, params: Params) -> int:
        """Run a query of one statement; how many rows it changed."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what happened inside on an exception, and leave the transaction usable."""

    def fault(self) -> Fault:
        """An error is about to end the transaction: did the database end it, did user code close the connection, or is it
        still good, so that the error came from elsewhere?"""


class Commit(Protocol):
    """A transaction on its way to the disk."""

    @property
    def ended(self) -> bool:
        """Whether `wait` returns at once."""

    def wait(self) -> None:
        """Return when it is there, with its effects run; raises what it failed with. To be called once, by any thread."""


class Committed:
    """A transaction that is on the disk, with effects that are still to run."""

    ended = True

    def __init__(self, hooks: Hooks | None = None) -> None:
        self._hooks = hooks

    def wait(self) -> None:
        if self._hooks is not None:
            self._hooks.flush()


class Block(ABC):
    """A transaction for user code. Left by `commit`, by a clean exit, which commits and waits, or by an error, which undoes it.

    Its effects run when the commit is waited for, and are forgotten when it is rolled back. Once `commit` was called it is
    left, also if that raised: its connection may be somebody else's by then, and to leave it again does nothing.
    """

    session: Session
    _left = False

    @abstractmethod
    def __enter__(self) -> Session: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None: ...

    @abstractmethod
    def commit(self) -> Commit:
        """Commit, in the place of a clean exit. It may still be under way: `wait` for it."""

    def run_and_commit(self, query: Query, params: Params) -> tuple[list[Row], Commit | None] | None:
        """Run a last query that raises where it must not be committed, and COMMIT, in one round trip; None where that cannot
        be done, and nothing was. Without a commit the query has refused, and the transaction is a new one to look around in.
        """
        return None


class ManagedBlock(Block):
    """A block made of a context manager that commits and rolls back by itself."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> Session:
        self.session = session = self._manager.__enter__()
        return session  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._left else self._manager.__exit__(kind, error, traceback)

    def commit(self) -> Commit:
        self._left = True
        self._manager.__exit__(None, None, None)
        return Committed()


class _Thread(threading.local):
    """Where one thread is. The defaults are the class's: a missing attribute would cost an exception on every call."""

    blocks = 0
    joined = False
    impatient = False


class Database(ABC):
    """Opens sessions on one database."""

    dialect: Dialect
    # What to do when tables are missing or out of date.
    remedy = "run app.migrate(), or `queuert migrate`"
    # Whether the answer of a statement that was carried out can get lost, with the connection.
    loses_answers: bool
    # Whether text may hold a NUL character.
    stores_nul: bool
    # Whether a worker may start before the database is there: a server comes up by itself, a file that is not there does not.
    may_come_up = True
    # Entered around every attempt, from before the handler to after the commit: what a framework needs there.
    around_attempt: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(self) -> None:
        self._thread = _Thread()

    @abstractmethod
    def repository(self, names: Names) -> Repository:
        """The operations on the tables of these names."""

    def notifier(self, names: Names, *, seldom: bool = False) -> Notifier | None:
        """What carries notices to other processes through the database, if it can.

        `seldom` says that another notifier carries what we tell, so that this one has little to do.
        """
        return None

    # Sessions

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
    def block(self, *, shared: bool = False) -> Block:
        """A transaction for user code.

        A `shared` one may be committed together with others, and is undone with them if that fails: for work that can be run
        again.
        """

    @abstractmethod
    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> Session:
        """A session on the user's own connection. Raises TransactionRequiredError if it is in autocommit with nothing open,
        unless only `reading`."""

    def lend(self, session: Session) -> AbstractContextManager[Any]:
        """What user code gets of a block's session: the driver's connection, unless the database has something better."""
        return nullcontext(session.raw)

    # Errors

    @abstractmethod
    def trouble(self, error: BaseException) -> Trouble | None:
        """What an error means: an outage, a job's own fault or a broken set-up; None where it is not one of the database."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether trying again later can help: the database is busy, down, or chose this transaction as a deadlock's victim."""
        return self.trouble(error) is Trouble.OUTAGE

    @abstractmethod
    def missing(self, error: BaseException) -> str | None:
        """What an error says of a table, column or function that is not there; None if it is about something else."""

    # Connections

    @abstractmethod
    def configure(self, conn: Any) -> None:
        """Set on a user's connection what the library needs."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection that is ours; idempotent. A later call opens new ones."""

    def reserve(self, connections: int) -> None:  # noqa: B027 - only where there is a pool of ours
        """Make room for so many connections more, or for fewer if it is negative: a worker runs, or has ended."""

    def keep_connection(self) -> None:  # noqa: B027 - only where there is something to gain
        """This thread of the library asks often and must not wait: it keeps its connection, until `thread_ends`."""

    def own_connection(self) -> None:  # noqa: B027 - only where connections are shared
        """This thread of the library must never wait for a connection of the others: it opens its own, until `thread_ends`."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """What this thread asks of the database in here may take so long; then `cut_overdue` ends it with an outage."""
        return nullcontext()

    def cut_overdue(self) -> list[str]:
        """End what threads wait for beyond what they said; the names of these threads."""
        return []

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """What this thread does in here waits for nobody's lock for long: it is not urgent."""
        self._thread.impatient = True
        try:
            yield
        finally:
            self._thread.impatient = False

    def thread_ends(self) -> None:  # noqa: B027 - only where connections belong to threads
        """A thread of the library that has used this database is about to end."""

    def missing_file(self) -> str | None:
        """The file that would be made if it were used now, if there is one."""
        return None

    def file_size(self) -> int | None:
        """The bytes of the database's file, if it is one."""
        return None

    @property
    def tells_other_processes(self) -> bool:
        """Whether notices may leave this process; a test's database, which is dropped at its end, is better left alone."""
        return True

    # Maintenance

    @abstractmethod
    def migrate(self, names: Names, known: list[Script]) -> list[str]:
        """Apply the migrations that are pending, and replace the functions; the names of what was applied."""

    @abstractmethod
    def vacuum(self, names: Names, *, full: bool = False, stop: threading.Event | None = None) -> bool:
        """Give back the space of deleted rows; False if that cannot be done without `full`."""

    def tidy(self, names: Names, stop: threading.Event) -> None:  # noqa: B027 - a server does so by itself
        """After much was deleted: give space back in passing, until `stop` is set."""

    def ambient(self) -> object | None:
        """The connection of a transaction that a framework has open on this thread: a call without `conn=` takes part in it."""
        return None

    # Which thread is inside a block

    @property
    def in_block(self) -> bool:
        return bool(self._thread.blocks)

    @property
    def in_users_block(self) -> bool:
        """Whether this thread is in a block of ours on the user's own connection."""
        return self._thread.joined and not self._thread.blocks

    def _enter_block(self) -> None:
        """Marks this thread as inside a block, until `_exit_block`."""
        self._thread.blocks += 1

    def _exit_block(self) -> None:
        self._thread.blocks -= 1

    @contextmanager
    def _inside_block(self) -> Iterator[None]:
        """Marks this thread as inside a block around a piece of code."""
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

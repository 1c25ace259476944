"""What the domain modules share: the database, the repository, the registered types, and how to tell others of a change.

It decides on which session a call runs (`conn=` or one of our own) and where the notices of a change go: after the commit
where we learn of it, inside the transaction where we do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from queuert.error_codes import ErrorCodes
from queuert.failure_log import FailureLog
from queuert.hooks import Hooks
from queuert.ids import Ids
from queuert.job_types import JobTypes
from queuert.notify.protocol import Announcement, Channel, Notifier
from queuert.observing import Observer
from queuert.payloads import Payloads
from queuert.storage.migrations import explain
from queuert.storage.names import Names
from queuert.storage.protocol import Database, Session

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What an app was told about its payloads and its history."""

    max_payload_bytes: int = 1_048_576
    history: str = "all"
    # Of the database's own channels, where it carries notices to other processes.
    channel_prefix: str | None = None
    error_codes: ErrorCodes | None = None
    # Whether each completed job is a line of the log at INFO.
    log_finished: bool = False


class _Ambient(threading.local):
    hooks: Hooks | None = None


class Context:
    """One app's database with everything the domain needs around it."""

    def __init__(
        self, database: Database, names: Names, types: JobTypes, notifier: Notifier, ids: Ids, settings: Settings
    ) -> None:
        self.database = database
        self.names = names
        self.repository = database.repository(names)
        self.types = types
        self.notifier = notifier
        self.ids = ids
        self.settings = settings
        self.payloads = Payloads(types, max_bytes=settings.max_payload_bytes, stores_nul=database.stores_nul)
        self.failures = FailureLog()
        # Told of what happens, if somebody wants to know.
        self.observer: Observer | None = None
        self._ambient = _Ambient()

    # Sessions

    def write(
        self,
        conn: object | None,
        work: Callable[[Session], T],
        *,
        recover: Callable[[Session], T | None] | None = None,
        single: bool = False,
    ) -> T:
        """Run `work` on the user's connection, in the framework's transaction, or in one of our own."""
        try:
            conn = self.database.ambient() if conn is None else conn
            if conn is not None:
                return work(self.join(conn))
            return self.database.run(work, recover=recover, single=single)
        except Exception as error:
            self._explain(error)
            raise

    def read(self, conn: object | None, work: Callable[[Session], T]) -> T:
        with self.explained():
            conn = self.database.ambient() if conn is None else conn
            if conn is not None:
                return work(self.database.join(conn, reading=True, hooks=self.ambient_hooks))
            with self.database.read() as session:
                return work(session)

    def join(self, conn: object) -> Session:
        return self.database.join(conn, hooks=self.ambient_hooks)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces a driver's error that has a clear cause, such as missing tables, by one that says what to do."""
        try:
            yield
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        clear = explain(error, self.database, self.names)
        if clear is not None:
            raise clear from error

    # Effects after the commit

    @property
    def ambient_hooks(self) -> Hooks | None:
        """The hooks of `app.hooks()` around this call, on this thread."""
        return self._ambient.hooks

    @contextmanager
    def hooks(self) -> Iterator[Hooks]:
        """Collects effects; inside another such block it is a part of that one."""
        outer = self.ambient_hooks
        if outer is not None:
            with outer.savepoint():
                yield outer
            return
        hooks = self._ambient.hooks = Hooks()
        try:
            yield hooks
        except BaseException:
            hooks.discard()
            raise
        finally:
            self._ambient.hooks = None
        hooks.flush()

    def announce(
        self, session: Session, *, ready: Sequence[str] = (), closed: Sequence[str] = (), lost: Sequence[str] = ()
    ) -> None:
        """Tell others, when it is committed, which types have jobs that are ready, which chains have closed, and which jobs
        were taken from their workers."""
        if not (ready or closed or lost):
            return
        announcement = Announcement(self.notifier, ready, tuple(closed), tuple(lost))
        if session.hooks is None:
            self.notifier.notify_in_transaction(session, announcement.notices())
        else:
            session.hooks.on_commit(announcement)

    def channel_in_transaction(self, session: Session, channel: Channel) -> str | None:
        """The channel that a statement of this session itself should tell, since nobody tells us of its commit."""
        prefix = self.settings.channel_prefix
        return f"{prefix}_{channel.value}" if prefix is not None and session.hooks is None else None

"""What the app and the workers need from a notifier."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from queuert.storage.protocol import Session

T = TypeVar("T")


class Channel(str, Enum):
    """What a notice is about; the value is the channel's suffix on the wire."""

    SCHEDULED = "sched"
    CHAIN_CLOSED = "chainc"
    OWNERSHIP_LOST = "owls"


@dataclass(frozen=True)
class Notice:
    """Something happened: on SCHEDULED to a type's jobs, on CHAIN_CLOSED to a chain, on OWNERSHIP_LOST to a job.

    The payload is the type's name, the chain's or the job's id. An empty one means that anything on this channel may
    have changed: look again. On SCHEDULED, `count` is how many jobs of the type have become ready: a hint of how many
    workers need to look. Two notices are equal if they are about the same, whatever their counts.
    """

    channel: Channel
    payload: str
    count: int = field(default=1, compare=False)


ANYTHING = tuple(Notice(channel, "") for channel in Channel)
"""What is delivered when something may have been missed."""


@dataclass
class Announcement:
    """What a transaction has changed that others wait for; called when it is committed."""

    notifier: Notifier = field(repr=False)
    # The types that have jobs to claim, each job of them by itself.
    ready: Sequence[str] = ()
    # The chains that have closed.
    closed: tuple[str, ...] = ()
    # The jobs that were taken from their workers.
    lost: tuple[str, ...] = ()

    def __call__(self) -> None:
        if self.ready or self.lost:
            self.notifier.publish(self._urgent())
        if self.closed:
            self.notifier.publish_all(Channel.CHAIN_CLOSED, self.closed)

    def notices(self) -> list[Notice]:
        return [*self._urgent(), *(Notice(Channel.CHAIN_CLOSED, chain_id) for chain_id in self.closed)]

    def _urgent(self) -> list[Notice]:
        if len(self.ready) == 1:
            ready = [Notice(Channel.SCHEDULED, self.ready[0])]
        else:
            ready = [Notice(Channel.SCHEDULED, type_name, count) for type_name, count in Counter(self.ready).items()]
        return [*ready, *(Notice(Channel.OWNERSHIP_LOST, job_id) for job_id in self.lost)]


Callback = Callable[[Notice], None]
"""Called in a thread that is not its own: it sets an event, and neither blocks nor queries."""

Wants = Callable[[Notice], bool]
"""Whether a subscriber would look at once, and so use up one of the jobs that a notice is about."""


class Subscription:
    """Ends with `close()` or the `with` block; closing twice is fine, from any thread, also from the callback."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self) -> None:
        self._end()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class Notifier(ABC):
    """Carries notices between the threads of this process and, if it can, between processes. Thread-safe."""

    # Whether a statement of ours can tell others itself, on the channels of the database.
    tells_in_transaction = False

    @abstractmethod
    def publish(self, notices: Iterable[Notice]) -> None:
        """After a commit of ours: tell this process at once, and others soon.

        Never raises, never waits for I/O. Duplicates are sent once.
        """

    def publish_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        """Publish many payloads of one channel. Most chains close with nobody waiting for them."""
        self.publish(Notice(channel, payload) for payload in payloads)

    @abstractmethod
    def subscribe(self, callback: Callback, *, channels: Container[Channel]) -> Subscription:
        """Call `callback` with every notice on these channels until the subscription is closed.

        Who subscribes first and then looks at the database misses nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """End all subscriptions and threads; idempotent. A later call starts them again."""

    def notify_in_transaction(self, session: Session, notices: Iterable[Notice]) -> None:  # noqa: B027 - not all have to do it
        """Have the database itself tell others when a transaction that is not ours commits, where it can.

        One statement for all of them. Here, nothing: SQLite's watchers see every commit, whoever made it.
        """


class HintingNotifier(Notifier):
    """One that counts: of the idle workers of all processes, about as many look as jobs have become ready."""

    @abstractmethod
    def subscribe(self, callback: Callback, *, channels: Container[Channel], wants: Wants | None = None) -> Subscription:
        """As for every notifier. A subscriber that says what it `wants` is told of a ready job it wants only if there is
        one left for it, and of those it does not want in any case: it is busy, and looks when it no longer is."""


class PerProcess(Generic[T]):
    """A value that each process makes for itself: after a fork the child starts afresh.

    The parent's value stays referenced for good. Its locks may be held by threads that the child does not have, and to
    close its connections would harm the parent.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        value = self._values.get(os.getpid())
        # setdefault is atomic: of two threads that come here at once, both get the same value.
        return self._values.setdefault(os.getpid(), self._make()) if value is None else value

    def peek(self) -> T | None:
        """This process's value, if it has made one."""
        return self._values.get(os.getpid())

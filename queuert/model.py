"""The records that users read: frozen, compared by value, times in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT_co = TypeVarWithDefault("OutputT_co", covariant=True, default=Any)
else:
    OutputT_co = TypeVar("OutputT_co", covariant=True)


class Status(str, Enum):
    """The state of a job; a chain's state is that of its tail."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        return self.value

    @property
    def closed(self) -> bool:
        return self in CLOSED


CLOSED: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
OPEN: Final = frozenset({Status.BLOCKED, Status.PENDING, Status.RUNNING})


@dataclass(frozen=True)
class Job:
    """One unit of work, with every column of its row."""

    id: str
    type_name: str
    chain_id: str
    chain_type_name: str
    chain_index: int
    input: Any
    output: Any
    status: Status
    priority: int
    created_at: datetime
    scheduled_at: datetime
    completed_at: datetime | None
    completed_by: str | None
    attempt: int
    max_attempts: int | None
    attempts_forgiven: int
    last_attempt_at: datetime | None
    last_attempt_error: str | None
    error_code: str | None
    leased_by: str | None
    leased_until: datetime | None
    lease_token: int | None
    heartbeat_at: datetime | None
    deduplication_key: str | None
    continued_to: str | None
    chain_created_at: datetime
    open_blockers: int
    blocker_count: int
    suspect: bool
    chain_trace_context: str | None
    trace_context: str | None
    # The type of the chain that is started if this job fails for good, and that chain once it has.
    on_failed: str | None = None
    failure_chain_id: str | None = None
    # Whether its blockers must have completed, or only have closed.
    blockers_until: str = "completed"
    # What it counts for, and its place where the jobs of a key run in order.
    limit_name: str | None = None
    limit_key: str | None = None
    limit_at: datetime | None = None
    # How often in a row it was lost with its worker, and how often in a row a failure was not held against it.
    losses: int = 0
    excuses: int = 0
    # How far it is, as its handler has told: see `RunningJob.progress`.
    progress_fraction: float | None = None
    progress_message: str | None = None

    # What is wrong with its row, if somebody else has written it.
    _unreadable: ClassVar[str | None] = None

    @property
    def attempts_used(self) -> int:
        return self.attempt - self.attempts_forgiven


@dataclass(frozen=True)
class Failure:
    """The input of a chain that is started because a job failed for good: `on_failed`."""

    chain_id: str
    chain_type_name: str
    job_id: str
    type_name: str
    # As it was stored: plain JSON data.
    input: Any
    error_code: str | None
    error_detail: str | None
    # Used since it was started, or retried by somebody.
    attempts: int


@dataclass(frozen=True)
class Chain(Generic[OutputT_co]):
    """A job and its continuations, read through its first job and its tail. `output` is of the type that was declared."""

    id: str
    type_name: str
    status: Status
    input: Any
    output: OutputT_co
    created_at: datetime
    completed_at: datetime | None
    tail_id: str
    tail_type_name: str
    error_code: str | None = None
    deduplicated: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Progress:
    """How far a chain is. `done`, `total` and `failed` count the blockers of its newest job; those that failed are not done.

    `fraction` goes from 0 to 1: the part of its blockers that is done, until its handler tells more, with a `message`; 1.0 when
    the chain is completed.
    """

    done: int
    total: int
    failed: int
    fraction: float
    message: str | None


@dataclass(frozen=True)
class Attempt:
    """One finished try of one job by one worker."""

    job_id: str
    attempt: int
    worker_id: str | None
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str
    error_code: str | None
    error_detail: str | None
    retry_at: datetime | None


@dataclass(frozen=True)
class TimelineEntry:
    """One thing that happened to a job."""

    event: str
    at: datetime
    actor: str | None
    detail: dict[str, Any]


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of some process, as its last sign of life told: the slots it has and how many are in use, how many claimed jobs
    wait for one, and how many handlers run on though their job was taken away (`zombies`, which are busy too).

    `lost` is one that was not heard of for three signs of life; it stays for a while.
    """

    id: str
    name: str
    host: str
    pid: int
    version: str
    started_at: datetime
    last_seen_at: datetime
    concurrency: int
    busy: int
    waiting: int
    zombies: int
    types: tuple[str, ...]
    stopping: bool
    lost: bool


@dataclass(frozen=True)
class Pause:
    """What must not be claimed: the jobs of a type, or of all types where `type_name` is None. Without `until` it lasts until
    it is resumed."""

    type_name: str | None
    since: datetime
    until: datetime | None
    reason: str | None
    actor: str | None


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing; `next_cursor` is None on the last.

    Where no index knows what was asked for, `looked_at` is the number of rows that were looked at: there may be more that fit
    behind them, also where a page has no items, as long as there is a cursor.
    """

    items: list[T]
    next_cursor: str | None
    looked_at: int | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

"""What the queries give back: rows turned into records, and the small facts that no public record tells.

Records come with `input` and `output` as JSON text; what they decode to is for the layers above, which know the job types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from queuert.model import Attempt, Chain, Job, Status
from queuert.storage.names import CLAIMED_COLUMNS, JOB_COLUMNS
from queuert.storage.protocol import Row
from queuert.storage.times import UnreadableTime, iso, parse_iso

STATUS: Final = {status.value: status for status in Status}

_TIME_NAMES: Final = frozenset(name for name in JOB_COLUMNS if name.endswith("_at") or name == "leased_until")
_TIMES: Final = tuple(index for index, name in enumerate(JOB_COLUMNS) if name in _TIME_NAMES)
_STATUS_AT: Final = JOB_COLUMNS.index("status")
_SUSPECT_AT: Final = JOB_COLUMNS.index("suspect")
_NUMBERS: Final = ("chain_index", "priority", "attempt", "attempts_forgiven", "open_blockers", "blocker_count")
_NUMBERS_AT: Final = tuple(JOB_COLUMNS.index(name) for name in _NUMBERS)
_IDS: Final = tuple(JOB_COLUMNS.index(name) for name in ("id", "chain_id", "continued_to", "failure_chain_id"))
_CLAIMED_TIMES: Final = tuple(name for name in CLAIMED_COLUMNS if name in _TIME_NAMES)
_JUST_CLAIMED: Final = {**dict.fromkeys(JOB_COLUMNS), "status": Status.RUNNING, "open_blockers": 0}
_TEXTS: Final = ("type_name", "chain_type_name", "input")
_MAYBE_TEXTS: Final = ("deduplication_key", "completed_by", "leased_by", "error_code", "last_attempt_error", "progress_message")
_TEXT: Final = (str, type(None))
_NUMBER: Final = (int, type(None))
# Columns, the types of their values, and what is shown in the place of another.
_KINDS: Final[tuple[tuple[tuple[str, ...], tuple[type, ...], object], ...]] = (
    (_NUMBERS, (int,), 0),
    (_TEXTS, (str,), ""),
    (_MAYBE_TEXTS, _TEXT, None),
    (("max_attempts",), _NUMBER, None),
    (("progress_fraction",), (float, type(None)), None),
)
# Shown as they are stored: whoever repairs the row needs to see them.
_PAYLOADS: Final = frozenset({"input", "output"})
# One more would not fit into the column on PostgreSQL.
LAST_ATTEMPT: Final = 2**31 - 1

__all__ = ["iso", "parse_iso"]


class Claim(NamedTuple):
    """What a claim has taken, as the database tells it."""

    rows: Any
    worker: str
    token: int
    suspect: bool
    # Whether there may be more: it took as many as were asked for, or stepped over some that others have locked.
    more: bool


class Freed(NamedTuple):
    """A job that became pending, or was given its first status."""

    id: str
    type_name: str
    status: Status


class Completed(NamedTuple):
    """What a batch of completions did."""

    # The jobs that are completed. One whose lease was lost is not among them, and nothing was written for it.
    ids: set[str]
    freed: Sequence[Freed] = ()
    # Jobs that were left out: somebody else has locked their rows.
    locked: frozenset[str] = frozenset()
    # Whether nothing was done, since the transaction sees only what was committed before it began.
    fixed_snapshot: bool = False


class Released(NamedTuple):
    """What waited for chains that did not complete, and waits no more."""

    freed: Sequence[Freed]
    fixed_snapshot: bool = False


class EndedAttempt(NamedTuple):
    """An attempt that was ended without completing, and what became of its job."""

    id: str
    chain_id: str
    type_name: str
    status: Status
    scheduled_at: datetime


class LeaseState(NamedTuple):
    """Who holds a job."""

    id: str
    status: Status
    leased_by: str | None
    lease_token: int | None


class Level(NamedTuple):
    """Pending jobs of one type and priority, and up to which time they were claimed already."""

    type_name: str
    priority: int
    since: datetime


class Running(NamedTuple):
    """A running job, for the statistics."""

    job_id: str
    type_name: str
    worker_id: str | None
    heartbeat_at: datetime | None
    attempt: int
    seconds: float
    # How long ago it was heard of, and for how long its lease still lasts: negative where that has ended.
    heartbeat_seconds: float = 0.0
    lease_seconds: float = 0.0


class _Problem(NamedTuple):
    column: str
    stored: object

    def __str__(self) -> str:
        return f"{self.column} is {getattr(self.stored, 'stored', self.stored)!r:.100}"


class RowReader:
    """Makes records of rows. `parse_time` is for databases that store times as text; others give datetimes."""

    def __init__(self, *, text_ids: bool, parse_time: Callable[[Any], Any] | None = None) -> None:
        self._text_ids = text_ids
        self._parse_time = parse_time

    def time(self, value: Any) -> Any:
        return value if self._parse_time is None else self._parse_time(value)

    def job(self, row: Row) -> Job:
        values = list(row)
        values[_STATUS_AT] = STATUS[values[_STATUS_AT]]
        values[_SUSPECT_AT] = bool(values[_SUSPECT_AT])
        if self._parse_time is not None:
            for index in _TIMES:
                values[index] = self._parse_time(values[index])
        if not self._text_ids:
            for index in _IDS:
                values[index] = None if values[index] is None else str(values[index])
        # Where columns take any value, whatever their type, as SQLite's do.
        if self._parse_time is not None and (
            bytes in map(type, values) or any(type(values[index]) is not int for index in _NUMBERS_AT)
        ):
            return _mended(dict(zip(JOB_COLUMNS, values, strict=True)))
        # Hundreds of these are made a second: filling the dict is three times as fast as a frozen __init__.
        job = object.__new__(Job)
        job.__dict__.update(zip(JOB_COLUMNS, values, strict=True))
        return job

    def claimed(self, rows: Iterable[Sequence[Any]], claim: Claim) -> list[Job]:
        """The jobs of a claim. Thousands of these are made a second, and most of their times are the same."""
        known = {**_JUST_CLAIMED, "leased_by": claim.worker, "lease_token": claim.token, "suspect": claim.suspect}
        times: dict[Any, Any] = {}
        jobs = []
        for row in rows:
            job = object.__new__(Job)
            values = job.__dict__
            values.update(known)
            values.update(zip(CLAIMED_COLUMNS, row, strict=True))
            if self._parse_time is not None:
                for name in _CLAIMED_TIMES:
                    text = values[name]
                    if text not in times:
                        times[text] = self._parse_time(text)
                    values[name] = times[text]
            if not self._text_ids:
                values["id"], values["chain_id"] = str(values["id"]), str(values["chain_id"])
            jobs.append(job if _is_sound(values) else _mended(values))
        jobs.sort(key=_claim_order)
        return jobs

    def chain(self, row: Row) -> Chain:
        identity, type_name, status, input_, output, created, completed, tail, tail_type, code = row[:10]
        return Chain(
            id=str(identity),
            type_name=type_name,
            status=STATUS[status],
            input=input_,
            output=output,
            created_at=self.time(created),
            completed_at=self.time(completed),
            tail_id=str(tail),
            tail_type_name=tail_type,
            error_code=code,
        )

    def attempt(self, row: Row) -> Attempt:
        r, time = row, self.time
        return Attempt(str(r[0]), r[1], r[2], time(r[3]), time(r[4]), time(r[5]), r[6], r[7], r[8], time(r[9]))


def _is_sound(values: dict[str, Any]) -> bool:
    """Whether the row of a job that was claimed is one that this library could have written. Half a microsecond each."""
    return (
        type(values["created_at"]) is datetime
        and type(values["scheduled_at"]) is datetime
        and type(values["chain_created_at"]) is datetime
        and type(values["last_attempt_at"]) is datetime
        and type(values["priority"]) is int
        and type(values["attempt"]) is int
        and 0 < values["attempt"] < LAST_ATTEMPT
        and type(values["attempts_forgiven"]) is int
        and type(values["input"]) is str
        and type(values["max_attempts"]) in _NUMBER
        and type(values["deduplication_key"]) in _TEXT
    )


def _mended(values: dict[str, Any]) -> Job:
    """A job of a row that this library has not written: what can be shown, and what is wrong with it."""
    problems = [_Problem(name, values[name]) for name in JOB_COLUMNS if type(values[name]) is UnreadableTime]
    if values["attempt"] == LAST_ATTEMPT:
        problems.append(_Problem("attempt", LAST_ATTEMPT))
    for names, kinds, instead in _KINDS:
        for name in names:
            if type(values[name]) not in kinds:
                problems.append(_Problem(name, values[name]))
                if name not in _PAYLOADS:
                    values[name] = instead
    job = object.__new__(Job)
    job.__dict__.update(values, _unreadable="; ".join(map(str, problems)) or None)
    return job


def freed(row: Row) -> Freed:
    """A job that became pending: id, type, and its status if that is told."""
    return Freed(str(row[0]), row[1], STATUS[row[2]] if len(row) > 2 else Status.PENDING)


def _claim_order(job: Job) -> tuple[int, datetime, str]:
    return (-job.priority, job.scheduled_at, job.id)

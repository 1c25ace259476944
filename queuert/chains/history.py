"""What happened and how things stand: attempts, the timeline of a job, and statistics.

A finished attempt is a row; the one under way is on the job's own row; acts of operators are events. The timeline merges the
three. Statistics count through indexes and stop at a limit, so that a large table does not make them slow: one limit for all
types of a state together, or twenty types would take twenty times as long as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from queuert.chains.pace import TypeRates, claimed_ahead, rates, waiting
from queuert.chains.pages import checked_names
from queuert.context import Context
from queuert.errors import JobNotFoundError
from queuert.model import Attempt, Job, Status, TimelineEntry, WorkerInfo
from queuert.storage.protocol import Session
from queuert.storage.records import Running

LOST_AFTER: Final = 15.0
"""Seconds: three signs of life of a worker that did not come (`worker/leases.py`)."""
LONGEST_RUNNING: Final = 20
MOST_STRANDED: Final = 20
MAX_COUNT: Final = 2**31 - 1
SHARE: Final = 500
"""Each type is counted at least so far, however many there are to share the limit."""
TRIED: Final = (Status.RUNNING, Status.FAILED)
UNTRIED: Final = (Status.PENDING, Status.BLOCKED)
"""Not tried yet, but for those of the pending that are to be tried again."""


@dataclass(frozen=True)
class Stats:
    """How things stand. Counts are of jobs, and stop at the limit that was asked for; `capped` names the states that did.

    In those, and only there, the count of a type may have stopped earlier, at its share of the limit: `capped_by_type` names
    the states of each type of which there are at least as many as it says. All other counts are exact.
    """

    by_status: dict[str, int]
    by_type: dict[str, dict[str, int]]
    oldest_running: Running | None
    longest_running: list[Running]
    oldest_ready_seconds: float | None
    attempts: dict[int, int]
    attempts_by_type: dict[str, dict[int, int]]
    error_codes: list[tuple[str, int]]
    error_examples: dict[str, str]
    stranded: int
    capped: set[str] = field(default_factory=set)
    capped_by_type: dict[str, set[str]] = field(default_factory=dict)
    # The pending jobs by type: due, not due yet, and tried before and not due again. `capped_waiting` names the types of which
    # one of these stopped at the limit.
    ready: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    retrying: dict[str, int] = field(default_factory=dict)
    capped_waiting: set[str] = field(default_factory=set)
    # By type: for how many seconds the oldest ready job has been due.
    oldest_ready: dict[str, float] = field(default_factory=dict)
    # By type: of those that are running, how many only wait in their worker's line.
    claimed_ahead: dict[str, int] = field(default_factory=dict)
    rates: dict[str, TypeRates] = field(default_factory=dict)
    # In how many seconds what is ready is done at the rate of the last minute; None if it would never be, or grows.
    eta_seconds: float | None = None
    # By error code: the types whose jobs carry it.
    error_types: dict[str, list[str]] = field(default_factory=dict)
    # Up to 20 of them.
    stranded_jobs: list[str] = field(default_factory=list)


@dataclass
class _Counted:
    """How many jobs of one state there are of each type: up to `most`, and one more tells that there are more."""

    most: int | None
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    @property
    def found(self) -> list[str]:
        return [name for name, number in self.numbers.items() if number]

    @property
    def stopped(self) -> list[str]:
        return [] if self.most is None else [name for name, number in self.numbers.items() if number > self.most]

    def shown(self, name: str) -> int:
        return _up_to(self.most, self.numbers[name])


class History:
    """Reads what happened."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    def attempts(
        self, id: object, conn: object | None, *, limit: int | None = None, before: int | None = None
    ) -> list[Attempt]:
        identity = self._context.ids.check(id)
        _check_page(limit, before)

        def work(session: Session) -> list[Attempt]:
            self._job(session, identity)
            return self._repository.list_attempts(session, identity, before=before, limit=limit)

        return self._context.read(conn, work)

    def timeline(
        self, id: object, conn: object | None, *, limit: int | None = None, before: int | None = None
    ) -> list[TimelineEntry]:
        identity = self._context.ids.check(id)
        _check_page(limit, before)

        def work(session: Session) -> list[TimelineEntry]:
            job = self._job(session, identity)
            attempts = self._repository.list_attempts(session, identity, before=before, limit=limit)
            return _timeline(job, attempts, self._repository.list_events(session, identity, limit=limit))

        return self._context.read(conn, work)

    def _job(self, session: Session, identity: str) -> Job:
        job = self._repository.get_jobs(session, [identity]).get(identity)
        if job is None:
            raise JobNotFoundError(identity)
        return job

    def workers(self, conn: object | None) -> list[WorkerInfo]:
        return self._context.read(conn, lambda session: self._repository.list_workers(session, LOST_AFTER))

    def stats(
        self, types: Iterable[object] | None, count_limit: int | None, conn: object | None, *, share: int = SHARE
    ) -> Stats:
        wanted = checked_names(types, "types")
        if count_limit is not None and (isinstance(count_limit, bool) or not isinstance(count_limit, int)):
            raise TypeError(f"count_limit must be a whole number or None, not {count_limit!r}.")
        if count_limit is not None and not 1 <= count_limit <= MAX_COUNT:
            raise ValueError(f"count_limit must be from 1 to {MAX_COUNT:,}, or None to count all.")
        return self._context.read(conn, lambda session: self._stats(session, wanted, count_limit, share))

    def _stats(self, session: Session, wanted: list[str] | None, limit: int | None, share: int) -> Stats:
        repository = self._repository
        types = repository.job_types(session) if wanted is None else wanted
        counts = self._count(session, types, limit, share)
        totals = {status: counted.total for status, counted in counts.items()}
        by_type: dict[str, dict[str, int]] = {}
        capped_by_type: dict[str, set[str]] = {}
        for status, counted in counts.items():
            for name in counted.found:
                by_type.setdefault(name, {})[status] = counted.shown(name)
            for name in counted.stopped:
                capped_by_type.setdefault(name, set()).add(status)
        by_attempt = self._count_attempts(session, counts)
        attempts = sum(by_attempt.values(), Counter())
        errors = repository.count_errors(session, types, limit)
        # What was not found above needs no look.
        running, blocked, pending = (counts[status] for status in (Status.RUNNING, Status.BLOCKED, Status.PENDING))
        longest = repository.longest_running(session, running.found, LONGEST_RUNNING) if running.found else []
        waits = waiting(repository, session, pending.found, pending.most)
        done, left = rates(repository, session, types, waits.ready)
        order = repository.running_order(session) if running.found else {}
        workers = repository.list_workers(session, LOST_AFTER) if order else []
        stranded = repository.count_stranded(session, blocked.found, blocked.most) if blocked.found else 0
        stuck = repository.stranded_jobs(session, blocked.found, blocked.most, MOST_STRANDED) if stranded else []
        return Stats(
            by_status={status: _up_to(limit, total) for status, total in totals.items()},
            by_type=dict(sorted(by_type.items())),
            oldest_running=longest[0] if longest else None,
            longest_running=longest,
            oldest_ready_seconds=max(waits.oldest.values(), default=None),
            attempts={attempt: _up_to(limit, number) for attempt, number in sorted(attempts.items())},
            attempts_by_type={
                name: {attempt: _up_to(limit, number) for attempt, number in sorted(numbers.items()) if number > 0}
                for name, numbers in sorted(by_attempt.items())
            },
            error_codes=[(code, _up_to(limit, number)) for code, number, *_ in errors],
            error_examples={code: example for code, _, example, _ in errors},
            error_types={code: names for code, *_, names in errors},
            stranded=_up_to(limit, stranded),
            capped=set() if limit is None else {status for status, total in totals.items() if total > limit},
            capped_by_type=capped_by_type,
            ready=waits.ready,
            scheduled=waits.scheduled,
            retrying=waits.retrying,
            capped_waiting=waits.capped,
            oldest_ready=waits.oldest,
            claimed_ahead=claimed_ahead(order, workers, running.found),
            rates=done,
            eta_seconds=left,
            stranded_jobs=stuck,
        )

    def _count(self, session: Session, types: list[str], limit: int | None, share: int) -> dict[Status, _Counted]:
        """The jobs of each state, by type: all of them where the state has no more than the limit, else some of each type."""
        most = None if limit is None else min(limit, max(share, limit // max(1, len(types))))
        counts = {status: _Counted(most) for status in Status}
        self._count_up_to(session, types, counts)
        for status, counted in counts.items():
            # What the rare types leave of the limit is for the frequent ones. As often as this is done, it doubles their share.
            while counted.most is not None and limit is not None and counted.total <= limit and (stopped := counted.stopped):
                left = limit - sum(number for name, number in counted.numbers.items() if name not in stopped)
                counted.most = min(limit, max(2 * counted.most, left // len(stopped)))
                self._count_up_to(session, stopped, {status: counted})
        return counts

    def _count_up_to(self, session: Session, types: list[str], counts: dict[Status, _Counted]) -> None:
        """Counts these types in these states, which go equally far."""
        most = next(iter(counts.values())).most
        beyond = None if most is None else most + 1
        statuses = [status.value for status in counts]
        for name, status, number in self._repository.count_jobs(session, types, statuses, beyond):
            counts[status].numbers[name] = number

    def _count_attempts(self, session: Session, counts: dict[Status, _Counted]) -> dict[str, Counter[int]]:
        """How often the jobs of each type have been tried, of those that were counted."""
        by_attempt: dict[str, Counter[int]] = {}
        for status in UNTRIED:
            for name in counts[status].found:
                by_attempt.setdefault(name, Counter())[0] += counts[status].shown(name)
        for status in TRIED:
            tried = counts[status]
            if tried.found:
                rows = self._repository.count_attempts(session, tried.found, [status.value], tried.most)
                for name, attempt, number in rows:
                    by_attempt.setdefault(name, Counter())[attempt] += number
        pending = counts[Status.PENDING]
        if pending.found:
            for name, attempt, number in self._repository.count_retries(session, pending.found, pending.most):
                by_attempt[name][attempt] += number
                by_attempt[name][0] -= number
        return by_attempt


def _check_page(limit: object, before: object) -> None:
    for name, value in (("limit", limit), ("before", before)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number or None, not {value!r}.")
        if not 1 <= value <= MAX_COUNT:
            raise ValueError(f"{name} must be from 1 to {MAX_COUNT:,}, or None.")


def _up_to(limit: int | None, number: int) -> int:
    return number if limit is None else min(number, limit)


def _timeline(
    job: Job, attempts: list[Attempt], events: list[tuple[str, datetime, str | None, dict[str, Any]]]
) -> list[TimelineEntry]:
    entries: list[tuple[datetime, int, TimelineEntry]] = []

    def add(step: int, event: str, at: datetime | None, actor: str | None = None, **detail: Any) -> None:
        if at is not None:
            entries.append((at, step, TimelineEntry(event, at, actor, detail)))

    add(0, "ENQUEUED", job.created_at, type=job.type_name)
    if job.blocker_count and (job.status is Status.BLOCKED or any(event == "UNBLOCKED" for event, *_ in events)):
        add(1, "BLOCKED", job.created_at, blockers=job.blocker_count)
    for attempt in attempts:
        _add_attempt(add, attempt)
    step = job.attempt * 10
    succeeded = any(attempt.outcome == "succeeded" for attempt in attempts)
    if job.status is Status.RUNNING:
        add(step + 1, "CLAIMED", job.last_attempt_at, job.leased_by, attempt=job.attempt)
    if job.status is Status.COMPLETED and not succeeded:
        if job.completed_by is not None:
            add(step + 1, "CLAIMED", job.last_attempt_at, job.completed_by, attempt=job.attempt)
        add(step + 9, "SUCCEEDED", job.completed_at, job.completed_by, attempt=job.attempt)
    add(step + 3, "HEARTBEAT", job.heartbeat_at, job.leased_by or job.completed_by)
    if job.continued_to is not None:
        add(step + 9, "CONTINUED", job.completed_at, job.completed_by, to=job.continued_to)
    for event, at, actor, detail in events:
        # Where the clock cannot tell, an act stands after the attempts that had ended by then, and before the success: nothing
        # can be done to a completed job.
        ended = max((a.attempt for a in attempts if a.finished_at <= at and a.outcome != "succeeded"), default=0)
        add(ended * 10 + 8, event, at, actor, **detail)
    entries.sort(key=lambda entry: entry[:2])
    return [entry for _, _, entry in entries]


def _add_attempt(add: Any, attempt: Attempt) -> None:
    step, worker = attempt.attempt * 10, attempt.worker_id
    number = {"attempt": attempt.attempt}
    add(step + 1, "CLAIMED", attempt.claimed_at, worker, **number)
    add(step + 2, "STARTED", attempt.started_at, worker, **number)
    problem = {"code": attempt.error_code, "detail": attempt.error_detail}
    if attempt.outcome == "succeeded":
        add(step + 6, "SUCCEEDED", attempt.finished_at, worker, **number)
    elif attempt.outcome == "lost":
        # Not an act of the worker that died: whoever found its lease ended did this.
        add(step + 4, "RECOVERED", attempt.finished_at, None, **number, worker=worker, **problem)
        if attempt.retry_at is None:
            add(step + 4, "FAILED", attempt.finished_at, None, **number, worker=worker, **problem)
    elif attempt.outcome == "failed":
        add(step + 4, "FAILED", attempt.finished_at, worker, **number, **problem)
    if attempt.retry_at is not None:
        detail = {**number, "retry_at": attempt.retry_at.isoformat()}
        if attempt.outcome == "rescheduled" and attempt.error_detail:
            detail["detail"] = attempt.error_detail
        add(step + 5, "RETRY_SCHEDULED", attempt.finished_at, None if attempt.outcome == "lost" else worker, **detail)

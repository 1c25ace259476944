"""What happened and how things stand: attempts, the timeline of a job, and statistics.

A finished attempt is a row; the one under way is on the job's own row; acts of operators are events. The timeline merges the
three. Statistics count through indexes and stop at a limit, so that a large table does not make them slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from queuert.engine import Engine
from queuert.errors import JobNotFoundError
from queuert.model import Attempt, Job, Status, TimelineEntry
from queuert.reading import _names
from queuert.storage.base import Session
from queuert.storage.repository import Running

LONGEST_RUNNING: Final = 20
TRIED: Final = (Status.RUNNING, Status.FAILED)
UNTRIED: Final = (Status.PENDING, Status.BLOCKED)
"""Not tried yet, but for those of the pending that are to be tried again."""


@dataclass(frozen=True)
class Stats:
    """How things stand. Counts are of jobs, and stop at the limit that was asked for; `capped` names the states that did."""

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


class History:
    """Reads what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._repository = engine.repository

    def attempts(self, id: object, conn: object | None) -> list[Attempt]:
        identity = self._engine.ids.check(id)

        def work(session: Session) -> list[Attempt]:
            self._job(session, identity)
            return self._repository.list_attempts(session, identity)

        return self._engine.read(conn, work)

    def timeline(self, id: object, conn: object | None) -> list[TimelineEntry]:
        identity = self._engine.ids.check(id)

        def work(session: Session) -> list[TimelineEntry]:
            job = self._job(session, identity)
            attempts = self._repository.list_attempts(session, identity)
            return _timeline(job, attempts, self._repository.list_events(session, identity))

        return self._engine.read(conn, work)

    def _job(self, session: Session, identity: str) -> Job:
        job = self._repository.get_jobs(session, [identity]).get(identity)
        if job is None:
            raise JobNotFoundError(identity)
        return job

    def stats(self, types: Iterable[object] | None, count_limit: int | None, conn: object | None) -> Stats:
        wanted = _names(types, "types")
        if count_limit is not None and (isinstance(count_limit, bool) or not isinstance(count_limit, int)):
            raise TypeError(f"count_limit must be a whole number or None, not {count_limit!r}.")
        if count_limit is not None and count_limit < 1:
            raise ValueError(f"count_limit must be at least 1, or None to count all, not {count_limit}.")
        return self._engine.read(conn, lambda session: self._stats(session, wanted, count_limit))

    def _stats(self, session: Session, wanted: list[str] | None, limit: int | None) -> Stats:
        repository = self._repository
        types = repository.job_types(session) if wanted is None else wanted
        # One more than the limit tells "exactly so many" from "more than that".
        beyond = None if limit is None else limit + 1
        statuses = [status.value for status in Status]

        def up_to_limit(number: int) -> int:
            return number if limit is None else min(number, limit)

        by_type: dict[str, dict[str, int]] = {}
        totals: Counter[Status] = Counter()
        by_attempt: dict[str, Counter[int]] = {}
        for type_name, status, number in repository.count_jobs(session, types, statuses, beyond):
            totals[status] += number
            if number:
                by_type.setdefault(type_name, {})[status] = up_to_limit(number)
                if status in UNTRIED:
                    by_attempt.setdefault(type_name, Counter())[0] += number
        tried = [status.value for status in TRIED]
        for type_name, attempt, number, again in repository.count_attempts(session, types, tried, limit):
            counts = by_attempt.setdefault(type_name, Counter())
            counts[attempt] += number
            if again:
                counts[0] -= number
        attempts = sum(by_attempt.values(), Counter())
        errors = repository.count_errors(session, types, limit)
        running = repository.longest_running(session, types, LONGEST_RUNNING)
        due = repository.next_due(session, types)
        return Stats(
            by_status={status: up_to_limit(totals[status]) for status in Status},
            by_type=by_type,
            oldest_running=running[0] if running else None,
            longest_running=running,
            oldest_ready_seconds=-due if due is not None and due <= 0 else None,
            attempts={attempt: up_to_limit(number) for attempt, number in sorted(attempts.items())},
            attempts_by_type={
                name: {attempt: up_to_limit(number) for attempt, number in sorted(counts.items()) if number > 0}
                for name, counts in sorted(by_attempt.items())
            },
            error_codes=[(code, up_to_limit(number)) for code, number, _ in errors],
            error_examples={code: example for code, _, example in errors},
            stranded=up_to_limit(repository.count_stranded(session, types, limit)),
            capped=set() if limit is None else {status for status in Status if totals[status] > limit},
        )


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
        add(step + 6, "SUCCEEDED", job.completed_at, job.completed_by, attempt=job.attempt)
    add(step + 3, "HEARTBEAT", job.heartbeat_at, job.leased_by or job.completed_by)
    if job.continued_to is not None:
        add(step + 7, "CONTINUED", job.completed_at, job.completed_by, to=job.continued_to)
    for event, at, actor, detail in events:
        # An act stands after the attempts that had ended by then, where the clock cannot tell.
        ended = max((a.attempt for a in attempts if a.finished_at <= at), default=0)
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

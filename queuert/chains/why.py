"""Why a job does not run, and until when: one sentence for each reason, in the order in which they would have to be lifted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from queuert.chains.history import LOST_AFTER
from queuert.chains.limits import NO_LIMIT, limits_by_name, room_of
from queuert.context import Context
from queuert.errors import JobNotFoundError
from queuert.model import Job, Status, WorkerInfo
from queuert.storage.protocol import Session

ORDER: Final = (
    *("closed", "running", "stranded", "blocked", "paused", "limit", "rate", "order", "suspect", "backoff", "not_due"),
    *("no_worker", "workers_busy"),
)
"""The codes, in the order in which reasons are told."""
MOST_NAMED: Final = 20
"""Chains that a reason names."""


@dataclass(frozen=True)
class Reason:
    """One reason: its code, a sentence, when it ends by itself (None: nobody knows), and the chains that it is about."""

    code: str
    text: str
    until: datetime | None = None
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """Why a job does not run. Without reasons nothing keeps it from running: a worker takes it in a moment."""

    job_id: str
    status: Status
    reasons: tuple[Reason, ...]


class Explainer:
    """Finds the reasons."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    def why(self, id: object, conn: object | None) -> Why:
        identity = self._context.ids.check(id)

        def work(session: Session) -> Why:
            job = self._repository.get_jobs(session, [identity]).get(identity)
            if job is None:
                raise JobNotFoundError(identity)
            found = sorted(self._reasons(session, job), key=lambda reason: ORDER.index(reason.code))
            return Why(identity, job.status, tuple(found))

        return self._context.read(conn, work)

    def _reasons(self, session: Session, job: Job) -> Iterator[Reason]:
        if job.status.closed:
            yield _closed(job)
            return
        if job.status is Status.RUNNING:
            yield self._running(session, job)
            return
        if job.status is Status.BLOCKED:
            yield from self._blocked(session, job)
        yield from self._paused(session, job)
        yield from self._limited(session, job)
        late = self._repository.clock(session) >= job.scheduled_at
        if job.status is Status.PENDING:
            if job.suspect:
                yield Reason("suspect", "Its last worker died with it: it runs when nothing else waits beside it.")
            if not late:
                yield _not_due(job)
        workers = [
            worker
            for worker in self._repository.list_workers(session, LOST_AFTER)
            if job.type_name in worker.types and not worker.lost and not worker.stopping
        ]
        if not workers:
            yield Reason("no_worker", f"No worker that is alive handles the type {job.type_name!r}.")
        elif job.status is Status.PENDING and late and not any(self._free(session, workers)):
            slots = sum(worker.concurrency for worker in workers)
            text = f"All {slots} slots of the {len(workers)} workers for {job.type_name!r} are in use; it waits for its turn."
            yield Reason("workers_busy", text)

    def _running(self, session: Session, job: Job) -> Reason:
        order = self._repository.running_order(session).get(job.leased_by or "", [])
        place = [identity for identity, _ in order].index(job.id) if (job.id, job.type_name) in order else 0
        workers = {worker.id: worker for worker in self._repository.list_workers(session, LOST_AFTER)}
        worker = workers.get(job.leased_by or "")
        if worker is not None and place >= worker.concurrency - worker.zombies:
            return Reason("workers_busy", f"{job.leased_by} has claimed it and starts it when one of its slots is free.")
        since = f" since {_time(job.last_attempt_at)}" if job.last_attempt_at is not None else ""
        if job.leased_until is not None and job.leased_until < self._repository.clock(session):
            ended = f"; its lease ended at {_time(job.leased_until)}, and it is taken back soon"
            return Reason("running", f"It runs on {job.leased_by}{since}{ended}.")
        return Reason("running", f"It runs on {job.leased_by}{since}.")

    def _blocked(self, session: Session, job: Job) -> Iterator[Reason]:
        blockers = self._repository.get_blockers(session, [job.id]).get(job.id, [])
        open_ = tuple(chain.id for chain in blockers if not chain.status.closed)
        dead = tuple(chain.id for chain in blockers if chain.status in (Status.FAILED, Status.CANCELLED))
        if dead and job.blockers_until == "completed":
            text = (
                f"{len(dead)} of the {len(blockers)} chains that it waits for failed or were cancelled: retry or cancel them."
            )
            yield Reason("stranded", text, ids=dead)
        if open_:
            text = f"It waits for {len(open_)} of {len(blockers)} chains to {_end(job)}."
            yield Reason("blocked", text, ids=open_)
        elif not dead or job.blockers_until != "completed":
            yield Reason("stranded", "All that it waits for has closed, and nobody has freed it: housekeeping does so soon.")

    def _paused(self, session: Session, job: Job) -> Iterator[Reason]:
        found = [
            pause
            for pause in self._repository.list_pauses(session, "type")
            if pause.lasts and pause.name in ("", job.type_name)
        ]
        if found:
            ends = [pause.until for pause in found]
            until = None if None in ends else max(end for end in ends if end is not None)
            yield Reason("paused", " ".join(_pause(pause.name, pause.actor, pause.reason) for pause in found), until)

    def _limited(self, session: Session, job: Job) -> Iterator[Reason]:
        name, key = job.limit_name, job.limit_key or ""
        if name is None or name == NO_LIMIT:
            return
        what = f"the limit {name!r}{f' for {key!r}' if key else ''}"
        limit = limits_by_name(self._context.types).get(name)
        [state] = self._repository.look_at_keys(session, [{"name": name, "key": key, "strict": False}])
        numbers = room_of(limit, state).numbers
        head = None if job.limit_at is None else self._repository.head_of_key(session, name, key)
        if head is not None and head[0] != job.id:
            yield Reason("order", f"The jobs of {what} run in order, and another is before it.", ids=(head[1],))
        elif numbers.concurrency is not None and state.running >= numbers.concurrency:
            holders = tuple(self._repository.key_holders(session, name, key, MOST_NAMED))
            text = f"{state.running} run, and {what} lets {numbers.concurrency} run at a time."
            yield Reason("limit", text, ids=holders)
        if state.held_until is not None and state.held_until > state.now:
            text = f"The other side wants a pause: nothing of {what} starts before {_time(state.held_until)}."
            yield Reason("rate", text, state.held_until)
        elif numbers.starts(state.now, state.used_until) <= 0:
            until = numbers.next_start(state.now, state.used_until)
            text = f"The rate of {what}, {numbers.rate:g} in {numbers.per:g} s, lets the next one start at {_time(until)}."
            yield Reason("rate", text, until)

    def _free(self, session: Session, workers: list[WorkerInfo]) -> Iterator[bool]:
        order = self._repository.running_order(session)
        for worker in workers:
            yield len(order.get(worker.id, ())) + worker.zombies < worker.concurrency


def _closed(job: Job) -> Reason:
    at = "" if job.completed_at is None else f" at {_time(job.completed_at)}"
    code = f" with {job.error_code}" if job.error_code else ""
    return Reason("closed", f"It {'was ' if job.status is Status.CANCELLED else ''}{job.status}{at}{code}.")


def _not_due(job: Job) -> Reason:
    if job.attempt:
        code = f" ({job.error_code})" if job.error_code else ""
        text = f"Attempt {job.attempt} did not complete it{code}; the next one starts at {_time(job.scheduled_at)}."
        return Reason("backoff", text, job.scheduled_at)
    return Reason("not_due", f"It is scheduled for {_time(job.scheduled_at)}.", job.scheduled_at)


def _pause(name: str, actor: str | None, reason: str | None) -> str:
    what = f"The type {name!r}" if name else "Everything"
    return f"{what} is paused{f' by {actor}' if actor else ''}{f': {reason}' if reason else ''}."


def _end(job: Job) -> str:
    return "complete" if job.blockers_until == "completed" else "close"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(sep=" ", timespec="seconds")

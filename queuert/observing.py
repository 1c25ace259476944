"""What happens to jobs, told to those who watch: a line in the log, and an observer if the app has one.

A fact is told after the commit that made it true. On a user's own connection without `app.hooks()` nobody tells us of the
commit, so what happens there is not told at all: better no news than false ones.

The log's lines carry what they are about as attributes of the record (`event`, `job_id`, `chain_id`, `type_name`, `attempt`,
`worker_id`, ...), never payloads or addresses with passwords. A job's everyday life is DEBUG; its loss and the acts of
operators are INFO; attempts that failed are WARNING, or ERROR with the traceback if they were the last (`failure_log.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from queuert.model import Job

if TYPE_CHECKING:
    from queuert.context import Context
    from queuert.storage.protocol import Session

# A library says nothing until the application sets up logging: not even the warnings that Python would print by default.
logging.getLogger("queuert").addHandler(logging.NullHandler())
logger = logging.getLogger("queuert.jobs")

OutcomeName = Literal["succeeded", "failed", "retried", "rescheduled", "cancelled", "lost"]
"""How an attempt ended: `failed` for good, `retried` after a backoff, `cancelled` by somebody who cancelled, completed or
deleted the job meanwhile, `lost` with its lease or its worker."""

_SAID: dict[str, tuple[int, str, str]] = {
    "succeeded": (logging.DEBUG, "completed", "Completed %s %s."),
    "rescheduled": (logging.DEBUG, "rescheduled", "%s %s is rescheduled."),
    "cancelled": (logging.DEBUG, "attempt_cancelled", "The attempt of %s %s was cancelled."),
    "lost": (logging.INFO, "lost", "The attempt of %s %s was lost."),
}


class Produced(Protocol):
    """Jobs that are being created, in a transaction that may still be rolled back."""

    trace: str | None
    """What to store with them, for those who run them."""

    def committed(self, job_ids: Sequence[str]) -> None:
        """They exist now."""


class Observed(Protocol):
    """An attempt that is being watched."""

    def over(self, outcome: OutcomeName, error_code: str | None) -> None:
        """How it ended is known, and committed; or it was lost, and there is nothing to commit."""


class Observer(Protocol):
    """Told of what happens in one app. Its methods must not raise, and are called from many threads."""

    def produce(
        self, operation: Literal["start", "continue"], type_names: Sequence[str], *, learns_of_commit: bool
    ) -> Produced:
        """Jobs are about to be created; `learns_of_commit` says whether we are told when they are committed."""

    def attempt(self, job: Job, worker_id: str) -> AbstractContextManager[Observed]:
        """Entered around an attempt, in the thread that runs it."""

    def lost(self, job: Job, *, final: bool) -> None:
        """A job was taken back from a worker that is gone."""

    def completed_outside(self, job: Job) -> None:
        """A job was completed without a worker."""


def producing(
    context: Context, operation: Literal["start", "continue"], type_names: Sequence[str], *, learns_of_commit: bool
) -> Produced | None:
    if context.observer is None:
        return None
    return context.observer.produce(operation, type_names, learns_of_commit=learns_of_commit)


@dataclass(frozen=True)
class Started:
    """Chains were started: the id and the type of each."""

    ids: Sequence[str]
    type_names: Sequence[str]
    produced: Produced | None

    def __call__(self) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            for job_id, type_name in zip(self.ids, self.type_names, strict=True):
                about = {"event": "started", "job_id": job_id, "chain_id": job_id, "type_name": type_name}
                logger.debug("Started %s %s.", type_name, job_id, extra=about)
        if self.produced is not None and self.ids:
            self.produced.committed(self.ids)


def started(session: Session, produced: Produced | None, ids: Sequence[str], type_names: Sequence[str]) -> None:
    if session.hooks is not None and (produced is not None or logger.isEnabledFor(logging.DEBUG)):
        session.hooks.on_commit(Started(ids, type_names, produced))


def attempt_started(job: Job, worker_id: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        about = {"event": "attempt_started", **facts(job, worker_id)}
        logger.debug("Attempt %d of %s %s starts.", job.attempt, job.type_name, job.id, extra=about)


def attempt_over(
    context: Context,
    job: Job,
    worker_id: str,
    outcome: OutcomeName,
    *,
    record: Mapping[str, Any] | None = None,
    error: BaseException | None = None,
    seconds: float | None = None,
    continued_to: str | None = None,
) -> None:
    """`record` is what was written of an attempt that did not complete its job, and `error` what its handler raised."""
    code = record["code"] if record is not None else None
    if outcome == "failed" or outcome == "retried":
        about = {**facts(job, worker_id), "seconds": seconds}
        if outcome == "failed":
            context.failures.failed(job, code, error, about)
        else:
            context.failures.retried(job, code, record["after"] if record is not None else None, about)
        return
    level, event, text = _SAID[outcome]
    if outcome == "succeeded" and context.settings.log_finished:
        level = logging.INFO
    if logger.isEnabledFor(level):
        about = {"event": event, **facts(job, worker_id), "seconds": seconds}
        about |= {"error_code": code} if outcome != "succeeded" else {"continued_to": continued_to}
        logger.log(level, text, job.type_name, job.id, extra=about)


@dataclass(frozen=True)
class Reaped:
    """Jobs were taken back from workers that are gone, with what was written of each."""

    context: Context
    jobs: Sequence[tuple[Job, dict[str, Any]]]

    def __call__(self) -> None:
        for job, item in self.jobs:
            final, worker = item["status"] == "failed", job.leased_by or ""
            attempt_over(self.context, job, worker, "lost", record=item)
            if item["outcome"] == "lost":
                attempt_over(self.context, job, worker, "failed" if final else "retried", record=item)
            if self.context.observer is not None:
                self.context.observer.lost(job, final=final)


def reaped(context: Context, session: Session, lost: Sequence[tuple[Job, dict[str, Any]]]) -> None:
    if session.hooks is not None and lost:
        session.hooks.on_commit(Reaped(context, lost))


@dataclass(frozen=True)
class CompletedOutside:
    """Jobs were completed without a worker: each with its continuation, if it has one."""

    context: Context
    jobs: Sequence[tuple[Job, Produced | None, str | None]]

    def __call__(self) -> None:
        for job, produced, next_id in self.jobs:
            attempt_over(self.context, job, "", "succeeded", continued_to=next_id)
            if self.context.observer is not None:
                self.context.observer.completed_outside(job)
            if produced is not None and next_id is not None:
                produced.committed([next_id])


def completed_outside(context: Context, session: Session, jobs: Sequence[tuple[Job, Produced | None, str | None]]) -> None:
    if session.hooks is not None and jobs:
        session.hooks.on_commit(CompletedOutside(context, jobs))


@dataclass(frozen=True)
class Act:
    """An operator did something to chains or jobs."""

    event: str
    ids: Sequence[str]
    actor: str | None
    reason: str | None

    def __call__(self) -> None:
        about = {"event": self.event, "ids": list(self.ids), "actor": self.actor, "reason": self.reason}
        logger.info("%d %s.", len(self.ids), self.event, extra=about)


def act(session: Session, event: str, ids: Sequence[str], actor: str | None = None, reason: str | None = None) -> None:
    if session.hooks is not None and ids and logger.isEnabledFor(logging.INFO):
        session.hooks.on_commit(Act(event, ids, actor, reason))


def facts(job: Job, worker_id: str | None = None) -> dict[str, Any]:
    """What a line of the log says about a job, for machines."""
    about = {"job_id": job.id, "chain_id": job.chain_id, "type_name": job.type_name, "attempt": job.attempt}
    return {**about, "worker_id": worker_id} if worker_id else about

"""How an attempt ended, and what is written about it.

An attempt ends in one of four ways:

- the handler returned: a `Completion`, for the completer to commit, together with others if it likes;
- the handler used `complete()`: the attempt has committed it itself, in the handler's own transaction;
- it raised, was rescheduled or failed for good: a record for `end_attempts`;
- the lease was lost: nothing, since nothing may be written any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuert.chains.complete import Completion
from queuert.error_codes import MAX_DETAIL, MAX_ERROR, WORKER_LOST, clean, error_detail, error_text
from queuert.model import Job, Status
from queuert.options import Backoff, BackoffFunction, seconds
from queuert.running_job import Reason
from queuert.storage.protocol import Commit
from queuert.storage.records import LeaseState

logger = logging.getLogger("queuert.worker")

Record = dict[str, Any]


@dataclass
class Outcome:
    """How an attempt ended, and what is left to write."""

    completion: Completion | None = None
    record: Record | None = None
    # `complete()` has written everything already.
    committed: bool = False
    # `complete()` has written the completion, which is on its way to the disk: see `AttemptRun.settle`.
    commit: Commit | None = None
    # The set-up is broken, and not the job: the worker stops with this.
    fatal: BaseException | None = None
    # What the handler raised, for the log, where that was the end of the job.
    error: BaseException | None = None

    @property
    def lost(self) -> bool:
        return self.completion is None and self.record is None and not self.committed


def record(job: Job, worker: str | None, *, outcome: str, **values: Any) -> Record:
    """What `end_attempts` writes about an attempt."""
    return {
        "id": job.id,
        "worker": worker,
        "token": job.lease_token,
        "outcome": outcome,
        "status": "pending",
        "at": None,
        "after": None,
        "forgive": 0,
        "waited": None,
        "code": None,
        "detail": None,
        "error": None,
        "job": job,
        "suspect": False,
        "losses": 0,
        "excuses": 0,
        **values,
    }


def rescheduled(
    job: Job, worker: str, after: float, detail: str, waited: float | None, *, excuses: int | None = None
) -> Record:
    """Another try after a number of seconds, for no fault of the handler: it costs no attempt.

    What is known of the job stays as it is, unless it is one more of its `excuses`.
    """
    kept = {"suspect": job.suspect, "losses": job.losses, "excuses": job.excuses if excuses is None else excuses}
    texts = {"detail": detail, "error": detail}
    return record(job, worker, outcome="rescheduled", after=after, forgive=1, waited=waited, **texts, **kept)


def failed(
    job: Job,
    worker: str,
    error: BaseException,
    code: str,
    backoff: BackoffFunction | Backoff,
    waited: float | None,
    *,
    final: bool = False,
) -> Record:
    """Another try after the backoff, or the end."""
    texts = {"code": code, "detail": error_detail(error), "error": error_text(error)}
    return record(job, worker, outcome="failed", waited=waited, **texts, **retry_or_fail(job, backoff, final=final))


REMEDY: Final = "If another version of the program stored it: add a default, then `queuert retry --error-code INVALID_INPUT:`."


def undecodable(failure: Record) -> Record:
    """The end of a job whose input does not decode, with what to do about it."""
    detail = clean(failure["detail"], MAX_DETAIL - len(REMEDY) - 1)
    return {**failure, "detail": f"{detail} {REMEDY}", "error": clean(f"{failure['error'].rstrip()}\n{REMEDY}", MAX_ERROR)}


def lost(job: Job, backoff: BackoffFunction | Backoff, detail: str) -> Record:
    """An attempt that ended with its worker.

    The first time in a row counts. The second time it had company, and nobody knows whose fault it was: that is forgiven, and
    from then on the job is a suspect. It runs alone, where a loss counts again (`suspects.py`).
    """
    forgiven = bool(job.losses) and not job.suspect
    texts = {"code": WORKER_LOST, "detail": detail, "error": detail}
    again = {"status": "pending", "after": _wait(job, backoff)} if forgiven else retry_or_fail(job, backoff)
    known = {"suspect": (job.suspect or forgiven) and again["status"] == "pending", "losses": job.losses + 1}
    return record(job, job.leased_by, outcome="lost", forgive=int(forgiven), **texts, **again, **known)


def retry_or_fail(job: Job, backoff: BackoffFunction | Backoff, *, final: bool = False) -> dict[str, Any]:
    """What becomes of a job whose attempt failed: another try after a wait, or the end."""
    if final or (job.max_attempts is not None and job.attempts_used >= job.max_attempts):
        return {"status": "failed"}
    return {"status": "pending", "after": _wait(job, backoff)}


def _wait(job: Job, backoff: BackoffFunction | Backoff) -> float:
    used = job.attempts_used
    try:
        return seconds(backoff(used), "the backoff")
    except Exception:
        logger.exception("The backoff of %r gave no number of seconds; the default is used.", job.type_name)
        return Backoff()(used)


def lost_reason(state: LeaseState | None, worker_id: str, token: int | None) -> Reason | None:
    """Why a worker holds a job no longer; None while it does."""
    if state is None:
        return "not_found"
    if state.status is Status.RUNNING and state.leased_by == worker_id and state.lease_token == token:
        return None
    if state.status is Status.COMPLETED:
        return "already_completed"
    if state.status is Status.CANCELLED:
        return "cancelled"
    return "taken_by_another_worker"


def known_reason(text: str) -> Reason:
    """The reason of a signal from that of an error."""
    known: dict[str, Reason] = {
        "not_found": "not_found",
        "already_completed": "already_completed",
        "cancelled": "cancelled",
    }
    return known.get(text, "taken_by_another_worker")


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from: frameworks wrap those of the driver."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__

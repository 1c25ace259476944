"""What follows when a job fails for good: a chain of the type that it names as `on_failed`, and the jobs that waited until its
chain has closed.

Both are written in the transaction that writes `failed`. Nothing here keeps a job from failing: what cannot be started
is logged. Workers of the release before this one know nothing of it. What they leave undone, `mend` does a few seconds later.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from queuert import observing
from queuert.codec import CodecError, dump_json, load_json
from queuert.context import Context
from queuert.model import Failure, Job
from queuert.options import DEFAULT_MAX_ATTEMPTS
from queuert.storage.protocol import Session

logger = logging.getLogger("queuert.failures")

EVERY: Final = 5.0
"""Seconds between two looks for what workers of the release before this one have left."""
BATCH: Final = 100
TRIES: Final = 5
"""For an id that nobody has, where ids are made by a function of the user's."""


def failure_of(job: Job, code: str | None, detail: str | None) -> Failure:
    """What the chain is told of a job that fails now."""
    try:
        input_ = load_json(job.input)
    except Exception:  # inserted by hand, and no JSON at all
        input_ = job.input
    used = job.attempts_used
    return Failure(job.chain_id, job.chain_type_name, job.id, job.type_name, input_, code, detail, used)


def start_failure_chains(context: Context, session: Session, failures: Sequence[tuple[str, str, Failure]]) -> None:
    """Start the chains of failed jobs, from the id, the type and the input of each."""
    items = [_item(context, *each) for each in failures]
    names = [str(item["type_name"]) for item in items]
    try:
        with session.savepoint():
            produced = observing.producing(context, "start", names, learns_of_commit=session.hooks is not None)
            if produced is not None:
                items = [{**item, "trace": produced.trace} for item in items]
            context.repository.insert_chains(session, items)
    except Exception as error:
        if context.database.is_transient(error):
            raise
        if len(failures) > 1:
            for each in failures:
                start_failure_chains(context, session, [each])
            return
        identity, name, failure = failures[0]
        about = {"event": "on_failed_refused", "job_id": failure.job_id, "chain_id": failure.chain_id, "type_name": name}
        text = "The chain %s of type %s for the failed job %s cannot be started: %s."
        logger.error(text, identity, name, failure.job_id, type(error).__name__, extra=about)
        return
    context.announce(session, ready=names)
    observing.started(session, produced, [str(item["id"]) for item in items], names)


def _item(context: Context, identity: str, name: str, failure: Failure) -> dict[str, Any]:
    known = context.types.find(name)
    values = dict(failure.__dict__)
    try:
        text = dump_json(values)
    except CodecError:
        text = dump_json({**values, "input": None})
    item: dict[str, Any] = {"id": identity, "type_name": name, "input": text, "max_attempts": DEFAULT_MAX_ATTEMPTS}
    if known is not None:
        item |= {"max_attempts": known.max_attempts, "priority": known.priority, "on_failed": known.on_failed}
    return item


def new_chain_id(context: Context, session: Session) -> str:
    """An id for a chain, which nobody has."""
    identity = context.ids.new()
    for _ in range(TRIES):
        if context.ids.are_unique or not context.repository.get_jobs(session, [identity]):
            break
        identity = context.ids.new()
    return identity


# Beside workers of the release before this one


class Mender:
    """Does what workers of the release before this one have left undone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._look_at = 0.0

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Look every few seconds: called now and then by every worker."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)
            self.mend()

    def mend(self) -> None:
        """Start the chains of jobs that failed without, and free the jobs whose blockers have all closed."""
        context, repository = self._context, self._context.repository
        with context.database.read() as session:
            failed = repository.unstarted_failures(session, BATCH)
            waiting = repository.overdue_joins(session, BATCH)
        if failed:
            context.database.run(lambda session: self._start(session, failed))
        if waiting:
            context.database.run(lambda session: self._free(session, waiting))

    def _start(self, session: Session, failed: Sequence[Job]) -> None:
        context = self._context
        free = context.repository.lock_jobs(session, [job.id for job in failed], wait=False)
        ids = {job.id: new_chain_id(context, session) for job in failed if job.id in free}
        items = [{"id": job, "failure_chain_id": chain} for job, chain in ids.items()]
        noted = context.repository.note_failures(session, items) if items else set()
        started = [
            (ids[job.id], str(job.on_failed), failure_of(job, job.error_code, _summary(job.last_attempt_error)))
            for job in failed
            if job.id in noted
        ]
        if started:
            start_failure_chains(context, session, started)

    def _free(self, session: Session, waiting: Sequence[str]) -> None:
        repository = self._context.repository
        locked = repository.lock_jobs(session, sorted(waiting), wait=False)
        freed = repository.recount_blockers(session, sorted(locked)) if locked else []
        self._context.announce(session, ready=[job.type_name for job in freed])


def _summary(error: str | None) -> str | None:
    """The last line of a traceback."""
    lines = (error or "").strip().splitlines()
    return lines[-1][:500] if lines else None

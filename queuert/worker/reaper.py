"""The reaper: takes jobs back from workers that are gone.

A lease that has ended is an attempt that was lost. The job is tried again after its type's backoff, or fails with
`WORKER:LOST` when its attempts are used up, so that a job that kills its process cannot do so for ever.

The database's clock is read *before* the write lock is waited for. On SQLite that wait can be long, and those whose
leases ended during it may be waiting for the same lock, to renew them: they are left for the next time. So is what this
worker has in hand.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from queuert import observing
from queuert.chains.attempts import end_attempts
from queuert.context import Context
from queuert.error_codes import MAX_DETAIL, WORKER_LOST, clean
from queuert.model import Job
from queuert.options import Backoff, BackoffFunction
from queuert.storage.protocol import Session
from queuert.worker.events import Events
from queuert.worker.outcome import Record, record, retry_or_fail

logger = logging.getLogger("queuert.worker")

BATCH = 100
LONGEST_INTERVAL = 15.0
PART_OF_LEASE = 0.25
START_WITHIN = 0.1
"""Of the interval: when the first look is at the latest. Workers that start together do not all look at once."""


class Reaper:
    """Looks for leases that have ended, in one thread."""

    def __init__(
        self,
        context: Context,
        *,
        interval: float,
        backoff: BackoffFunction | None,
        holds: Callable[[str, int | None], bool],
        events: Events,
    ) -> None:
        self._context = context
        self._interval = interval
        self._backoff = backoff
        self._holds = holds
        self._events = events
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause = self._interval * random.uniform(0, START_WITHIN)
        out = False
        while not self._stopping.wait(pause):
            pause = self._interval * random.uniform(0.75, 1.0)
            try:
                reap(self._context, self._backoff, self._holds, self._stopping.is_set)
            except Exception as error:
                if not self._context.database.is_transient(error):
                    raise
                if not out:
                    logger.warning("Leases cannot be checked (%s: %s); trying again.", type(error).__name__, error)
                out = True
                continue
            out = False
            self._events.happened("reaped")


def reap(
    context: Context,
    backoff: BackoffFunction | None = None,
    holds: Callable[[str, int | None], bool] = lambda job_id, token: False,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Take back all jobs whose leases have ended by now; how many."""
    with context.explained(), context.database.read() as session:
        now = context.repository.clock(session)
    total = 0

    def work(session: Session) -> tuple[int, int]:
        expired = context.repository.lock_expired(session, now, BATCH)
        lost = [job for job in expired if not holds(job.id, job.lease_token)]
        items = [_lost(context, job, backoff) for job in lost]
        ended = end_attempts(context, session, items) if lost else set()
        observing.reaped(context, session, [each for each in zip(lost, items, strict=True) if each[0].id in ended])
        return len(expired), len(ended)

    while not stopping():
        found, ended = context.database.run(work)
        total += ended
        if found < BATCH or not ended:
            break
    if total:
        about = {"event": "reaped", "jobs": total}
        logger.warning("%d jobs were taken back from workers that are gone.", total, extra=about)
    return total


def _lost(context: Context, job: Job, backoff: BackoffFunction | None) -> Record:
    known = context.types.find(job.type_name)
    detail = clean(f"The worker {job.leased_by} did not renew its lease: it died, or lost the database.", MAX_DETAIL)
    texts = {"code": WORKER_LOST, "detail": detail, "error": detail}
    again = retry_or_fail(job, known.resolve_backoff(backoff) if known else Backoff())
    return record(job, job.leased_by, outcome="lost", **texts, **again)

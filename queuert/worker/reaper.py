"""The reaper: takes jobs back from workers that are gone.

A lease that has ended is an attempt that was lost. The job is tried again after its type's backoff, or fails with
`WORKER:LOST` when its attempts are used up, so that a job that kills its process cannot do so for ever. What counts is in
`outcome.lost`.

The database's clock is read *before* the write lock is waited for. On SQLite that wait can be long, and those whose
leases ended during it may be waiting for the same lock, to renew them: they are left for the next time. So is what this
worker has in hand.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import datetime

from queuert import observing
from queuert.chains.attempts import end_attempts, lock_failing
from queuert.context import Context
from queuert.error_codes import MAX_DETAIL, clean
from queuert.model import Job
from queuert.options import Backoff, BackoffFunction
from queuert.storage.protocol import Session
from queuert.storage.trouble import Trouble
from queuert.worker.events import Events
from queuert.worker.outage import Outage
from queuert.worker.outcome import Record, lost
from queuert.worker.unhandled import UnhandledTypes

logger = logging.getLogger("queuert.worker")

BATCH = 100
DEADLINE = 30.0
LONGEST_INTERVAL = 15.0
PART_OF_LEASE = 0.25
START_WITHIN = 0.1
"""Of the interval: when the first look is at the latest. Workers that start together do not all look at once."""


class Reaper:
    """Looks for leases that have ended, in one thread."""

    def __init__(
        self,
        context: Context,
        worker_id: str,
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
        self._unhandled = UnhandledTypes(context, worker_id)
        self._outage = Outage(
            context, worker_id, "Leases cannot be checked", "Leases are checked again.", first=interval, longest=interval
        )

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause = self._interval * random.uniform(0, START_WITHIN)
        while not self._stopping.wait(pause):
            pause = self._interval * random.uniform(0.75, 1.0)
            try:
                reap(self._context, self._backoff, self._holds, self._stopping.is_set)
                self._unhandled.look_if_due()
            except Exception as error:
                self._outage.meet(error)
                continue
            self._outage.is_over()
            self._context.failures.flush()
            self._events.happened("reaped")


def reap(
    context: Context,
    backoff: BackoffFunction | None = None,
    holds: Callable[[str, int | None], bool] = lambda job_id, token: False,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Take back all jobs whose leases have ended by now; how many."""
    with context.database.within(DEADLINE), context.explained(), context.database.read() as session:
        now = context.repository.clock(session)
    reaping = _Reaping(context, backoff, holds, now)
    while not stopping():
        if not reaping.step():
            break
    total = reaping.total
    if total:
        about = {"event": "reaped", "jobs": total}
        logger.warning("%d jobs were taken back from workers that are gone.", total, extra=about)
    return total


class _Reaping:
    """One look at the leases that had ended by a time, in batches."""

    def __init__(
        self, context: Context, backoff: BackoffFunction | None, holds: Callable[[str, int | None], bool], now: datetime
    ) -> None:
        self._context = context
        self._backoff = backoff
        self._holds = holds
        self._now = now
        self._singly = False
        self.total = 0

    def step(self) -> bool:
        """Take back a batch; whether there may be more."""
        try:
            with self._context.database.within(DEADLINE):
                found, ended = self._context.database.run(self._work)
        except Exception as error:
            if self._singly or self._context.database.trouble(error) is not Trouble.JOB:
                raise
            self._singly = True  # one of them is refused, as a trigger can: not at the others' cost
            return True
        self.total += ended
        return found >= BATCH and ended > 0

    def _work(self, session: Session) -> tuple[int, int]:
        context = self._context
        expired = context.repository.lock_expired(session, self._now, BATCH)
        items = [_lost(context, job, self._backoff) for job in expired if not self._holds(job.id, job.lease_token)]
        # Their own rows are locked; that of a chain's first job may not be free, and is not waited for.
        free, _ = lock_failing(context, session, items, wait=False) if items else ([], None)
        losses = [(item["job"], item) for item in free]
        ended: set[str] = set()
        for group in [[each] for each in losses] if self._singly else [losses]:
            ended |= self._end(session, [item for _, item in group]) if group else set()
        observing.reaped(context, session, [each for each in losses if each[0].id in ended])
        return len(expired), len(ended)

    def _end(self, session: Session, items: list[Record]) -> set[str]:
        if not self._singly:
            return end_attempts(self._context, session, items)
        try:
            with session.savepoint():
                return end_attempts(self._context, session, items)
        except Exception as error:
            if self._context.database.trouble(error) is not Trouble.JOB:
                raise
            logger.warning("The job %s cannot be taken back: %s.", items[0]["id"], type(error).__name__)
            return set()


def _lost(context: Context, job: Job, backoff: BackoffFunction | None) -> Record:
    known = context.types.find(job.type_name)
    detail = clean(f"The worker {job.leased_by} did not renew its lease: it died, or lost the database.", MAX_DETAIL)
    return lost(job, known.resolve_backoff(backoff) if known else Backoff(), detail)

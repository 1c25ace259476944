"""Jobs that a worker leaves unfinished go back as it leaves: no attempt is used up, and nobody takes them for lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from queuert.chains.attempts import end_attempts, release_claims
from queuert.context import Context
from queuert.storage.protocol import Session
from queuert.worker.held import Held
from queuert.worker.outcome import rescheduled

logger = logging.getLogger("queuert.worker")

TRIES = 3
PAUSE = 0.2


def give_back(context: Context, worker_id: str, left: Sequence[Held], detail: str) -> bool:
    """Give jobs back, as far as the database lets us; whether it did. What was lost meanwhile is not touched."""
    started = [held for held in left if held.attempt is not None]
    unstarted = [{"id": held.job.id, "token": held.job.lease_token} for held in left if held.attempt is None]
    records = [held.with_news(rescheduled(held.job, worker_id, 0.0, detail, None)) for held in started]

    def work(session: Session) -> None:
        if records:
            end_attempts(context, session, records)
        if unstarted:
            release_claims(context, session, worker_id, unstarted)

    for attempt in range(1, TRIES + 1):
        try:
            context.database.run(work)
        except Exception as error:
            if attempt < TRIES and context.database.is_transient(error):
                time.sleep(PAUSE * attempt)
                continue
            about = {"event": "give_back_failed", "worker_id": worker_id, "jobs": len(left)}
            text = "%d jobs could not be given back (%s); their leases run out."
            logger.error(text, len(left), type(error).__name__, extra=about)
            return False
        break
    about = {"event": "given_back", "worker_id": worker_id, "jobs": len(left)}
    logger.warning("%d jobs were given back unfinished: %s", len(left), detail, extra=about)
    return True

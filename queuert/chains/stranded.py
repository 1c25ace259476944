"""Freeing jobs that are blocked though every chain they waited for has completed.

It does not happen while all who write follow the rules: whoever completes a chain frees who waited for it, in one transaction.
It can after a chain was completed by SQL of one's own, or by a release that let the database's default fix its snapshots. So
housekeeping looks now and then, at a page of blocked jobs of each type, and goes on from there the next time.

Freeing is safe at any moment. A chain that has completed stays so, and who completed it has committed the countdown with it: a
job that one look shows as blocked, behind completed chains alone, has nobody who would still free it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import datetime
from functools import partial
from typing import Final

from queuert.context import Context
from queuert.storage.protocol import Session

logger = logging.getLogger("queuert.stranded")

PAGE: Final = 500
TASK: Final = "queuert:release"
EVERY: Final = 60.0
LEASE: Final = 60.0

Position = tuple[datetime, str]


class Releaser:
    """Frees what nobody else frees."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._look_at = 0.0
        # How far each type was looked through.
        self._positions: dict[str, Position] = {}

    def release(self) -> list[str]:
        """Look at a page of blocked jobs of each type, and free those that wait for nothing; their ids."""
        freed: list[str] = []
        for type_name in self._context.read(None, self._context.repository.job_types):
            freed += self._release_of(type_name)
        return freed

    def _release_of(self, type_name: str) -> list[str]:
        context, repository = self._context, self._context.repository
        after = self._positions.pop(type_name, None)
        page = context.read(None, partial(repository.blocked_page, type_name=type_name, after=after, limit=PAGE))
        if len(page) == PAGE:
            self._positions[type_name] = page[-1][1], page[-1][0]
        stranded = sorted(job_id for job_id, _, is_stranded in page if is_stranded)
        if not stranded:
            return []

        def work(session: Session) -> list[str]:
            freed = repository.release_stranded(session, stranded)
            context.announce(session, ready=[job.type_name for job in freed])
            return [job.id for job in freed]

        return context.write(None, work)

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Look once a minute, in one process at a time: called now and then by every worker."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)  # asking is a write, so not all the time
        repository, database = self._context.repository, self._context.database
        if database.run(lambda session: repository.take_singleton(session, TASK, owner, LEASE), single=True) is None:
            return
        freed = self.release()
        if freed:
            about = {"event": "stranded_released", "worker_id": owner, "job_ids": freed[:20], "number": len(freed)}
            logger.warning("Jobs were blocked by chains that have all completed, and are freed.", extra=about)
        database.run(lambda session: repository.finish_singleton(session, TASK, owner, next_in=EVERY), single=True)

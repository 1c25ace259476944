"""Cleaning up: closed chains that are older than the policy keeps them, in small batches.

Each batch is one short transaction, so that workers hardly notice, and a cleanup can be interrupted at any point and run again.
What `delete_chain` would refuse, because others still wait for it, is kept.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from queuert.engine import Engine
from queuert.options import Duration, Retention, seconds
from queuert.storage.base import Session

logger = logging.getLogger("queuert.retention")

BATCH: Final = 200  # chains a transaction
TASK: Final = "queuert:cleanup"
EVERY: Final = 60.0
LEASE: Final = 300.0
PAUSE: Final = 0.02

Progress = Callable[[int], None]


class Cleaner:
    """Deletes what the policy lets go."""

    def __init__(self, engine: Engine, retention: Retention) -> None:
        self._engine = engine
        self._retention = retention
        self._look_at = 0.0
        self._vacuums = True

    def clean(
        self,
        retention: Retention | None = None,
        *,
        max_seconds: Duration | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        pause: float = 0.0,
    ) -> dict[str, int]:
        """Delete in batches until nothing is left to delete, time is up, or `stop` is set; how many chains of each state."""
        policy = self._retention if retention is None else retention
        if not isinstance(policy, Retention):
            raise TypeError(f"retention must be a Retention, not {type(policy).__name__}.")
        deadline = None if max_seconds is None else time.monotonic() + seconds(max_seconds, "max_seconds")
        stop = stop or threading.Event()
        deleted = {"completed": 0, "failed": 0, "cancelled": 0}
        types = self._engine.read(None, self._engine.repository.chain_types)
        for status, age in policy.as_seconds().items():
            for type_name in types:
                position: tuple[datetime, str] | None = None
                while not stop.is_set() and (deadline is None or time.monotonic() < deadline):
                    started = time.monotonic()
                    gone, position = self._batch(type_name, status, age, position)
                    deleted[status] += gone
                    if gone and progress is not None:
                        progress(sum(deleted.values()))
                    if position is None:
                        break
                    # Rest as long as the batch took: the disk is the workers' too.
                    stop.wait(pause and max(pause, time.monotonic() - started))
        return deleted

    def _batch(
        self, type_name: str, status: str, age: float, after: tuple[datetime, str] | None
    ) -> tuple[int, tuple[datetime, str] | None]:
        """Delete one batch; how many, and where the next one starts."""
        repository = self._engine.repository

        def look(session: Session) -> list[tuple[str, datetime, bool]]:
            return repository.expired_chains(session, type_name, status, age, after, BATCH)

        found = self._engine.read(None, look)
        position = (found[-1][1], found[-1][0]) if len(found) == BATCH else None
        going = [chain_id for chain_id, _, may_go in found if may_go]
        if not going:
            return 0, position

        def work(session: Session) -> int:
            # Between looking and locking a chain may have been retried, or named as a blocker.
            repository.lock_chains(session, going)
            tails = repository.get_tails(session, going)
            closed = [chain_id for chain_id, tail in tails.items() if tail.status.value == status]
            waited_for = {reference[2] for reference in repository.blocker_references(session, closed)}
            return len(repository.delete_chains(session, [c for c in closed if c not in waited_for]))

        return self._engine.write(None, work), position

    def tidy(self) -> None:
        """Give the space back, on a file: its free pages, and the write-ahead log's."""
        vacuum, checkpoint = (getattr(self._engine.database, name, None) for name in ("vacuum", "checkpoint"))
        if self._engine.database.dialect == "sqlite" and vacuum is not None and checkpoint is not None:
            # One that cannot be vacuumed in passing has said so: once is enough.
            self._vacuums = self._vacuums and vacuum() is not False
            checkpoint()

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Clean up once a minute, in one process at a time: called now and then by every worker."""
        if time.monotonic() < self._look_at or not self._retention.as_seconds():
            return
        self._look_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)  # asking is a write, so not all the time
        repository, database = self._engine.repository, self._engine.database
        if database.run(lambda session: repository.take_singleton(session, TASK, owner, LEASE), single=True) is None:
            return
        deleted = self.clean(stop=stop, max_seconds=LEASE / 2, pause=PAUSE)
        if any(deleted.values()):
            logger.info("Cleaned up closed chains.", extra={"event": "cleaned_up", "worker_id": owner, "deleted": deleted})
            self.tidy()
        database.run(lambda session: repository.finish_singleton(session, TASK, owner, next_in=EVERY), single=True)

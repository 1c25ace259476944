"""Cleaning up: closed chains that are older than the policy keeps them, in small batches.

Each batch is one short transaction, and a rest follows it that is at least as long as it took, the wait for its turn included:
the busier the database, the slower the cleanup. It can be interrupted at any point, also by a kill, and run again.

A batch looks, locks and looks again, since in between a chain may have been retried or named as a blocker. It waits for nobody:
what somebody has locked is left for the next time. (Only a start with the same deduplication key, not committed yet, is waited
for.) What `delete_chain` would refuse, because others still wait for it, is kept.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from queuert.chains.pauses import FORGET_AFTER
from queuert.chains.trimming import Trimmer
from queuert.context import Context
from queuert.options import Duration, Retention, seconds
from queuert.storage.protocol import Session

logger = logging.getLogger("queuert.retention")

PAGE: Final = 1000  # chains looked at in one go
BATCH: Final = 100  # chains a transaction; the p95 of claims beside it, on SQLite: 100 1.2 times as long, 200 1.6
ROWS: Final = 500  # jobs of long chains a transaction
LONG: Final = 0.02  # seconds in a transaction: longer ones, of chains with many jobs, are cut in half
REST: Final = 1.0  # times as long as the batch took; without a rest claims take 3.5 times as long
LEAST_REST: Final = 0.02
TASK: Final = "queuert:cleanup"
EVERY: Final = 60.0
LEASE: Final = 300.0
LOST_KEPT: Final = 3600.0  # seconds that a lost worker is shown
RATES_KEPT: Final = 3900.0  # the last hour, and what the clocks of a row may differ by

Progress = Callable[[int], None]
Position = tuple[datetime, str]
"""Creation and id of a chain: the order in which they are gone through."""


class Cleaner:
    """Deletes what the policy lets go."""

    def __init__(self, context: Context, retention: Retention) -> None:
        self._context = context
        self._retention = retention
        self._look_at = 0.0
        self._unfinished: tuple[str, str] | None = None

    @property
    def retention(self) -> Retention:
        """The policy of the app."""
        return self._retention

    def clean(
        self,
        retention: Retention | None = None,
        *,
        max_seconds: Duration | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> dict[str, int]:
        """Delete in batches until nothing is left to delete, time is up, or `stop` is set; how many chains of each state."""
        policy = self._retention if retention is None else retention
        if not isinstance(policy, Retention):
            raise TypeError(f"retention must be a Retention, not {type(policy).__name__}.")
        deadline = None if max_seconds is None else time.monotonic() + seconds(max_seconds, "max_seconds")
        stop = stop or threading.Event()
        deleted = {"completed": 0, "failed": 0, "cancelled": 0}
        types = self._context.read(None, self._context.repository.chain_types)
        kinds = [(status, age, type_name) for status, age in policy.as_seconds().items() for type_name in types]
        # One that was cut short is taken up where it ended, or the first kinds might use up all the time, every time.
        first = next((n for n, (status, _, type_name) in enumerate(kinds) if (status, type_name) == self._unfinished), 0)
        self._unfinished = None
        for status, age, type_name in kinds[first:] + kinds[:first]:
            batches = self._batches(type_name, status, age)
            while True:
                if stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    self._unfinished = status, type_name
                    return deleted
                started = time.monotonic()
                gone = next(batches, None)
                if gone is None:
                    break
                deleted[status] += gone
                if gone and progress is not None:
                    progress(sum(deleted.values()))
                stop.wait(max(LEAST_REST if gone else 0.0, REST * (time.monotonic() - started)))
        over = lambda: stop.is_set() or (deadline is not None and time.monotonic() >= deadline)  # noqa: E731
        Trimmer(self._context).trim(policy, stop, over)
        return deleted

    def count(self, retention: Retention | None = None) -> dict[str, int]:
        """How many chains of each state `clean` would delete now."""
        policy = self._retention if retention is None else retention
        repository, found = self._context.repository, {"completed": 0, "failed": 0, "cancelled": 0}
        types = self._context.read(None, repository.chain_types)
        for status, age in policy.as_seconds().items():
            for type_name in types:
                position: Position | None = None
                while True:
                    look = partial(
                        repository.expired_chains, type_name=type_name, status=status, age=age, after=position, limit=PAGE
                    )
                    page = self._context.read(None, look)
                    found[status] += sum(may_go for _, _, may_go in page)
                    if len(page) < PAGE:
                        break
                    position = page[-1][1], page[-1][0]
        return found

    def _batches(self, type_name: str, status: str, age: float) -> Iterator[int]:
        """Deletes a batch each time it is asked; how many that were, 0 after a page of chains that stay."""
        repository, size = self._context.repository, BATCH
        position: Position | None = None
        while True:
            look = partial(repository.expired_chains, type_name=type_name, status=status, age=age, after=position, limit=PAGE)
            page = self._context.read(None, look)
            start = 0
            while start < len(page):
                batch = page[start : start + size]
                if going := [chain_id for chain_id, _, may_go in batch if may_go]:
                    while True:
                        gone, took, rest = self._delete(going, (type_name, status, age, position, len(batch)))
                        yield gone
                        if not rest:
                            break
                    size = max(1, size // 2) if took > LONG else min(BATCH, size * 2) if took < LONG / 4 else size
                start += len(batch)
                position = batch[-1][1], batch[-1][0]
            if len(page) < PAGE:
                return
            yield 0

    def _delete(self, going: Sequence[str], where: tuple[str, str, float, Position | None, int]) -> tuple[int, float, bool]:
        """Delete those of a batch that may still go; how many, how long it took in its turn, and whether more are left.

        Chains of many jobs go in steps: what is between their first and their last job before the two.
        """
        repository = self._context.repository

        def work(session: Session) -> tuple[int, float, bool]:
            # Their first jobs stand for them: who retries, deletes or names one as a blocker locks that.
            locked = repository.lock_closing(session, sorted(going), wait=False)
            started = time.monotonic()
            still = {chain_id for chain_id, _, may_go in repository.expired_chains(session, *where) if may_go}
            free = [chain_id for chain_id in going if chain_id in locked & still]
            if repository.delete_middles(session, free, 0, ROWS) >= ROWS:
                return 0, time.monotonic() - started, True
            gone = repository.delete_chains(session, free)
            return len(gone), time.monotonic() - started, False

        return self._context.write(None, work)

    def tidy(self, stop: threading.Event | None = None) -> None:
        """Give the space back, where the database does not do so by itself."""
        self._context.database.tidy(self._context.names, stop or threading.Event())

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Clean up once a minute, in one process at a time: called now and then by every worker."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)  # asking is a write, so not all the time
        repository, database = self._context.repository, self._context.database
        if database.run(lambda session: repository.take_singleton(session, TASK, owner, LEASE), single=True) is None:
            return
        deleted = self.clean(stop=stop, max_seconds=LEASE / 2)
        if any(deleted.values()):
            logger.info("Cleaned up closed chains.", extra={"event": "cleaned_up", "worker_id": owner, "deleted": deleted})
            self.tidy(stop)
        database.run(self._forget)
        database.run(lambda session: repository.finish_singleton(session, TASK, owner, next_in=EVERY), single=True)

    def _forget(self, session: Session) -> None:
        """Remove workers that are lost for long, what was done longer ago than anybody asks for, and pauses that are over."""
        self._context.repository.forget_workers(session, LOST_KEPT)
        self._context.repository.forget_rates(session, RATES_KEPT)
        self._context.repository.forget_pauses(session, FORGET_AFTER)

"""Run everything that is due, in the calling thread: for tests and scripts.

No threads, so no renewal either: jobs are claimed in small numbers, as many as lately ran within a moment, and one whose lease
has lasted for half of its time before its turn comes goes back instead of being started.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from queuert.chains.attempts import claimed_item, release_claims
from queuert.context import Context
from queuert.job_types import JobTypeOrName
from queuert.options import Duration, seconds
from queuert.worker.attempt import AttemptRun
from queuert.worker.claimer import Claimer, checked_types
from queuert.worker.held import Held
from queuert.worker.leaving import give_back
from queuert.worker.reaper import reap
from queuert.worker.results import Result, ResultWriter
from queuert.worker.worker import worker_id

MAX_BATCH = 20
QUICK = 0.1
"""Seconds in which a batch must run for the next one to be larger."""


def drain(context: Context, *, timeout: Duration | None = None, types: Iterable[JobTypeOrName] | None = None) -> int:
    """Run due jobs until there are none, or the time is up; the number of attempts run, failed ones included."""
    limit = math.inf if timeout is None else seconds(timeout, "timeout")
    names = checked_types(context, types)
    return _Drain(context, names, time.monotonic() + limit).run()


class _Drain:
    def __init__(self, context: Context, types: tuple[str, ...] | None, deadline: float) -> None:
        self._context = context
        self._deadline = deadline
        self._id = worker_id("drain")
        self._claimer = Claimer(context, self._id, types, None)
        self._writer = ResultWriter(context, self._id)
        self._ran = 0

    def run(self) -> int:
        self._claimer.check()
        reap(self._context)
        size = 1
        while time.monotonic() < self._deadline:
            started = time.monotonic()
            batch = self._claimer.claim(size) or self._claimer.claim(1, suspect=True)
            if not batch:
                break
            self._run_batch(batch)
            size = min(size * 2, MAX_BATCH) if time.monotonic() - started < QUICK else 1
        return self._ran

    def _run_batch(self, batch: list[Held]) -> None:
        results: list[Result] = []
        unstarted = list(batch)
        try:
            while unstarted:
                now, half = time.monotonic(), unstarted[0].lease.duration / 2
                if now >= self._deadline or now >= unstarted[0].trusted_until - half:
                    break
                results += self._run_one(unstarted.pop(0), results)
        finally:
            self._write(results)
            if unstarted:
                self._give_back(unstarted)

    def _write(self, results: list[Result]) -> None:
        try:
            self._writer.write(results, wait=True)
        except Exception:
            left = [result.held for result in results if not result.done]
            give_back(self._context, self._id, left, "The result could not be written.")
            raise

    def _run_one(self, held: Held, results: list[Result]) -> list[Result]:
        held.attempt = attempt = AttemptRun(self._context, held.job, held.job_type, worker_id=self._id, claimed=held.claimed)
        self._ran += 1
        try:
            outcome = attempt.run()
        except BaseException:
            results.append(Result(held, attempt.broken_off("It was interrupted.")))
            raise
        if outcome.lost:
            attempt.over(outcome, written=False)
        return [] if outcome.committed or outcome.lost else [Result(held, outcome)]

    def _give_back(self, unstarted: list[Held]) -> None:
        items = [claimed_item(held.job) for held in unstarted]
        single = not any("job" in item for item in items)
        self._context.database.run(
            lambda session: release_claims(self._context, session, self._id, items),
            single=single,
        )

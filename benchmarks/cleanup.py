"""What a cleanup costs those who work beside it, and what statistics cost in a large database.

    python -m benchmarks.cleanup --quick

A worker of ten slots runs at full load: there is always a backlog, and handlers return at once. Old chains are deleted by
`app.cleanup()`, for a while and then not for a while, in turn, until all are gone: once in the worker's own process, as a
worker does it, and once in another, as the command line does it. What is compared is how long the worker's claims take
from the call to their commit, waiting for locks included. Giving back the space is part of the cleanup.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.harness import Options, Store, Stores, Table, median, percentile, progress, run, seed_jobs
from queuert import Queuert, Retention, RunningJob
from queuert.worker.claimer import Claimer

CONCURRENCY = 10
CHAINS, FEW_CHAINS = 100_000, 10_000
"""Chains that are deleted, and with --quick."""
COMPLETED = (10_000, 100_000, 1_000_000)
"""Completed jobs beside the statistics: the first against the last, with --quick against the second."""
AT_MOST = 2.0
"""How many times as long a claim may take while a cleanup runs."""
WITHOUT, WITH = 2.0, 4.0
"""Seconds of a turn."""
LONGEST = 300.0
"""Seconds after which a measurement ends, whatever is left."""
BACKLOG = 80_000
"""More than a worker runs in the time of two turns."""
MORE_TIME = 2.0
"""How many times as long statistics may take with so many more completed jobs."""
TIMES = 20
LIVE = 1_000
"""Jobs in each live state."""

KEEP = Retention(None, None, None)
OLD = 100
"""Days since the chains that go were closed."""
CLOSED = {"status": "'completed'", "attempt": "1", "last_attempt_at": "at", "completed_at": "at", "completed_by": "'worker'"}
ATTEMPTS = """INSERT INTO queuert_job_attempt (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
    SELECT id, 1, completed_by, completed_at, completed_at, completed_at, 'succeeded' FROM queuert_job
    WHERE type_name = 'old'"""
WAITING = "SELECT count(*) FROM queuert_job WHERE type_name = 'load' AND status = 'pending'"

Clean = Callable[[float], int]
"""Cleans up for so many seconds; how many chains are gone."""

_first = itertools.count(1_000_000, 1_000_000)


# Claims beside a cleanup


class Claims:
    """When claims began, how long they took, and how many jobs they got."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float, int]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        claim, taken = Claimer.claim, self.taken

        def timed(claimer: Claimer, *args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            claimed = claim(claimer, *args, **options)
            if claimed:
                taken.append((start, time.perf_counter() - start, len(claimed)))
            return claimed

        with patch.object(Claimer, "claim", timed):
            yield

    def wait_for_one(self, since: float, deadline: float) -> None:
        """A turn may be over before the worker has claimed anything: then it goes on until it has."""
        while not any(at >= since for at, _, _ in self.taken[-1:]) and time.monotonic() < deadline:
            time.sleep(0.001)


class Part:
    """The claims of all the turns with a cleanup, or of all those without."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.jobs = 0
        self.seconds = 0.0

    def add(self, claims: Claims, start: float, end: float) -> None:
        found = [(seconds, jobs) for at, seconds, jobs in claims.taken if start <= at < end]
        self.times += [seconds for seconds, _ in found]
        self.jobs += sum(jobs for _, jobs in found)
        self.seconds += end - start

    @property
    def typical(self) -> tuple[float, float]:
        return median(self.times), percentile(self.times, 95)


@contextmanager
def cleaning_here(store: Store) -> Iterator[Clean]:
    yield lambda seconds: sum(store.app.cleanup(Retention(), max_seconds=seconds).values())


@contextmanager
def cleaning_elsewhere(store: Store) -> Iterator[Clean]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_clean_when_told, args=(store.url, there), daemon=True)
    process.start()

    def clean(seconds: float) -> int:
        here.send(seconds)
        gone: int = here.recv()
        return gone

    clean(0.0)  # it has started, and connected
    try:
        yield clean
    finally:
        here.send(None)
        process.join(30)


def _clean_when_told(url: str, orders: Any) -> None:
    with Queuert(url) as app:
        while (seconds := orders.recv()) is not None:
            orders.send(sum(app.cleanup(max_seconds=seconds).values()))


def beside_a_cleanup(stores: Stores, dialect: str, options: Options) -> Table:
    chains = FEW_CHAINS if options.quick else CHAINS
    table = Table(
        f"Claims of a worker at full load while {chains:,} chains are deleted, {dialect} (milliseconds: median, p95)",
        ("cleanup", "without it", "with it", "× median", "× p95", "jobs a second", "deleted a second", "line"),
    )
    for where, cleaning in (("in the worker's process", cleaning_here), ("in another process", cleaning_elsewhere)):
        with stores.open(dialect, retention=KEEP) as store:
            progress(f"{where}: making {chains:,} chains")
            seed_jobs(store, chains, types=["old"], days=OLD, columns=_typed(dialect, CLOSED))
            store.script(ATTEMPTS)
            store.settle()
            with cleaning(store) as clean:
                _race(table, where, store, clean, chains)
    return table


def _race(table: Table, where: str, store: Store, clean: Clean, chains: int) -> None:
    @store.app.job("load")
    def load(job: RunningJob[dict[str, Any]]) -> None:
        return None

    claims, watcher, without, during = Claims(), store.connect(), Part(), Part()
    gone, deadline = 0, time.monotonic() + LONGEST

    def with_it() -> None:
        nonlocal gone
        gone += clean(WITH)

    turns: list[tuple[Part, Callable[[], object]]] = [(without, lambda: time.sleep(WITHOUT)), (during, with_it)]
    with claims.watched():
        _refill(store, watcher)
        with store.app.worker(concurrency=CONCURRENCY):
            time.sleep(1.0)
            while gone < chains and time.monotonic() < deadline:
                progress(f"{where}: {gone:,} of {chains:,} deleted")
                _refill(store, watcher)
                for part, work in turns:
                    start = time.perf_counter()
                    work()
                    claims.wait_for_one(start, deadline)
                    part.add(claims, start, time.perf_counter())
                turns.reverse()
    more = [longer / shorter for longer, shorter in zip(during.typical, without.typical, strict=True)]
    table.add(
        where,
        *(" ".join(f"{seconds * 1000:.2f}" for seconds in part.typical) for part in (without, during)),
        *(f"{each:.2f}" for each in more),
        " / ".join(f"{part.jobs / part.seconds:,.0f}" for part in (without, during)),
        f"{gone / during.seconds:,.0f}",
        f"{'ok' if max(more) < AT_MOST and gone >= chains else 'MISSED'} (< {AT_MOST:g})",
    )


def _refill(store: Store, watcher: Any) -> None:
    missing = BACKLOG - watcher.execute(WAITING).fetchone()[0]
    if missing > BACKLOG // 10:
        seed_jobs(store, missing, types=["load"], first=next(_first))


def _typed(dialect: str, columns: dict[str, str]) -> dict[str, str]:
    return columns if dialect == "sqlite" else {**columns, "status": f"{columns['status']}::queuert_job_status"}


# Statistics


def statistics(stores: Stores, dialect: str, options: Options) -> Table:
    """`app.stats()` with live work of the same size beside few and many completed jobs."""
    sizes = (COMPLETED[0], COMPLETED[1 if options.quick else 2])
    table = Table(
        f"app.stats() beside completed jobs, {dialect} (milliseconds, median of {TIMES})",
        (*(f"{size:,}" for size in sizes), "×", "line"),
    )
    taken = []
    for size in sizes:
        progress(f"{size:,} completed jobs")
        with stores.open(dialect, retention=KEEP) as store:
            _fill(store, size)
            found = []
            for _ in range(TIMES):
                start = time.perf_counter()
                stats = store.app.stats()
                found.append(time.perf_counter() - start)
            assert (stats.by_status["running"], stats.by_status["completed"]) == (LIVE, min(size, 10_000))
            taken.append(median(found))
    more = taken[1] / taken[0]
    verdict = f"{'ok' if more <= MORE_TIME else 'MISSED'} (≤ {MORE_TIME:g})"
    table.add(*(f"{seconds * 1000:.2f}" for seconds in taken), f"{more:.2f}", verdict)
    return table


def _fill(store: Store, completed: int) -> None:
    types = [f"type-{number:02}" for number in range(5)]
    now = "strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'" if store.dialect == "sqlite" else "now()"
    live = {
        "pending": {},
        "running": {"leased_by": "'worker'", "leased_until": now, "lease_token": "1", "last_attempt_at": "at", "attempt": "1"},
        "failed": {"error_code": "'TIMEOUT:GATEWAY'", "completed_at": now, "attempt": "25"},
    }
    for number, (status, columns) in enumerate(live.items(), 1):
        whole = _typed(store.dialect, {"status": f"'{status}'", **columns})
        seed_jobs(store, LIVE, types=types, first=number * 10_000_000, columns=whole)
    seed_jobs(store, completed, types=types, days=OLD, columns=_typed(store.dialect, CLOSED))
    store.settle()


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        yield beside_a_cleanup(stores, dialect, options)
    for dialect in options.databases:
        yield statistics(stores, dialect, options)


if __name__ == "__main__":
    run("Cleaning up beside a worker, and statistics of a large database.", measure)

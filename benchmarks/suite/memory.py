"""How a worker's memory grows from its 100,000th job to its 1,000,000th.

The worker has a process of its own. On a slow machine it is stopped before the end, and what it would have grown by is
calculated from what it grew by until then; `--memory` runs to the end, however long that takes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.drain import CONCURRENCY
from benchmarks.harness import Store, Table, progress, seed_jobs
from benchmarks.suite.context import Context
from benchmarks.suite.lines import NAMES
from queuert import Queuert, RunningJob

FIRST, LAST = 100_000, 1_000_000
SECONDS = 90.0
"""How long a run lasts at most, unless it is to run to its end."""
QUIET = 15.0
"""Seconds without a job after which it is over."""
MEGABYTE = 1_000_000

Point = tuple[int, int]
"""Jobs done, and bytes resident."""


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work(url: str, every: int, points: Any, stop: Any) -> None:
    app, counter = Queuert(url), itertools.count(1)

    @app.job("plain")
    def plain(job: RunningJob[dict[str, Any]]) -> None:
        number = next(counter)
        if number % every == 0:
            points.put((number, resident()))

    with app, app.worker(concurrency=CONCURRENCY):
        stop.wait()


def memory(context: Context) -> Iterator[Table]:
    options = context.options
    first, last = options.size(FIRST, 4_000, 400), options.size(LAST, 20_000, 1_000)
    seconds = float("inf") if context.memory_in_full else SECONDS
    table = Table(
        f"Memory of a worker from job {first:,} to job {last:,}",
        ("database", "jobs run", f"MB at {first:,}", "MB at the end", "grown by", f"to {last:,}"),
    )
    for dialect in options.databases:
        with context.stores.open(dialect) as store:
            progress(f"memory: {last:,} jobs, {dialect}")
            seed_jobs(store, last, types=["plain"])
            store.settle()
            points = _points(store, first, last, seconds)
        if not points or points[-1][0] <= first:
            table.add(NAMES[dialect], f"{points[-1][0] if points else 0:,}", "", "", "", "too slow to say")
            continue
        (begun, before), (ended, after) = next(point for point in points if point[0] >= first), points[-1]
        grown = (after - before) / MEGABYTE
        in_all = grown * (last - first) / (ended - begun)
        measured = ended >= last
        context.findings.add(dialect, "memory", in_all)
        cells = f"{before / MEGABYTE:.1f}", f"{after / MEGABYTE:.1f}", f"{grown:+.1f} MB"
        table.add(NAMES[dialect], f"{ended:,}", *cells, f"{in_all:+.1f} MB, {'measured' if measured else 'calculated'}")
    if any("calculated" in row[-1] for row in table.rows):
        table.notes.append("Calculated: as if it went on growing as it did; run with --memory to measure it.")
    yield table


def _points(store: Store, first: int, jobs: int, seconds: float) -> list[Point]:
    spawn = multiprocessing.get_context("spawn")
    queue, stop = spawn.SimpleQueue(), spawn.Event()
    every = max(1, first // 10)
    process = spawn.Process(target=work, args=(store.url, every, queue, stop), daemon=True)
    process.start()
    points: list[Point] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and queue._reader.poll(QUIET):  # type: ignore[attr-defined]  # a SimpleQueue has no timeout of its own
        points.append(queue.get())
        progress(f"memory: {points[-1][0]:,} of {jobs:,} jobs, {store.dialect}")
        if points[-1][0] + every > jobs:
            break
    stop.set()
    process.join(60)
    return points

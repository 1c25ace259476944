"""One to four processes with the same number of slots in all.

Processes start before the time does, and have run some jobs by then: they have their connections, and the server has its plans.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnContext
from typing import Any

from benchmarks.bare import bare
from benchmarks.drain import SECONDS, Draining, define_types, fill
from benchmarks.harness import PAYLOAD, Contender, Store, Table, progress, race
from benchmarks.suite.context import Context
from benchmarks.suite.lines import NAMES
from queuert import NewChain, Queuert

SLOTS = 12
"""Divides by all of the numbers of processes."""
COUNTS = (1, 2, 4)
WARM_UP = 100
"""Jobs for each slot, before the time starts."""


def work(url: str, slots: int, ready: Any, warm: Any, go: Any, stop: Any) -> None:
    app = Queuert(url)
    define_types(app, "sqlite" if url.startswith("sqlite") else "postgres")
    worker = app.worker(concurrency=slots, types=["plain"])
    worker.start()
    ready.release()
    warm.wait()
    worker.stop()
    ready.release()
    go.wait()
    worker.start()
    stop.wait()
    worker.stop()
    app.close()


class Crew:
    """Some processes that drain together."""

    def __init__(self, store: Store, processes: int, jobs: int) -> None:
        self._store = store
        self._processes = processes
        self._jobs = jobs
        self._bare = bare(store)
        self._draining = Draining(store, ["plain"])
        self._spawn: SpawnContext = multiprocessing.get_context("spawn")

    def prepare(self) -> None:
        self._ready = self._spawn.Semaphore(0)
        warm, self._go, self._stop = self._spawn.Event(), self._spawn.Event(), self._spawn.Event()
        arguments = (self._store.url, SLOTS // self._processes, self._ready, warm, self._go, self._stop)
        self._running = [self._spawn.Process(target=work, args=arguments, daemon=True) for _ in range(self._processes)]
        for process in self._running:
            process.start()
        self._wait_until_ready()
        # Through the library, which wakes all of them.
        self._store.app.start_chains([NewChain("plain", PAYLOAD) for _ in range(min(WARM_UP * SLOTS, self._jobs))])
        self._draining.wait(time.monotonic() + SECONDS)
        warm.set()
        self._wait_until_ready()
        fill(self._bare, "plain", self._jobs)
        self._store.settle()
        self._before = self._draining.count_open()

    def _wait_until_ready(self) -> None:
        for _ in self._running:
            if not self._ready.acquire(timeout=30):
                raise RuntimeError("A worker's process did not start.")

    def run(self) -> int:
        self._go.set()
        return self._before - self._draining.wait(time.monotonic() + SECONDS)

    def finish(self) -> None:
        self._stop.set()
        for process in self._running:
            process.join(30)


def processes(context: Context) -> Iterator[Table]:
    jobs = context.options.size(20_000, 1_500, 200)
    counts = COUNTS if not context.options.smoke else (1, 4)
    for dialect in context.options.databases:
        progress(f"1 to 4 processes, {dialect}")
        with context.stores.open(dialect) as store:
            store.app.declare("plain")
            crews = {str(count): Crew(store, count, jobs) for count in counts}
            result = race(
                [Contender(name, crew.run, crew.prepare, crew.finish) for name, crew in crews.items()],
                rounds=context.options.rounds,
                turns=1,
                warm_up=0,
            )
        context.findings.add(dialect, "processes", result.ratio("4", "1"))
        table = Table(
            f"Processes, {SLOTS} slots in all, {NAMES[dialect]} (jobs a second)",
            ("processes", "jobs/s", "lowest … highest", "÷ one process", "lowest … highest"),
        )
        for name, rates in result.rates.items():
            ratios = result.ratios(name, "1")
            spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
            found = f"{result.rate(name):,.0f}", f"{min(rates):,.0f} … {max(rates):,.0f}"
            table.add(name, *found, f"{result.ratio(name, '1'):.2f}", spread)
        yield table

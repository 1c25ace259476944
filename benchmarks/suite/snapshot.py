"""Full load while a transaction keeps its snapshot: dead rows cannot be removed, and claims must not drown in them.

A process enqueues as quickly as the worker works, so that there is always a backlog, but not a growing one.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.bare import bare
from benchmarks.drain import CONCURRENCY
from benchmarks.harness import PAYLOAD, Store, Table, progress
from benchmarks.suite.chart import Chart
from benchmarks.suite.context import Context
from queuert import Queuert, RunningJob

BACKLOG = 10_000
BATCH = 1_000


def produce(url: str, done: Any, stop: Any) -> None:
    app = Queuert(url)
    producer = bare(Store("postgres", url, app))
    made = 0
    while not stop.is_set():
        if made - done.value < BACKLOG:
            producer.insert_many("plain", [PAYLOAD] * BATCH)
            made += BATCH
        else:
            time.sleep(0.02)
    app.close()


def snapshot(context: Context) -> Iterator[Table]:
    if "postgres" not in context.options.databases:
        return
    seconds = context.options.size(180, 18, 3)
    part = seconds / 6
    with context.stores.open("postgres") as store:
        rates = _rates(store, seconds, part)
    context.findings.add("postgres", "snapshot", rates[-1] / rates[0])
    table = Table(
        f"Full load with a snapshot held for {seconds} seconds, PostgreSQL (jobs a second)",
        ("seconds", "jobs/s", "÷ the first"),
    )
    names = [f"{number * part:.0f} – {(number + 1) * part:.0f}" for number in range(len(rates))]
    for name, rate in zip(names, rates, strict=True):
        table.add(name, f"{rate:,.0f}", f"{rate / rates[0]:.2f}")
    table.notes.append("A second process enqueues as many as are worked off.")
    context.charts.append(
        Chart("Full load with a held snapshot, PostgreSQL", "jobs a second", dict(zip(names, rates, strict=True)))
    )
    yield table


def _rates(store: Store, seconds: float, part: float) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    done, stop = spawn.Value("q", 0, lock=False), spawn.Event()
    counter = itertools.count(1)

    @store.app.job("plain")
    def plain(job: RunningJob[dict[str, Any]]) -> None:
        done.value = max(done.value, next(counter))

    producer = spawn.Process(target=produce, args=(store.url, done, stop), daemon=True)
    producer.start()
    holder = store.connect(autocommit=False)
    rates = []
    try:
        with store.app.worker(concurrency=CONCURRENCY):
            while done.value < BATCH:
                time.sleep(0.05)
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM queuert_job").fetchone()
            for number in range(round(seconds / part)):
                progress(f"held snapshot: {number * part:.0f} of {seconds:.0f} seconds")
                before, begun = done.value, time.perf_counter()
                time.sleep(part)
                rates.append((done.value - before) / (time.perf_counter() - begun))
    finally:
        stop.set()
        producer.join(30)
    return rates

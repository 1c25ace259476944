"""From commit to the start of the handler: the library in all ways to commit, and against its peers, one job at a time.

Peers and the library take turns, job by job, with a worker each in another process.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.harness import PAYLOAD, Table, percentile, progress
from benchmarks.latency import PERCENTS, Sample, milliseconds, results, table_of
from benchmarks.suite.chart import Chart
from benchmarks.suite.context import OURS, Context
from benchmarks.suite.lines import NAMES
from benchmarks.suite.serving import Served, served, wait_for
from queuert import Queuert

PAUSE = (0.01, 0.04)
"""So long that a worker falls asleep."""
SLOTS = 2


def latency(context: Context) -> Iterator[Table]:
    for dialect in context.options.databases:
        with context.stores.open(dialect) as store:
            found = results(store, context.options.rounds, context.options.size(100, 25, 5))
        told = [result for result in found if dialect == "postgres" or not result.across]
        context.findings.add(dialect, "latency/bare", max(statistics.median(result.times(dialect)) for result in told))
        if dialect == "sqlite":
            across = [result.worst(dialect) for result in found if result.across]
            context.findings.add(dialect, "latency across", 1000 * max(across))
        yield table_of(dialect, found)
        yield against_peers(context, dialect)


def against_peers(context: Context, dialect: str) -> Table:
    progress(f"latency of all contenders, {dialect}")
    commits: dict[str, Callable[[], Sample]] = {}
    workers: dict[str, Served] = {}
    with ExitStack() as stack:
        peers, notes = stack.enter_context(context.open_peers(dialect))
        store = stack.enter_context(context.stores.open(dialect))
        store.app.declare("ping")
        workers[OURS] = stack.enter_context(served(None, store.url, SLOTS))
        commits[OURS] = lambda: _start(store.app)
        for peer in peers:
            commits[peer.name] = partial(peer.enqueue_timed, PAYLOAD)
            workers[peer.name] = stack.enter_context(served(type(peer), peer.url, SLOTS))
        wait_for(workers, notes)
        samples = _sample(commits, workers, context.options.size(300, 20, 3), notes)
    return _table(context, dialect, samples, notes)


def _start(app: Queuert) -> Sample:
    called = time.perf_counter()
    app.start_chain("ping", PAYLOAD)
    return called, time.perf_counter()


def _sample(
    commits: dict[str, Callable[[], Sample]], workers: dict[str, Served], count: int, notes: list[str]
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in workers}
    for number in range(count + 2):
        for name in list(samples):
            time.sleep(random.uniform(*PAUSE))
            try:
                called, returned = commits[name]()
                started = workers[name].start()
            except Exception as error:
                if name == OURS:
                    raise
                notes.append(f"{name} failed: {error}")
                del samples[name]
                continue
            if number >= 2:  # the first are for caches and connections
                samples[name].append((started - called, started - returned))
    return samples


def _table(context: Context, dialect: str, samples: dict[str, list[Sample]], notes: list[str]) -> Table:
    table = Table(
        f"From enqueueing to the start of the handler, idle, other process, {NAMES[dialect]} (milliseconds)",
        ("contender", *(f"call p{p}" for p in PERCENTS), *(f"return p{p}" for p in PERCENTS)),
    )
    worst = {}
    for name, found in samples.items():
        calls, returns = [sample[0] for sample in found], [sample[1] for sample in found]
        worst[name] = percentile(returns, 99)
        table.add(name, *milliseconds(calls), *milliseconds(returns))
    theirs = [value for name, value in worst.items() if name != OURS]
    if theirs:
        context.findings.add(dialect, "latency/peers", worst[OURS] / min(theirs))
    title = f"Enqueueing to handler start, p50, {NAMES[dialect]}"
    medians = {name: 1000 * percentile([sample[0] for sample in found], 50) for name, found in samples.items()}
    context.charts.append(Chart(title, "milliseconds", medians))
    table.notes += ["From the call that enqueues, and from its return; below zero: the handler was first.", *notes]
    return table

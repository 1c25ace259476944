"""How the cost of single operations grows with the tables: more pending jobs, and more completed ones.

Work is counted (pages touched on PostgreSQL, steps of the virtual machine on SQLite) and time taken; the databases take
turns. Statistics count at most so many jobs in each state, as they do by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.harness import Store, Table, median, progress, seed_jobs
from benchmarks.storage import TIMES, TYPES, Queue, hot_costs
from benchmarks.suite.context import Context
from benchmarks.suite.lines import NAMES
from queuert import Queuert

COMPLETED = {"status": "'completed'", "completed_at": "at", "completed_by": "'w'", "attempt": "1", "output": "'null'"}

READS: dict[str, Callable[[Queuert], object]] = {
    "list_chains(statuses=['pending'])": lambda app: app.list_chains(statuses=["pending"]),
    "list_chains(statuses=['completed'])": lambda app: app.list_chains(statuses=["completed"]),
    "list_chains(statuses=['failed'])": lambda app: app.list_chains(statuses=["failed"]),
    "stats()": lambda app: app.stats(),
}


def growth(context: Context) -> Iterator[Table]:
    small, middle, large = (
        10_000,
        context.options.size(100_000, 20_000, 11_000),
        context.options.size(1_000_000, 50_000, 12_000),
    )
    sizes = [(small, small), (middle, small), (large, small), (small, large)]
    for dialect in context.options.databases:
        with ExitStack() as stack:
            stores = [stack.enter_context(_seeded(context, dialect, *size)) for size in sizes]
            columns = [f"{_short(pending)} pending, {_short(completed)} completed" for pending, completed in sizes]
            yield _hot(context, dialect, columns, stores)
            yield _reads(context, dialect, columns, stores)


@contextmanager
def _seeded(context: Context, dialect: str, pending: int, completed: int) -> Iterator[Store]:
    with context.stores.open(dialect) as store:
        progress(f"growth: {pending:,} pending and {completed:,} completed jobs, {dialect}")
        seed_jobs(store, completed, types=TYPES, first=pending, days=3, columns=COMPLETED)
        seed_jobs(store, pending, types=TYPES)
        store.settle()
        yield store


def _hot(context: Context, dialect: str, columns: Sequence[str], stores: Sequence[Store]) -> Table:
    """Claims, completions and inserts of 100 jobs."""
    what = "VM steps" if dialect == "sqlite" else "buffers"
    title = f"Growth, {NAMES[dialect]} ({what} and milliseconds for 100 jobs, median of {TIMES})"
    table = Table(title, ("operation", *columns, f"× {what}", "× time"))
    more: list[tuple[float, float]] = []
    for name, costs in hot_costs([Queue(store) for store in stores]).items():
        large = costs[2:]
        more.append((max(work for work, _ in large) / costs[0][0], max(seconds for _, seconds in large) / costs[0][1]))
        cells = [f"{work:,.0f} · {1000 * seconds:.2f}" for work, seconds in costs]
        table.add(name, *cells, f"{more[-1][0]:.2f}", f"{more[-1][1]:.2f}")
    context.findings.add(dialect, "growth/work", max(work for work, _ in more))
    context.findings.add(dialect, "growth/time", max(seconds for _, seconds in more))
    return table


def _reads(context: Context, dialect: str, columns: Sequence[str], stores: Sequence[Store]) -> Table:
    """The first page of chains in a state, and statistics."""
    table = Table(f"Growth of reads, {NAMES[dialect]} (milliseconds, median of {TIMES})", ("operation", *columns, "× time"))
    worst: dict[str, tuple[float, float]] = {}
    for name, read in READS.items():
        progress(f"growth: {name}, {dialect}")
        times: list[list[float]] = [[] for _ in stores]
        for number in range(TIMES + 1):
            for store, own in zip(stores, times, strict=True):
                begun = time.perf_counter()
                read(store.app)
                if number:  # the first prepares statements
                    own.append(1000 * (time.perf_counter() - begun))
        found = [median(own) for own in times]
        longest = max(found[2:])
        more = longest / found[0]
        table.add(name, *(f"{value:.2f}" for value in found), f"{more:.2f}")
        call = name.partition("(")[0]
        before = worst.get(call, (0.0, 0.0))
        worst[call] = max(before[0], more), max(before[1], longest)
    for call, (more, longest) in worst.items():
        context.findings.add(dialect, f"{call}/time", more)
        context.findings.add(dialect, f"{call}/ms", longest)
    return table


def _short(number: int) -> str:
    return f"{number // 1_000_000}M" if number >= 1_000_000 else f"{number // 1_000}k"

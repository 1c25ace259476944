"""How long an idle worker takes from a commit to the start of the handler.

    python -m benchmarks.latency --quick

One job at a time, with a pause in between, so that the worker sleeps when it comes; the yardstick is measured in between
the jobs. It is, on PostgreSQL, a bare NOTIFY until `notifies()` has it on another connection; on SQLite, a bare commit and a
claim with its commit, in one thread.

Times count from the call that commits ("call") and from its return ("return"). The ways to commit take turns, round by round,
each time with a new worker. One hiccup of the machine is the p99 of a round; so the median of the rounds is what counts.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from typing import Any

from benchmarks.bare import bare
from benchmarks.harness import PAYLOAD, Options, Store, Stores, Table, percentile, progress, run
from queuert import Queuert, RunningJob

TIMES = {"postgres": 3.0, "sqlite": 5.0}
"""How many times the yardstick's p99 the worker's may be."""
ACROSS_SQLITE = 0.030
PERCENTS = (50, 95, 99)

Sample = tuple[float, float]
"""Seconds from the call of the commit, and from its return, to the start of the handler."""
Starts = Any
"""A queue of the times at which handlers started. CLOCK_MONOTONIC is the same for all processes of a machine."""


def define_type(app: Queuert, starts: Starts) -> None:
    @app.job("ping")
    def ping(job: RunningJob[dict[str, Any]]) -> None:
        starts.put(time.perf_counter())


def in_other_process(url: str, starts: SimpleQueue[float], ready: Any, stop: Any) -> None:
    app = Queuert(url)
    define_type(app, starts)
    with app.worker(concurrency=2):
        ready.set()
        stop.wait()
    app.close()


@contextmanager
def worker_here(store: Store) -> Iterator[tuple[Queuert, Starts]]:
    starts: queue.SimpleQueue[float] = queue.SimpleQueue()
    app = Queuert(store.url)
    define_type(app, starts)
    with app, app.worker(concurrency=2):
        yield app, starts


@contextmanager
def worker_elsewhere(store: Store) -> Iterator[tuple[Queuert, Starts]]:
    context = multiprocessing.get_context("spawn")
    starts, ready, stop = context.SimpleQueue(), context.Event(), context.Event()
    process = context.Process(target=in_other_process, args=(store.url, starts, ready, stop), daemon=True)
    process.start()
    app = Queuert(store.url)
    app.declare("ping")
    try:
        if not ready.wait(30):
            raise RuntimeError("The worker's process did not start.")
        yield app, starts
    finally:
        stop.set()
        process.join(30)
        app.close()


def in_block(app: Queuert, store: Store) -> Callable[[], Sample]:
    """Commit by `app.transaction()`."""

    def commit() -> Sample:
        with app.transaction() as tx:
            app.start_chain("ping", PAYLOAD, conn=tx)
            called = time.perf_counter()
        return called, time.perf_counter()

    return commit


def on_connection(app: Queuert, store: Store) -> Callable[[], Sample]:
    """Commit by the user's own connection, of which the library is not told."""
    conn = store.connect(autocommit=False)
    app.configure_connection(conn)

    def commit() -> Sample:
        app.start_chain("ping", PAYLOAD, conn=conn)
        called = time.perf_counter()
        conn.commit()
        return called, time.perf_counter()

    return commit


class NotifyRoundTrip:
    """A bare NOTIFY, until a thread that listens has it."""

    def __init__(self, store: Store) -> None:
        self._sender, self._listener = store.connect(), store.connect()
        self._listener.execute("LISTEN bench_ping")
        self._heard: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for notice in self._listener.notifies():
            self._heard.put(time.perf_counter())
            if notice.payload == "end":
                return

    def sample(self) -> float:
        start = time.perf_counter()
        self._sender.execute("NOTIFY bench_ping")
        return self._heard.get() - start

    def close(self) -> None:
        self._sender.execute("NOTIFY bench_ping, 'end'")
        self._thread.join()


class TwoCommits:
    """A bare commit of one job, and a claim of it with its commit."""

    def __init__(self, store: Store) -> None:
        self._bare = bare(store)

    def sample(self) -> float:
        conn = self._bare.conn
        conn.execute("BEGIN")
        self._bare.insert_one("yardstick", PAYLOAD)
        start = time.perf_counter()
        conn.execute("COMMIT")
        self._bare.claim("yardstick", 1)
        return time.perf_counter() - start

    def close(self) -> None:
        pass


def sample(commit: Callable[[], Sample], starts: Starts, yardstick: Any, count: int) -> tuple[list[Sample], list[float]]:
    """Alternate jobs and yardstick, with pauses in which the worker falls asleep."""
    found, bare_times = [], []
    for number in range(count + 5):
        time.sleep(random.uniform(0.01, 0.04))
        called, returned = commit()
        started = starts.get()
        time.sleep(random.uniform(0.01, 0.04))
        bare_time = yardstick.sample()
        if number >= 5:
            found.append((started - called, started - returned))
            bare_times.append(bare_time)
    return found, bare_times


@dataclass
class Round:
    """What was found in one turn of a way to commit, and the yardstick meanwhile."""

    samples: list[Sample]
    bare_times: list[float]

    def worst(self, dialect: str) -> float:
        """The p99 that counts."""
        return percentile([sample[dialect == "postgres"] for sample in self.samples], 99)

    def times(self, dialect: str) -> float:
        return self.worst(dialect) / percentile(self.bare_times, 99)


@dataclass
class Result:
    """One way to commit, with a worker in one place."""

    label: str
    across: bool
    """Whether the worker cannot be told by the one who commits."""
    rounds: list[Round]

    @property
    def calls(self) -> list[float]:
        return [sample[0] for turn in self.rounds for sample in turn.samples]

    @property
    def returns(self) -> list[float]:
        return [sample[1] for turn in self.rounds for sample in turn.samples]

    @property
    def bare_times(self) -> list[float]:
        return [found for turn in self.rounds for found in turn.bare_times]

    def worst(self, dialect: str) -> float:
        return statistics.median(turn.worst(dialect) for turn in self.rounds)

    def times(self, dialect: str) -> list[float]:
        """How many times the yardstick, round by round."""
        return [turn.times(dialect) for turn in self.rounds]


WORKERS = {"same process": worker_here, "other process": worker_elsewhere}
COMMITS = {"app.transaction()": in_block, "own connection": on_connection}


def results(store: Store, rounds: int, count: int) -> list[Result]:
    """All ways to commit, in turns."""
    ways = [(where, how) for where in WORKERS for how in COMMITS]
    found = [Result(f"{where}, {how}", where == "other process" or how != "app.transaction()", []) for where, how in ways]
    yardstick: Any = NotifyRoundTrip(store) if store.dialect == "postgres" else TwoCommits(store)
    for number in range(rounds):
        for (where, how), result in zip(ways, found, strict=True):
            progress(f"latency, {store.dialect}: {result.label}, round {number + 1} of {rounds}")
            with WORKERS[where](store) as (app, starts):
                result.rounds.append(Round(*sample(COMMITS[how](app, store), starts, yardstick, count)))
    yardstick.close()
    return found


def latency(store: Store, options: Options) -> Table:
    return table_of(store.dialect, results(store, options.rounds, 40 if options.quick else 100))


def table_of(dialect: str, found: list[Result]) -> Table:
    table = Table(
        f"From commit to the start of the handler, idle, {dialect} (milliseconds)",
        (
            "worker, commit",
            *(f"call p{p}" for p in PERCENTS),
            *(f"return p{p}" for p in PERCENTS),
            "bare p50",
            "bare p99",
            "p99 ×",
            "lowest … highest",
            "line",
        ),
    )
    for result in found:
        _add(table, dialect, result)
    table.notes.append("The last columns: of the p99 of each round, the median, and the spread.")
    if dialect == "sqlite":
        table.notes.append("A commit on one's own connection is seen by polling, as one of another process is.")
    return table


def _add(table: Table, dialect: str, result: Result) -> None:
    worst, times = result.worst(dialect), result.times(dialect)
    if dialect == "sqlite" and result.across:
        good, line = worst <= ACROSS_SQLITE, f"≤ {ACROSS_SQLITE * 1000:.0f} ms"
    else:
        good, line = statistics.median(times) <= TIMES[dialect], f"≤ {TIMES[dialect]:g} ×"
    cells = [*milliseconds(result.calls), *milliseconds(result.returns)]
    bare_cells = [f"{percentile(result.bare_times, p) * 1000:.2f}" for p in (50, 99)]
    spread = f"{min(times):.1f} … {max(times):.1f}"
    verdict = f"{'ok' if good else 'MISSED'} ({line})"
    table.add(result.label, *cells, *bare_cells, f"{statistics.median(times):.1f}", spread, verdict)


def milliseconds(values: list[float]) -> list[str]:
    return [f"{percentile(values, p) * 1000:.2f}" for p in PERCENTS]


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        with stores.open(dialect) as store:
            yield latency(store, options)


if __name__ == "__main__":
    run("From commit to the start of the handler.", measure)

"""How fast a worker empties a queue, against the bare driver doing the same writes.

    python -m benchmarks.drain --quick

Plain handlers return at once; the bare driver claims 100 and completes 100, in one thread. Handlers with a write of
their own make it inside `complete()`, so that each has a transaction; the bare driver does that in ten threads, fed by one
that claims 100 at a time. On SQLite those threads take turns by a lock, which is faster than to let them meet in the file.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.bare import bare
from benchmarks.harness import PAYLOAD, RATIO_COLUMNS, Contender, Options, Store, Stores, Table, progress, race, run
from benchmarks.peers.base import handled
from queuert import Queuert, RunningJob

CONCURRENCY = 10
SECONDS = 10.0
"""The longest that one run may take."""
LEAST = {"sqlite": {"plain": 0.5, "writing": 1.0}, "postgres": {"plain": 0.6, "writing": 0.7}}

EFFECT = {
    "sqlite": "INSERT INTO effect (job_id, note) VALUES (?, ?)",
    "postgres": "INSERT INTO effect (job_id, note) VALUES (%s, %s)",
}
EFFECT_TABLE = {
    "sqlite": "CREATE TABLE effect (id INTEGER PRIMARY KEY, job_id TEXT NOT NULL, note TEXT NOT NULL)",
    "postgres": "CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, job_id uuid NOT NULL, note text NOT NULL)",
}
OPEN = "FROM queuert_job WHERE type_name IN ({}) AND status IN ('blocked', 'pending', 'running')"


def define_types(app: Queuert, dialect: str) -> None:
    @app.job("plain")
    def plain(job: RunningJob[dict[str, Any]]) -> None:
        handled.hit()

    @app.job("writing")
    def writing(job: RunningJob[dict[str, Any]]) -> None:
        handled.hit()
        with job.complete() as tx:
            tx.execute(EFFECT[dialect], (job.id, "done"))


class Draining:
    """A worker of the library, from its start until no job of some types is open, or the time is over."""

    def __init__(self, store: Store, types: Sequence[str], *, counted: bool = True) -> None:
        """`counted` says that the handlers count, so that the database is not asked before all of them have begun."""
        self._store = store
        self._types = list(types)
        self._counted = counted
        self._open = OPEN.format(", ".join(f"'{name}'" for name in types))
        self._watcher = store.connect()

    def run(self) -> int:
        """How many jobs are done."""
        before = self.count_open()
        handled.reset()
        self._worker = self._store.app.worker(concurrency=CONCURRENCY, types=self._types)
        self._worker.start()
        deadline = time.monotonic() + SECONDS
        while self._counted and handled.count < before and time.monotonic() < deadline:
            time.sleep(0.005)
        return before - self.wait(deadline)

    def wait(self, deadline: float) -> int:
        """How many jobs are left."""
        while self._watcher.execute(f"SELECT 1 {self._open} LIMIT 1").fetchone():
            if time.monotonic() > deadline:
                return self.count_open()
            time.sleep(0.01)
        return 0

    def count_open(self) -> int:
        count: int = self._watcher.execute(f"SELECT count(*) {self._open}").fetchone()[0]
        return count

    def stop(self) -> None:
        self._worker.stop()


class Runs:
    """One run of each contender on the jobs of its type."""

    def __init__(self, store: Store, jobs: int) -> None:
        self._store = store
        self._jobs = jobs
        self._bare = bare(store)
        self._lock = threading.Lock()

    def fill(self, type_name: str) -> None:
        fill(self._bare, type_name, self._jobs)

    def fill_and_settle(self, type_name: str) -> None:
        self.fill(type_name)
        self._store.settle()

    def bare_batches(self, type_name: str) -> int:
        done = 0
        while claimed := self._bare.claim(type_name, 100):
            for job in claimed:
                if isinstance(job[2], str):
                    json.loads(job[2])
            done += self._bare.complete_many(claimed, [None] * len(claimed))
        return done

    def bare_threads(self, type_name: str) -> int:
        jobs: queue.Queue[Any] = queue.Queue(maxsize=200)
        done: list[int] = []

        def complete() -> None:
            conn, count = self._store.connect(), 0
            while (job := jobs.get()) is not None:
                if isinstance(job[2], str):
                    json.loads(job[2])
                count += self._bare_transaction(conn, job)
            done.append(count)

        threads = [threading.Thread(target=complete) for _ in range(CONCURRENCY)]
        for thread in threads:
            thread.start()
        while claimed := self._bare_claim(type_name):
            for job in claimed:
                jobs.put(job)
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            thread.join()
        return sum(done)

    def _bare_claim(self, type_name: str) -> list[Any]:
        if self._store.dialect == "postgres":
            return self._bare.claim(type_name, 100)
        with self._lock:
            return self._bare.claim(type_name, 100)

    def _bare_transaction(self, conn: Any, job: Any) -> int:
        effect = EFFECT[self._store.dialect]
        if self._store.dialect == "postgres":
            with conn.transaction():
                conn.execute(effect, (job[0], "done"))
                return self._bare.complete_one(job, None, conn)
        with self._lock:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute(effect, (job[0], "done"))
            changed = self._bare.complete_within(conn, job, None)
            conn.execute("COMMIT")
            return changed


def fill(bare_driver: Any, type_name: str, jobs: int) -> None:
    for start in range(0, jobs, 1_000):
        bare_driver.insert_many(type_name, [PAYLOAD] * min(1_000, jobs - start))


def drain(store: Store, options: Options) -> Table:
    define_types(store.app, store.dialect)
    store.script(EFFECT_TABLE[store.dialect])
    table = Table(
        f"Draining, {store.dialect}, {CONCURRENCY} slots (jobs a second)",
        RATIO_COLUMNS,
    )
    for type_name, label, jobs in (
        ("plain", "plain handlers", 3_000 if options.quick else 10_000),
        ("writing", "a write inside complete()", 600 if options.quick else 3_000),
    ):
        progress(f"draining: {label}")
        runs, ours = Runs(store, jobs), Draining(store, [type_name])
        theirs = runs.bare_batches if type_name == "plain" else runs.bare_threads
        prepare = partial(runs.fill_and_settle, type_name)
        result = race(
            [
                Contender("queuert", ours.run, prepare, ours.stop),
                Contender("bare", partial(theirs, type_name), prepare),
            ],
            rounds=options.rounds,
            turns=1,
            warm_up=1,
        )
        table.add_ratio(label, result, "queuert", "bare", LEAST[store.dialect][type_name])
    return table


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        with stores.open(dialect) as store:
            yield drain(store, options)


if __name__ == "__main__":
    run("Draining a queue against the bare driver.", measure)

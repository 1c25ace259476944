"""What the processes of these tests run, on either release: `python load.py '{"role": ..., "url": ..., "marks": ...}'`.

It keeps to what the public API has had since the first release. Every handler that writes does so into a table without a
unique constraint, so that what happens twice is there twice.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from support import eventually
from support.fleet import Marks

import queuert
from queuert import Backoff, Continuation, Dedup, JobTypes, Lease, NewChain, Queuert, RunningJob

WITHIN = 60.0
HELD = 3
PACE = 0.03  # seconds between two rounds of an enqueuer: the workers keep up
PLAIN = ("third", "quick", "gather")
WRITERS = ("first", "second", "leaf", "join", "keyed", "held", "orphaned")


def write(tx: Any, table: str, *values: object) -> None:
    """Insert a row, whichever the driver."""
    mark = "?" if isinstance(tx, sqlite3.Connection) else "%s"
    tx.execute(f"INSERT INTO {table} VALUES ({', '.join([mark] * len(values))})", values)


def make_types(marks: Marks, gate: Path) -> JobTypes:
    types = JobTypes(lease=Lease(duration=2), backoff=Backoff(initial=0.1, maximum=0.5, jitter=0))

    def record(job: RunningJob[Any], tx: Any) -> None:
        write(tx, "ledger", job.id, job.type_name)

    def started(job: RunningJob[Any]) -> None:
        marks.write("started", job.id, job.attempt, job.type_name)

    @types.job("first", continues_with=["second"])
    def first(job: RunningJob[int]) -> Continuation:
        started(job)
        with job.complete() as tx:
            record(job, tx)
            return job.continue_with("second", job.input + 1)

    @types.job("second", entry=False, continues_with=["third"])
    def second(job: RunningJob[int]) -> Continuation:
        started(job)
        with job.complete() as tx:
            record(job, tx)
        return job.continue_with("third", job.input + 1)

    @types.job("third", entry=False)
    def third(job: RunningJob[int]) -> int:
        started(job)
        return job.input + 1

    @types.job("leaf")
    def leaf(job: RunningJob[int]) -> int:
        started(job)
        with job.complete() as tx:
            record(job, tx)
        return job.input

    @types.job("join", blockers=["leaf"])
    def join(job: RunningJob[None]) -> list[int]:
        started(job)
        with job.complete() as tx:
            record(job, tx)
            return [int(blocker.output) for blocker in job.blockers]

    # Their results are written in groups.

    @types.job("quick")
    def quick(job: RunningJob[int]) -> int:
        started(job)
        return job.input

    @types.job("gather", blockers=["quick"])
    def gather(job: RunningJob[None]) -> list[int]:
        started(job)
        return [int(blocker.output) for blocker in job.blockers]

    @types.job("keyed")
    def keyed(job: RunningJob[None]) -> None:
        started(job)
        with job.complete() as tx:
            record(job, tx)

    @types.job("held")
    def held(job: RunningJob[None]) -> None:
        """Runs for as long as the gate is closed."""
        started(job)
        eventually(gate.exists, WITHIN)
        with job.complete() as tx:
            record(job, tx)

    @types.job("orphaned")
    def orphaned(job: RunningJob[None]) -> None:
        """Takes its process with it, once."""
        started(job)
        if job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with job.complete() as tx:
            record(job, tx)

    return types


def fill(app: Queuert) -> None:
    """Make the tables, and have some work of each kind in them: none has been run, and a part is for later."""
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (job_id text, type_name text)")
        tx.execute("CREATE TABLE orders (chain_id text)")
    app.start_chain("orphaned")
    for number in range(HELD):
        app.start_chain("held", dedup=Dedup(f"held-{number}"))
    app.start_chains([NewChain("keyed", dedup=Dedup(f"old-{n}", scope="any", window=3600), after=n) for n in range(5)])
    leaves = app.start_chains([NewChain("leaf", n, after=n % 6) for n in range(30)])
    app.start_chains([NewChain("join", blockers=leaves[n : n + 3]) for n in range(0, 30, 3)])


def one_round(app: Queuert, marks: Marks, number: int) -> None:
    """Some work of each kind. The keys are those of this moment, so that all who enqueue ask for the same."""
    with app.transaction() as tx:
        chain = app.start_chain("first", number, conn=tx)
        write(tx, "orders", str(chain.id))
    leaves = app.start_chains([NewChain("leaf", n) for n in range(3)])
    several = app.start_chains([NewChain("quick", n) for n in range(15)])
    app.start_chains([NewChain("join", blockers=leaves), NewChain("gather", blockers=several)])
    key = f"tick-{int(time.time() * 5)}"
    names = ["keyed", "keyed", "held"]
    keys = [
        Dedup(key, scope="any", window=3600),
        Dedup(f"old-{number % 5}", scope="any", window=3600),
        Dedup(f"held-{number % HELD}"),
    ]
    found = app.start_chains([NewChain(name, dedup=key) for name, key in zip(names, keys, strict=True)])
    marks.write("round", detail={key.key: str(chain.id) for key, chain in zip(keys, found, strict=True)})


def enqueue(app: Queuert, marks: Marks, stop: Path) -> None:
    number = 0
    while not stop.exists():
        one_round(app, marks, number)
        number += 1
        time.sleep(PACE)


def main(options: dict[str, Any]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    marks = Marks(Path(options["marks"]))
    marks.write("runs", detail=str(Path(queuert.__file__).parents[1]))
    role = options["role"]
    with Queuert(options["url"]) as app:
        app.include(make_types(marks, Path(options["gate"])))
        if role == "worker":
            return 0 if app.worker(concurrency=HELD + 3, reap_interval=0.2, **options.get("worker", {})).run() else 1
        if role == "enqueuer":
            enqueue(app, marks, Path(options["stop"]))
        elif role == "fill":
            fill(app)
        elif role == "migrator":
            app.migrate()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

"""A process that has used an app, and is using it, and forks: `python forking.py '{"url": ..., "marks": ...}'`.

It leaves what it found among the marks. `how` says how the children are made: by `os.fork`, as a server does that loads the
application first, or by `multiprocessing`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from support.fleet import Marks
from workload import make_types

from queuert import Queuert

CHILDREN = 4


def own_types(app: Queuert, name: str) -> None:
    """A type that only the workers of one process run."""

    @app.job(name)
    def handler(job: Any) -> int:
        return os.getpid()


def in_child(app: Queuert, number: int, marks: Marks) -> None:
    """What a server's child does: enqueue, read, run a worker of its own."""
    name = f"child-{number}"
    before = app.start_chain("leaf", number)
    assert app.get_chain(before.id) is not None
    chains = [app.start_chain(name) for _ in range(10)]
    with app.transaction() as tx:
        chains.append(app.start_chain(name, conn=tx))
    worker = app.worker(types=[name, "leaf"], concurrency=2, poll_interval=30)
    with worker:
        assert f":{os.getpid()}:" in worker.id
        assert {app.wait_for(chain, timeout=20).output for chain in chains} == {os.getpid()}
        # Something that comes later is told of, by whatever this child listens with.
        assert app.wait_for(app.start_chain(name), timeout=5).output == os.getpid()
    marks.write("child done", detail=number)


def fork(work: Callable[[], None]) -> Callable[[], int]:
    """Run it in a child that ends as programs do; waits for its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        sys.exit(0)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_process(work: Callable[[], None]) -> Callable[[], int]:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()

    def wait() -> int:
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    return wait


def backends(url: str, pids: set[int] | None = None) -> set[int]:
    """The server's processes behind our connections, or those of some that are still there."""
    if not url.startswith("postgresql"):
        return set()
    with psycopg.connect(url) as conn:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        found = {row[0] for row in conn.execute(query).fetchall()}
    return found if pids is None else found & pids


def main(options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork beside threads
    marks, url = Marks(Path(options["marks"])), options["url"]
    app = Queuert(url)
    app.include(make_types(marks))
    own_types(app, "parent")
    for number in range(CHILDREN):
        own_types(app, f"child-{number}")
    start = fork if options["how"] == "fork" else fork_process

    # It has been used, by this thread and by a worker, which goes on.
    stop = threading.Event()
    enqueued = 0

    def feed() -> None:
        nonlocal enqueued
        while not stop.is_set():
            app.start_chain("leaf", 0)
            app.list_chains(limit=1)
            enqueued += 1
            stop.wait(0.005)

    worker = app.worker(types=["parent", "leaf"], concurrency=4, poll_interval=30)
    found: dict[str, Any] = {"codes": [], "parent": []}
    with worker:
        assert app.wait_for(app.start_chain("parent"), timeout=20).output == os.getpid()
        feeder = threading.Thread(target=feed)
        if options["busy"]:
            feeder.start()
        waits = []
        mine = backends(url)
        for number in range(CHILDREN):
            waits.append(start(partial(in_child, app, number, marks)))
            # All the while the parent's own worker runs the parent's jobs.
            found["parent"].append(app.wait_for(app.start_chain("parent"), timeout=20).output == os.getpid())
        found["codes"] = [wait() for wait in waits]
        if not options["busy"]:
            found["kept"] = backends(url, mine) == mine
        found["parent"].append(app.wait_for(app.start_chain("parent"), timeout=5).output == os.getpid())
        stop.set()
        if options["busy"]:
            feeder.join()
        found["running"] = worker.running
        found["enqueued"] = enqueued
    app.close()
    marks.write("found", detail=found)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

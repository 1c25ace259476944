"""What the worker processes of these tests run: `python workload.py '{"url": ..., "marks": ...}'`.

Every handler that writes does so into a table without a unique constraint, so that what happens twice is there twice.
`stay-...` jobs stay at the point that they are named after, in their first attempt, until somebody kills the process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from support import eventually
from support.fleet import Marks
from support.inside import notifier_of

from queuert import Backoff, Continuation, JobTypes, Lease, Queuert, RunningJob
from queuert.notify.protocol import Channel
from queuert.worker.results import ResultWriter
from queuert.worker.slots import Slots

TABLES = ("CREATE TABLE ledger (job_id text, step text)", "CREATE TABLE prepared (job_id text, attempt integer)")
GATE_OPENS_WITHIN = 120.0
POINTS = ("claimed", "handler", "prepare", "prepared", "complete", "left", "committed", "returned", "written")
STEPS = (
    *("first", "second", "third", "leaf", "join", "quick", "slow", "stalled", "poison", "strict", "rude"),
    *(f"stay-{point}" for point in POINTS),
)


def prepare(app: Queuert) -> None:
    """Make an empty database ready, and have an app know the types that others run."""
    app.migrate()
    for step in STEPS:
        app.declare(step)
    with app.transaction() as tx:
        for table in TABLES:
            tx.execute(table)


def write(tx: Any, table: str, *values: object) -> None:
    """Insert a row, whichever the driver."""
    mark = "?" if isinstance(tx, sqlite3.Connection) else "%s"
    tx.execute(f"INSERT INTO {table} VALUES ({', '.join([mark] * len(values))})", values)


def make_types(marks: Marks, *, lease: float = 1.0, max_attempts: int | None = 25) -> JobTypes:
    types = JobTypes(
        lease=Lease(duration=lease), backoff=Backoff(initial=0.1, maximum=0.5, jitter=0), max_attempts=max_attempts
    )

    def started(job: RunningJob[Any]) -> None:
        marks.write("started", job.id, job.attempt)

    # A chain of three steps.

    @types.job("first", continues_with=["second"])
    def first(job: RunningJob[int]) -> Continuation:
        started(job)
        with job.complete() as tx:
            write(tx, "ledger", job.id, "first")
            return job.continue_with("second", job.input + 1)

    @types.job("second", entry=False, continues_with=["third"])
    def second(job: RunningJob[int]) -> Continuation:
        started(job)
        with job.prepare() as tx:
            write(tx, "prepared", job.id, job.attempt)
        with job.complete() as tx:
            write(tx, "ledger", job.id, "second")
        return job.continue_with("third", job.input + 1)

    @types.job("third", entry=False)
    def third(job: RunningJob[int]) -> int:
        started(job)
        return job.input + 1

    # A fan-in.

    @types.job("leaf")
    def leaf(job: RunningJob[int]) -> int:
        started(job)
        with job.complete() as tx:
            write(tx, "ledger", job.id, "leaf")
        return job.input

    @types.job("join", blockers=["leaf"])
    def join(job: RunningJob[None]) -> int:
        started(job)
        with job.complete() as tx:
            write(tx, "ledger", job.id, "join")
            return sum(int(blocker.output) for blocker in job.blockers)

    # One at a time.

    def stay_at(job: RunningJob[None]) -> str:
        def at(point: str) -> None:
            if job.attempt == 1 and name == point:
                stay(marks, point, job.id)

        name = job.type_name.removeprefix("stay-")
        started(job)
        at("handler")
        if name in ("returned", "written"):
            return name
        with job.prepare() as tx:
            write(tx, "prepared", job.id, job.attempt)
            at("prepare")
        at("prepared")
        with job.complete() as tx:
            write(tx, "ledger", job.id, name)
            at("complete")
        at("left")
        return name

    for point in POINTS:
        types.job(f"stay-{point}")(stay_at)

    @types.job("quick")
    def quick(job: RunningJob[Any]) -> Any:
        started(job)
        return job.input

    @types.job("slow")
    def slow(job: RunningJob[dict[str, str]]) -> str:
        """Waits for a file to appear, and then ends as it is told to."""
        started(job)
        if job.attempt == 1:
            eventually(Path(job.input["gate"]).exists, GATE_OPENS_WITHIN, every=0.001)
        how = job.input["how"]
        try:
            if how == "prepare":
                with job.prepare() as tx:
                    write(tx, "prepared", job.id, job.attempt)
            if how != "return":
                with job.complete() as tx:
                    write(tx, "ledger", job.id, how)
        except Exception as error:
            marks.write("error", job.id, job.attempt, type(error).__name__)
            raise
        return how

    @types.job("stalled", continues_with=["third"], max_attempts=3)
    def stalled(job: RunningJob[dict[str, Any]]) -> Any:
        """Stands still in its first attempt, with its whole process, and then tries all the same to `how`."""
        started(job)
        how, gate = job.input["how"], Path(job.input["gate"])
        eventually(gate.exists, GATE_OPENS_WITHIN, every=0.001)  # the only thing that wakes it
        if job.input["told"]:
            marks.write("told", job.id, job.attempt, job.signal.reason if job.signal.wait(20) else None)
        error: str | None = None
        try:
            return end(job, how)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            marks.write("tried", job.id, job.attempt, error)

    def end(job: RunningJob[Any], how: str) -> Any:
        if how == "prepare":
            with job.prepare() as tx:
                write(tx, "prepared", job.id, job.attempt)
        elif how == "complete":
            with job.complete() as tx:
                write(tx, "ledger", job.id, how)
        elif how == "continue in complete":
            with job.complete() as tx:
                write(tx, "ledger", job.id, how)
                return job.continue_with("third", 1)
        elif how == "continue":
            return job.continue_with("third", 1)
        elif how == "reschedule":
            job.reschedule(after=0)
        elif how == "fail":
            job.fail("TEST:FAILED")
        elif how == "raise":
            raise RuntimeError("too late")
        return how

    # Trouble.

    @types.job("poison", max_attempts=3)
    def poison(job: RunningJob[str]) -> None:
        started(job)
        if job.input == "handler":
            os.kill(os.getpid(), signal.SIGKILL)
        with job.complete() as tx:
            write(tx, "ledger", job.id, "poison")
            os.kill(os.getpid(), signal.SIGKILL)

    @types.job("strict")
    def strict(job: RunningJob[Order]) -> int:
        started(job)
        return job.input.number

    @types.job("rude", max_attempts=1)
    def rude(job: RunningJob[str]) -> None:
        started(job)
        with job.complete() as tx:
            write(tx, "ledger", job.id, job.input)
            if job.input.isupper():
                tx.execute(job.input)
            elif job.input == "executescript":
                tx.executescript("INSERT INTO ledger VALUES ('script', 'script')")
            elif job.input == "with":
                with tx:
                    pass
            else:
                getattr(tx, job.input)()

    return types


@dataclass
class Order:
    """The input that `strict` wants."""

    number: int


def stay(marks: Marks, point: str, job_id: str) -> NoReturn:
    """Say where this process is, and never leave."""
    marks.write("at", job_id, 1, point)
    while True:
        threading.Event().wait()


def stay_in_the_library(app: Queuert, marks: Marks, point: str) -> None:
    """Have the process stay where no handler runs."""
    slots: Any = Slots
    writer: Any = ResultWriter
    notifier: Any = notifier_of(app)
    if point == "claimed":
        slots.submit = lambda self, claimed: stay(marks, point, claimed[0].job.id)
    elif point == "returned":
        writer.write = lambda self, endings, *, wait: stay(marks, point, endings[0].held.job.id)
    elif point in ("committed", "written"):
        publish_all = notifier.publish_all

        def publish_and_stay(channel: Channel, payloads: Any) -> None:
            if channel is Channel.CHAIN_CLOSED:
                stay(marks, point, payloads[0])
            publish_all(channel, payloads)

        notifier.publish_all = publish_and_stay


def main(options: dict[str, Any]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    marks = Marks(Path(options["marks"]))
    app = Queuert(options["url"], **options.get("app", {}))
    if "heartbeat" in options:
        notifier: Any = notifier_of(app)
        notifier._heartbeat = options["heartbeat"]
    app.include(make_types(marks, **options.get("types", {})))
    stay_in_the_library(app, marks, options.get("stay", ""))
    with app:
        return 0 if app.worker(reap_interval=0.2, **options.get("worker", {})).run() else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

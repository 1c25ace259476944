"""`queuert workers`: who is there, from every process."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import Any

from queuert import WorkerInfo
from queuert.cli.exits import OK
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command
from queuert.cli.values import as_json, lasting


def add(commands: Any) -> None:
    workers = add_command(
        commands,
        "workers",
        "who is there: every worker of every process, and how busy it is",
        details="A lost worker stays, marked, until housekeeping removes it. Zombies run on though their job was taken away.",
        example="""
            queuert workers --app shop:app
            queuert workers --url postgresql://localhost/shop --json""",
        json=True,
    )
    workers.set_defaults(run=run_workers)


def run_workers(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        found = app.workers()
        if args.json:
            out.items([as_json(app, worker) for worker in found])
        elif not found:
            out.line(Cell("No worker is there.", "yellow"))
        else:
            draw_workers(out, found)
    return OK


def draw_workers(out: Output, workers: list[WorkerInfo]) -> None:
    now = datetime.now(timezone.utc)
    out.table(
        ["worker", "host", "pid", "state", "busy", "waiting", "zombies", "seen", "version", "types"],
        [
            [
                worker.name if out.width is not None else worker.id,
                worker.host,
                worker.pid,
                _state(worker),
                f"{worker.busy}/{worker.concurrency}",
                worker.waiting,
                Cell(str(worker.zombies), "red") if worker.zombies else 0,
                f"{lasting(max(0.0, (now - worker.last_seen_at).total_seconds()))} ago",
                worker.version,
                ", ".join(worker.types),
            ]
            for worker in workers
        ],
        right=["pid", "busy", "waiting", "zombies"],
        optional=["version", "waiting", "host"],
    )


def _state(worker: WorkerInfo) -> Cell:
    if worker.lost:
        return Cell("lost", "red")
    return Cell("stopping", "yellow") if worker.stopping else Cell("alive", "green")

"""`queuert workers`: who is there, from every process; `queuert why ID`: why a job does not run, and when it will."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import Any

from queuert import Reason, WorkerInfo
from queuert.cli.exits import OK
from queuert.cli.ids import find_job
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output, status_cell
from queuert.cli.parser import add_command
from queuert.cli.values import as_json, brief, lasting, plain


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
    why = add_command(
        commands,
        "why",
        "why a job does not run, and when it will",
        example="""
            queuert why 01890a5d-ac96-774b-bcce-b302099a8057 --app shop:app""",
        json=True,
    )
    why.add_argument("id", metavar="ID", help="of a job, or of a chain for its newest job; 6 characters of either end will do")
    why.set_defaults(run=run_why)


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


def run_why(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        job = find_job(app, args.id)
        if job.continued_to is not None and job.id == job.chain_id:
            chain = app.get_chain(job.chain_id)
            job = (app.get_job(chain.tail_id) if chain is not None else None) or job
        found = app.why(job.id)
        if args.json:
            out.json({"job_id": found.job_id, "status": str(found.status), "reasons": [_reason(r) for r in found.reasons]})
            return OK
        out.line(Cell(f"{job.type_name} {job.id}", "bold"), " is ", status_cell(job.status))
        for reason in found.reasons:
            until = "" if reason.until is None else f" (until {brief(out, reason.until)})"
            out.wrapped(f"{reason.code}: {reason.text}{until}", "red" if reason.code in ("stranded", "no_worker") else "")
            for identity in list(reason.ids)[:10]:
                out.line("  ", identity)
            if len(reason.ids) > 10:
                out.line(Cell(f"  and {len(reason.ids) - 10} more", "dim"))
    return OK


def _reason(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code, "text": reason.text, "until": plain(reason.until), "ids": [str(each) for each in reason.ids]}

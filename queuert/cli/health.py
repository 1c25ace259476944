"""`queuert health`: an exit code for probes, and what it rests on."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from queuert import Queuert, SchemaVersionError, UnsupportedDatabaseError
from queuert.app import context_of
from queuert.chains.gauges import overdue_schedules
from queuert.cli.exits import OK, REFUSED, UsageError
from queuert.cli.loading import open_app
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Cell, Output, one_line
from queuert.cli.parser import add_command, names
from queuert.cli.values import duration, lasting

PAGES: Final = 10  # of 1,000 jobs each: more than any number of workers has in hand
PROBE: Final = "queuert:health"  # the row that is written to see whether anything can be


class Check(NamedTuple):
    """One thing that was looked at, with the number it rests on and how large that may be."""

    name: str
    healthy: bool
    detail: str
    value: float | None = None
    limit: float | None = None


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "health",
        "whether jobs are being run: exit code 0 or 1, for probes",
        details=(
            "It fails if the database or its schema is not there, if it cannot be written, if jobs are ready and no worker is "
            "alive, if a ready job has waited too long, if leases have ended and nobody took them back, if a schedule is late. "
            "Stranded jobs and failures are told, and count against it only with --max-stranded and --max-failed."
        ),
        example="""
            queuert health --app shop:app --max-wait 60
            queuert health --url postgresql://localhost/shop --max-stranded 0 --max-failed 100 --json""",
        json=True,
    )
    command.add_argument("--max-wait", type=duration, default=300.0, metavar="TIME", help="how long a ready job may wait (5m)")
    command.add_argument(
        "--max-overdue",
        type=duration,
        default=120.0,
        metavar="TIME",
        help="how long ago a running job's lease, or the tick of a schedule, may have been due (2m)",
    )
    command.add_argument("--max-stranded", type=_number, metavar="N", help="how many jobs may be stranded (any number)")
    command.add_argument(
        "--max-failed", type=_number, metavar="N", help="how many jobs may have failed for good in the last hour (any number)"
    )
    command.add_argument("--no-write", action="store_true", help="do not try whether the database can be written")
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    command.set_defaults(run=run)


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    out = Output()
    checks = examine(args)
    healthy = all(check.healthy for check in checks)
    if args.json:
        out.json({"healthy": healthy, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            mark = Cell("ok    ", "green") if check.healthy else Cell("FAIL  ", "red")
            out.line(mark, f"{check.name:<10}", check.detail)
    return OK if healthy else REFUSED


def examine(args: argparse.Namespace) -> list[Check]:
    """The checks, up to the first without which the others cannot be made."""
    checks: list[Check] = []
    name = "database"
    try:
        with open_app(args) as app:
            status = app.migration_status()
            checks.append(Check("database", True, "can be reached"))
            pending = ", ".join(status.pending)
            checks.append(Check("schema", not pending, f"pending: {pending}" if pending else "is current"))
            if not pending:
                for name, check in CHECKS.items():
                    if name != "writing" or not args.no_write:
                        checks.append(check(app, args))
    except (UsageError, UnsupportedDatabaseError):
        raise
    except Exception as error:  # whatever the driver raises: the probe must answer
        if isinstance(error, SchemaVersionError) and not checks:
            checks.append(Check("database", True, "can be reached"))
            name = "schema"
        checks.append(Check(name, False, one_line(hide_secrets(message_of(error)), 500)))
    return checks


def _writing(app: Queuert, args: argparse.Namespace) -> Check:
    context = context_of(app)
    context.database.run(lambda session: context.repository.take_singleton(session, PROBE, "health", 0.0), single=True)
    return Check("writing", True, "can be written")


def _workers(app: Queuert, args: argparse.Namespace) -> Check:
    alive = [worker for worker in app.workers() if not worker.lost]
    context = context_of(app)
    types = args.types or context.read(None, context.repository.job_types)
    ready = context.read(None, lambda session: context.repository.ready_by_type(session, types, 1)) if types else []
    waiting = ", ".join(sorted(name for name, _, _ in ready))
    if not alive and ready:
        return Check("workers", False, f"no worker is alive, and jobs are ready: {waiting}", 0)
    busy = sum(worker.busy for worker in alive)
    slots = sum(worker.concurrency for worker in alive)
    return Check("workers", True, f"{len(alive)} alive, {busy} of {slots} slots busy", len(alive))


def _waiting(app: Queuert, args: argparse.Namespace) -> Check:
    waited = app.stats(types=args.types, count_limit=1).oldest_ready_seconds
    if waited is None:
        return Check("waiting", True, "no job is ready", 0, args.max_wait)
    detail = f"the oldest ready job has waited {lasting(waited)} (at most {lasting(args.max_wait)})"
    return Check("waiting", waited <= args.max_wait, detail, waited, args.max_wait)


def _leases(app: Queuert, args: argparse.Namespace) -> Check:
    context = context_of(app)
    limit = context.read(None, context.repository.clock) - timedelta(seconds=args.max_overdue)
    overdue = running = 0
    cursor: str | None = None
    for _ in range(PAGES):
        page = app.list_jobs(types=args.types, statuses=["running"], order="asc", cursor=cursor, limit=1_000)
        running += len(page.items)
        overdue += sum(1 for job in page.items if job.leased_until is not None and job.leased_until < limit)
        cursor = page.next_cursor
        if cursor is None:
            break
    if overdue:
        detail = f"{overdue} of {running} running jobs lost their lease over {lasting(args.max_overdue)} ago: no worker reaps"
        return Check("leases", False, detail, overdue, 0)
    return Check("leases", True, f"{running} running, none long expired", 0, 0)


def _schedules(app: Queuert, args: argparse.Namespace) -> Check:
    context = context_of(app)
    late = context.read(None, lambda session: overdue_schedules(context, session, args.max_overdue))
    if late:
        return Check("schedules", False, f"{late} should have ticked over {lasting(args.max_overdue)} ago", late, 0)
    return Check("schedules", True, "none is late", 0, 0)


def _stranded(app: Queuert, args: argparse.Namespace) -> Check:
    number, most = app.stats(types=args.types).stranded, args.max_stranded
    detail = f"{number} jobs wait for a chain that failed or was cancelled" if number else "none"
    return Check("stranded", most is None or number <= most, detail, number, most)


def _failed(app: Queuert, args: argparse.Namespace) -> Check:
    since = datetime.now(timezone.utc) - timedelta(hours=1)
    number = 0
    cursor: str | None = None
    for _ in range(PAGES):
        page = app.list_jobs(types=args.types, statuses=["failed"], cursor=cursor, limit=1_000)
        number += sum(1 for job in page.items if job.completed_at is not None and job.completed_at >= since)
        cursor = page.next_cursor
        if cursor is None:
            break
    most = args.max_failed
    detail = f"{number} jobs failed for good in the last hour" if number else "none in the last hour"
    return Check("failed", most is None or number <= most, detail, number, most)


CHECKS: Final[dict[str, Callable[[Queuert, argparse.Namespace], Check]]] = {
    "writing": _writing,
    "workers": _workers,
    "waiting": _waiting,
    "leases": _leases,
    "schedules": _schedules,
    "stranded": _stranded,
    "failed": _failed,
}

"""`queuert health`: an exit code for probes, and what it rests on."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any, Final, NamedTuple

from queuert import Queuert, SchemaVersionError, UnsupportedDatabaseError
from queuert.app import context_of
from queuert.cli.exits import OK, REFUSED, UsageError
from queuert.cli.loading import open_app
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Cell, Output, one_line
from queuert.cli.parser import add_command, names
from queuert.cli.values import duration, lasting

PAGES: Final = 10  # of 1,000 running jobs each: more than any number of workers has in hand


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    healthy: bool
    detail: str


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "health",
        "whether jobs are being run: exit code 0 or 1, for probes",
        details="It looks at the database, its schema, the job that has waited longest, and leases that nobody took back.",
        example="""
            queuert health --app shop:app --max-wait 60
            queuert health --url postgresql://localhost/shop --json""",
        json=True,
    )
    command.add_argument("--max-wait", type=duration, default=300.0, metavar="TIME", help="how long a ready job may wait (5m)")
    command.add_argument(
        "--max-overdue",
        type=duration,
        default=120.0,
        metavar="TIME",
        help="how long ago a running job's lease may have ended (2m)",
    )
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    checks = examine(args)
    healthy = all(check.healthy for check in checks)
    if args.json:
        out.json({"healthy": healthy, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            mark = Cell("ok    ", "green") if check.healthy else Cell("FAIL  ", "red")
            out.line(mark, f"{check.name:<9}", check.detail)
    return OK if healthy else REFUSED


def examine(args: argparse.Namespace) -> list[Check]:
    """The checks, up to the first without which the others cannot be made."""
    checks: list[Check] = []
    try:
        with open_app(args) as app:
            status = app.migration_status()
            checks.append(Check("database", True, "can be reached"))
            pending = ", ".join(status.pending)
            checks.append(Check("schema", not pending, f"pending: {pending}" if pending else "is current"))
            if not pending:
                checks.append(_waiting(app, args))
                checks.append(_leases(app, args))
    except (UsageError, UnsupportedDatabaseError):
        raise
    except Exception as error:  # whatever the driver raises: the probe must answer
        if isinstance(error, SchemaVersionError) and not checks:
            checks.append(Check("database", True, "can be reached"))
        name = ("database", "schema", "waiting", "leases")[len(checks)]
        checks.append(Check(name, False, one_line(hide_secrets(message_of(error)), 500)))
    return checks


def _waiting(app: Queuert, args: argparse.Namespace) -> Check:
    waited = app.stats(types=args.types, count_limit=1).oldest_ready_seconds
    if waited is None:
        return Check("waiting", True, "no job is ready")
    detail = f"the oldest ready job has waited {lasting(waited)}"
    return Check("waiting", waited <= args.max_wait, f"{detail} (at most {lasting(args.max_wait)})")


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
        return Check("leases", False, detail)
    return Check("leases", True, f"{running} running, none long expired")

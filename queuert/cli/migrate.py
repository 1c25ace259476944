"""`queuert migrate`: bring the schema to the newest version, or say where it stands."""

from __future__ import annotations

import argparse
from typing import Any

from queuert.cli.exits import OK, REFUSED
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "migrate",
        "bring the schema to the newest version",
        details="Safe to run again, and from many processes at once.",
        example="""
            queuert migrate --app shop:app
            queuert migrate --url postgresql://localhost/shop --status""",
        json=True,
    )
    command.add_argument("--status", action="store_true", help="change nothing; exit code 1 if migrations are pending")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args, create=not args.status) as app:
        before = app.migration_status()
        after = before if args.status else app.migrate()
    done = [name for name in after.applied if name not in before.applied]
    if args.json:
        out.json({"applied": list(after.applied), "pending": list(after.pending), "done": done})
    else:
        for name in after.applied:
            out.line(Cell("applied  ", "green"), name, "  (now)" if name in done else "")
        for name in after.pending:
            out.line(Cell("pending  ", "yellow"), name)
        if not args.status and not done:
            out.line("The schema was up to date already.")
    return REFUSED if after.pending else OK

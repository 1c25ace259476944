"""`queuert periodic`: what recurs, with its last and next run."""

from __future__ import annotations

import argparse
from typing import Any

from queuert.cli.exits import OK
from queuert.cli.loading import named, open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command
from queuert.cli.values import brief, plain


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "periodic",
        "list what recurs, with its last and next run",
        details="With --url alone, types and schedules are not known: they are in the application's code.",
        example="""
            queuert periodic --app shop:app
            queuert periodic --app shop:app --json""",
        json=True,
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    spec, _ = named(args)
    with open_app(args) as app:
        found = app.periodics(noted=spec is None)
    if args.json:
        out.items([plain(vars(entry)) for entry in found])
    elif not found:
        out.line("Nothing recurs here.")
    else:
        out.table(
            ["name", "type", "schedule", "last run", "next run"],
            [
                [
                    e.name,
                    e.type_name or "-",
                    e.schedule or "-",
                    brief(out, e.last_run_at) or Cell("never", "dim"),
                    brief(out, e.next_run_at),
                ]
                for e in found
            ],
        )
    return OK

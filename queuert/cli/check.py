"""`queuert check`: would this version of the application decode what waits in the database?"""

from __future__ import annotations

import argparse
from typing import Any

from queuert.app import context_of
from queuert.chains.check import check_inputs
from queuert.cli.exits import OK, REFUSED, UsageError
from queuert.cli.loading import named, open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "check",
        "decode the stored inputs of open jobs with this version's types",
        details="Run it before a deploy. Exit code 1 if jobs would fail, because their input does not fit.",
        example="""
            queuert check --app shop:app
            queuert check --app shop:app --json""",
        json=True,
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    spec, _ = named(args)
    if spec is None:
        raise UsageError("Which types are to be checked? Pass --app MODULE:APP: a URL alone knows none.")
    out = Output()
    with open_app(args) as app:
        found = check_inputs(context_of(app))
    misfits = [check for check in found if check.misfits]
    if args.json:
        out.items([vars(check) for check in found])
        return REFUSED if misfits else OK
    for check in misfits:
        out.line(Cell("would fail  ", "red"), f"{check.misfits} of {check.open} open jobs of {check.type_name!r}")
        out.line(f"            {check.problem} For example: {', '.join(check.job_ids)}.")
    for check in found:
        if not check.known:
            out.line(
                Cell("not here    ", "yellow"), f"{check.open} open jobs of {check.type_name!r}, which this app does not know"
            )
    fine = sum(check.open for check in found if check.known) - sum(check.misfits for check in misfits)
    out.line(Cell("fine        ", "green"), f"{fine} open jobs")
    if misfits:
        out.line("Give new fields a default, so that what was stored without them fits.")
    return REFUSED if misfits else OK

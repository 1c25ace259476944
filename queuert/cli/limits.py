"""`queuert limits`: the limits that are in use; `queuert limits set NAME` sets numbers over the code's."""

from __future__ import annotations

import argparse
from typing import Any

from queuert.cli.exits import OK
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command
from queuert.cli.values import brief, plain


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "limits",
        "list the limits that are in use, or set their numbers",
        details="With --url alone, the code's numbers are not known: those that operators have set are.",
        example="""
            queuert limits --app shop:app
            queuert limits set stripe --concurrency 5 --app shop:app
            queuert limits reset stripe --app shop:app""",
        json=True,
    )
    command.add_argument("act", nargs="?", choices=["set", "reset"], help="what to do; without it, list them")
    command.add_argument("name", nargs="?", metavar="NAME", help="the limit: its name, or that of its type")
    command.add_argument("--concurrency", type=int, metavar="N", help="how many may run at a time")
    command.add_argument("--rate", type=float, metavar="N", help="how many may start in a span of time")
    command.add_argument("--per", type=float, metavar="SECONDS", help="that span of time")
    command.add_argument("--burst", type=int, metavar="N", help="how many may start at once")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    if (args.act is None) != (args.name is None):
        raise ValueError("Say `queuert limits set NAME ...` or `queuert limits reset NAME`.")
    with open_app(args) as app:
        if args.act == "set":
            numbers = {"concurrency": args.concurrency, "rate": args.rate, "per": args.per, "burst": args.burst}
            app.set_limit(args.name, actor="cli", **numbers)
        elif args.act == "reset":
            app.reset_limit(args.name)
        found = app.limits()
    if args.json:
        out.items([plain(vars(entry)) for entry in found])
    elif args.act is not None:
        out.line(f"The limit {args.name} is {args.act}.")
    elif not found:
        out.line("No limit is in use.")
    else:
        out.table(
            ["limit", "key", "running", "at most", "waiting", "rate", "next start", "set by"],
            [
                [
                    e.name,
                    e.key or Cell("-", "dim"),
                    str(e.running),
                    "-" if e.concurrency is None else str(e.concurrency),
                    str(e.waiting),
                    "-" if e.rate is None or e.per is None else f"{e.rate:g} in {e.per:g} s",
                    brief(out, e.next_at) or "-",
                    e.set_by or Cell("the code", "dim"),
                ]
                for e in found
            ],
        )
    return OK

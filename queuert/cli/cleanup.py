"""`queuert cleanup`: delete what the retention policy lets go, in small batches, with a bar that moves."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from queuert import Queuert, Retention
from queuert.cli.exits import INTERRUPTED, OK
from queuert.cli.loading import open_app
from queuert.cli.output import Output, is_terminal
from queuert.cli.parser import add_command
from queuert.cli.progress import progress
from queuert.cli.values import duration, lasting

KINDS: Final = ("completed", "failed", "cancelled")
REDRAW_EVERY: Final = 0.1


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "cleanup",
        "delete closed chains that are older than they are kept",
        details=(
            "Workers do this by themselves; here it is done now. With --app its own policy counts, with --url the usual one "
            "(completed and cancelled 30 days, failed 90). It can be interrupted and run again."
        ),
        example="""
            queuert cleanup --app shop:app
            queuert cleanup --app shop:app --dry-run
            queuert cleanup --url sqlite:///shop.db --completed 7d --failed never --max-seconds 60""",
        json=True,
    )
    for kind in KINDS:
        command.add_argument(
            f"--{kind}",
            type=_age,
            default=argparse.SUPPRESS,
            metavar="AGE",
            help=f"keep {kind} chains so long: 12h, 30d, never",
        )
    command.add_argument("--dry-run", action="store_true", help="delete nothing: say what would go")
    command.add_argument("--max-seconds", type=duration, metavar="N", help="end after this time, done or not")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        retention = _retention(app, args)
        if not args.json:
            out.line(f"Keeping {', '.join(f'{kind} {_kept(getattr(retention, kind))}' for kind in KINDS)}.")
        if args.dry_run:
            return _say(out, args, app.cleanup(retention, dry_run=True), "Would delete")
        # For the bar alone: to count them is about a tenth of the work.
        live = is_terminal(sys.stderr) and not args.json
        total = sum(app.cleanup(retention, dry_run=True).values()) if live else None
        done = 0

        def count(number: int) -> None:
            nonlocal done
            done = number
            show(number)

        with progress("chains deleted", total, live=live) as show:
            try:
                deleted = app.cleanup(retention, max_seconds=args.max_seconds, progress=count)
            except KeyboardInterrupt:
                print(f"Interrupted: {done} chains were deleted; run it again to go on.", file=sys.stderr)
                return INTERRUPTED
    return _say(out, args, deleted, "Deleted")


def _say(out: Output, args: argparse.Namespace, numbers: dict[str, int], done: str) -> int:
    total = sum(numbers.values())
    if args.json:
        out.json({"deleted" if done == "Deleted" else "would_delete": numbers, "total": total})
    else:
        parts = ", ".join(f"{number} {kind}" for kind, number in numbers.items())
        out.line(f"{done} {total} chains ({parts}).")
    return OK


def _age(text: str) -> timedelta | None:
    return None if text.strip().lower() == "never" else timedelta(seconds=duration(text))


def _retention(app: Queuert, args: argparse.Namespace) -> Retention:
    # None is "never" on the command line too, so what was left out is told apart by the option's absence.
    given = {kind: getattr(args, kind) for kind in KINDS if hasattr(args, kind)}
    return replace(app.retention, **given)


def _kept(age: Any) -> str:
    if age is None:
        return "forever"
    return lasting(age.total_seconds() if isinstance(age, timedelta) else age)

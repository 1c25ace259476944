"""`queuert cleanup`: delete what the retention policy lets go, in small batches, with a bar that moves."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from queuert import Queuert, Retention
from queuert.chains.retention import BATCH
from queuert.cli.exits import INTERRUPTED, OK
from queuert.cli.loading import open_app
from queuert.cli.output import Output, is_terminal, terminal_size
from queuert.cli.parser import add_command
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
    command.add_argument("--max-seconds", type=duration, metavar="N", help="end after this time, done or not")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        retention = _retention(app, args)
        if not args.json:
            out.line(f"Keeping {', '.join(f'{kind} {_kept(getattr(retention, kind))}' for kind in KINDS)}.")
        done = 0

        def count(number: int) -> None:
            nonlocal done
            done = number
            show(number)

        with _progress(is_terminal(sys.stderr) and not args.json) as show:
            try:
                deleted = app.cleanup(retention, max_seconds=args.max_seconds, progress=count)
            except KeyboardInterrupt:
                print(f"Interrupted: {done} chains were deleted; run it again to go on.", file=sys.stderr)
                return INTERRUPTED
    if args.json:
        out.json({"deleted": deleted, "total": sum(deleted.values())})
    else:
        parts = ", ".join(f"{number} {kind}" for kind, number in deleted.items())
        out.line(f"Deleted {sum(deleted.values())} chains ({parts}).")
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


@contextmanager
def _progress(live: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many are deleted, on stderr. How many there will be is not known: counting them is half of the work."""
    if not live:
        yield lambda number: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield from _plain_progress()
        return
    columns = (BarColumn(), TextColumn("{task.completed} chains deleted"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda number: bar.update(task, completed=number)


def _plain_progress() -> Iterator[Callable[[int], None]]:
    shown = 0.0
    width = max(10, min(30, terminal_size()[0] - 40))

    def show(number: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= REDRAW_EVERY:
            shown = time.monotonic()
            at = number // BATCH % width
            print(f"\r[{' ' * at}#{' ' * (width - at - 1)}] {number} chains deleted", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(f"\r{' ' * (width + 30)}\r", end="", file=sys.stderr, flush=True)

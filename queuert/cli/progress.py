"""A bar on stderr that says how far something is and how long it will take; nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from queuert.cli.output import is_terminal, terminal_size
from queuert.cli.values import lasting

REDRAW_EVERY: Final = 0.1

Show = Callable[[int], None]


@contextmanager
def progress(what: str, total: int | None, *, live: bool | None = None) -> Iterator[Show]:
    """Shows the number it is told: `what` such as "chains deleted", of a `total` if that is known."""
    if not (is_terminal(sys.stderr) if live is None else live):
        yield lambda number: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        yield from _plain(what, total)
        return
    columns: list[ProgressColumn] = [BarColumn(bar_width=20)]
    if total is None:
        columns += [TextColumn("{task.completed}"), TextColumn(what), TimeElapsedColumn()]
    else:
        columns += [TextColumn("{task.completed} of {task.total}"), TextColumn(what)]
        columns += [TextColumn("{task.percentage:.0f}%"), TextColumn("ETA"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda number: bar.update(task, completed=number)


def _plain(what: str, total: int | None) -> Iterator[Show]:
    began = time.monotonic()
    shown = float("-inf")
    width = max(10, min(20, terminal_size()[0] - 50))
    longest = 0

    def show(number: int) -> None:
        nonlocal shown, longest
        now = time.monotonic()
        if now - shown < REDRAW_EVERY and number != total:
            return
        shown = now
        line = _line(what, number, total, width, now - began)
        longest = max(longest, len(line))
        print(f"\r{line:<{longest}}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(f"\r{' ' * longest}\r", end="", file=sys.stderr, flush=True)


def _line(what: str, number: int, total: int | None, width: int, elapsed: float) -> str:
    if not total:
        return f"{number} {what}"
    filled = min(width, width * number // total)
    eta = lasting(elapsed / number * max(0, total - number)) if number else "-"
    return f"[{'#' * filled}{' ' * (width - filled)}] {number} of {total} {what}, {100 * number // total}%, ETA {eta}"

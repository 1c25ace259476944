"""`queuert top`: how things stand, live: worst first, with rates, workers and the last minutes as a line.

Keys: up and down choose a type, `p` pauses or resumes it, Enter looks at it, Escape goes back, `q` ends. What does not fit on
the screen is scrolled to, and a line says how much that is.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, Final

from queuert import DatabaseUnavailableError, Queuert, Stats, Status
from queuert.app import context_of
from queuert.cli import stats
from queuert.cli.exits import OK
from queuert.cli.listing import draw_jobs
from queuert.cli.loading import open_app
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Cell, Content, Output, is_terminal, terminal_size
from queuert.cli.parser import add_command
from queuert.cli.values import duration, lasting
from queuert.cli.who import actor

HOME: Final = "\x1b[H"
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
BARS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = "_.-=+*#@"
UP, DOWN, ENTER, BACK, QUIT, PAUSE = "up", "down", "enter", "back", "quit", "pause"
KEYS: Final = {
    b"\x1b[A": UP, b"k": UP, b"\x1b[B": DOWN, b"j": DOWN, b"\r": ENTER, b"\n": ENTER, b"\x1b": BACK, b"\x7f": BACK,
    b"q": QUIT, b"Q": QUIT, b"p": PAUSE, b"": QUIT,
}  # fmt: skip


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "top",
        "watch it live: worst first, with keys to pause and to look; q or Ctrl-C ends it",
        example="""
            queuert top --app shop:app
            queuert top --url postgresql://localhost/shop --interval 5
            queuert top --url sqlite:///shop.db --once""",
    )
    stats.add_options(command)
    command.add_argument("--interval", type=duration, default=2.0, metavar="SECONDS", help="between two looks (2)")
    command.add_argument("--once", action="store_true", help="look once and end")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with open_app(args) as app:
        if args.once or not is_terminal(sys.stdout):
            out = Output()
            limit = None if args.exact else args.count_limit
            while True:
                out.line(Cell("queuert top", "bold"), f"  {datetime.now(timezone.utc):%H:%M:%S} UTC")
                out.line()
                stats.draw(out, app.stats(types=args.types, count_limit=limit))
                sys.stdout.flush()
                if args.once:
                    return OK
                time.sleep(max(0.1, args.interval))
        with _keys() as read_key, _other_screen():
            with suppress(KeyboardInterrupt):
                Screen(app, args).show(read_key)
            return OK


class Screen:
    """What is shown, and what was chosen on it."""

    def __init__(self, app: Queuert, args: argparse.Namespace) -> None:
        self._app = app
        self._args = args
        self._types: list[str] = []
        self._chosen = 0
        self._looking_at: str | None = None
        self._scrolled = 0
        self._note: Cell | None = None
        self._done: deque[float] = deque(maxlen=60)

    def show(self, read_key: Callable[[float], str | None]) -> None:
        """Look and draw until somebody quits."""
        while True:
            self._draw()
            until = time.monotonic() + max(0.1, self._args.interval)
            while (left := until - time.monotonic()) > 0:
                key = read_key(left)
                if key == QUIT:
                    return
                if key is not None:
                    self._press(key)
                    break

    def _press(self, key: str) -> None:
        self._note = None
        step = {UP: -1, DOWN: 1}.get(key, 0)
        if self._looking_at is None:
            self._chosen = max(0, min(len(self._types) - 1, self._chosen + step))
        else:
            self._scrolled = max(0, self._scrolled + step)
        if key == ENTER and self._looking_at is None and self._types:
            self._looking_at, self._scrolled = self._types[self._chosen], 0
        elif key == BACK:
            self._looking_at = None
        elif key == PAUSE and (self._looking_at or self._types):
            self._pause(self._looking_at or self._types[self._chosen])

    def _pause(self, name: str) -> None:
        try:
            if any(pause.type_name == name for pause in self._app.pauses()):
                self._app.resume(name, actor=actor())
                self._note = Cell(f"Resumed {name}.", "green")
            else:
                self._app.pause(name, actor=actor(), reason="queuert top")
                self._note = Cell(f"Paused {name}.", "yellow")
        except Exception as error:
            self._note = Cell(hide_secrets(message_of(error)), "red")

    # Drawing

    def _draw(self) -> None:
        height = terminal_size()[1]
        text = io.StringIO()
        out = Output(text, terminal=True)
        try:
            found = self._app.stats(types=self._args.types, count_limit=None if self._args.exact else self._args.count_limit)
            paused = {pause.type_name for pause in self._app.pauses()}
            self._head(out, found, paused)
            head = text.getvalue().splitlines()
            text.seek(0)
            text.truncate()
            marked = self._body(out, found, paused)
            body = text.getvalue().splitlines()
        except Exception as error:
            if not isinstance(error, DatabaseUnavailableError) and not context_of(self._app).database.is_transient(error):
                raise
            out.wrapped(hide_secrets(message_of(error)), "red")  # a database that is restarting comes back
            head, body, marked = [], text.getvalue().splitlines(), 0
        self._put([*head, *self._window(body, height - len(head) - 2, marked), *self._foot(out, text)], height)

    def _window(self, body: list[str], room: int, marked: int) -> list[str]:
        """The lines that fit, with the chosen one among them."""
        room = max(1, room)
        if self._looking_at is None:
            self._scrolled = min(max(self._scrolled, marked - room + 1), max(0, marked - 1))
        self._scrolled = max(0, min(self._scrolled, len(body) - room))
        shown = body[self._scrolled : self._scrolled + room]
        above, below = self._scrolled, max(0, len(body) - self._scrolled - room)
        more = f"{above} lines above, {below} below" if above or below else ""
        return [*shown, *[""] * (room - len(shown)), more]

    def _foot(self, out: Output, text: io.StringIO) -> list[str]:
        text.seek(0)
        text.truncate()
        keys = (
            "up/down scroll  p pause/resume  Esc back  q quit"
            if self._looking_at
            else "up/down choose  Enter look  p pause/resume  q quit"
        )
        out.line(self._note or Cell(keys, "dim"))
        return text.getvalue().splitlines()[:1]

    def _put(self, lines: list[str], height: int) -> None:
        shown = f"{CLEAR_LINE}\r\n".join(lines[:height])
        sys.stdout.write(f"{HOME}{shown}{CLEAR_LINE}{CLEAR_BELOW}")
        sys.stdout.flush()

    def _head(self, out: Output, found: Stats, paused: set[str | None]) -> None:
        workers = [worker for worker in self._app.workers() if not worker.lost]
        busy, slots = sum(worker.busy for worker in workers), sum(worker.concurrency for worker in workers)
        zombies = sum(worker.zombies for worker in workers)
        a_minute = sum(rates.minute.completed + rates.minute.failed for rates in found.rates.values())
        self._done.append(a_minute)
        eta = "" if found.eta_seconds is None else f", done in {lasting(found.eta_seconds)}"
        out.line(
            Cell("queuert top ", "bold"),
            f"{datetime.now(timezone.utc):%H:%M:%S} UTC  ",
            Cell(f"{len(workers)} workers", "" if workers else "red"),
            f", {busy}/{slots} slots busy",
            Cell(f", {zombies} zombies" if zombies else "", "red"),
        )
        out.line(
            f"ready {sum(found.ready.values())}, scheduled {sum(found.scheduled.values())}, ",
            f"backing off {sum(found.retrying.values())}, running {found.by_status.get('running', 0)}, ",
            Cell(f"failed {found.by_status.get('failed', 0)}", "red" if found.by_status.get("failed") else ""),
        )
        out.line(
            f"{a_minute} a minute{eta}  ",
            Cell(sparkline(list(self._done), BARS if out.draws else PLAIN_BARS)[-30:], "cyan"),
            Cell(f"  {found.stranded} stranded" if found.stranded else "", "red"),
            Cell("  everything is paused" if None in paused else "", "yellow"),
        )
        out.line()

    def _body(self, out: Output, found: Stats, paused: set[str | None]) -> int:
        """The types, or the one that is looked at; in which line the chosen one is."""
        if self._looking_at is not None:
            name = self._looking_at
            out.line(Cell(name, "bold"), Cell("  paused" if name in paused else "", "yellow"))
            stats.draw(out, self._app.stats(types=[name]))
            failed = self._app.list_jobs(types=[name], statuses=["failed"], limit=20).items
            if failed:
                out.heading("Failed, newest first")
                draw_jobs(out, failed)
            return 0
        chosen = self._types[self._chosen] if self._chosen < len(self._types) else None
        self._types = sorted({*found.by_type, *found.rates}, key=lambda name: (*_trouble(found, name), name))
        self._chosen = self._types.index(chosen) if chosen in self._types else min(self._chosen, max(0, len(self._types) - 1))
        rows: list[list[Content]] = [self._row(found, name, number, name in paused) for number, name in enumerate(self._types)]
        columns = ["  type", "ready", "running", "failed", "waited", "a minute", "state"]
        out.table(columns, rows or [["  no jobs", "", "", "", "", "", ""]], right=columns[1:6], optional=["a minute", "waited"])
        return self._chosen + 1

    def _row(self, found: Stats, name: str, number: int, paused: bool) -> list[Content]:
        counts, rates = found.by_type.get(name, {}), found.rates.get(name)
        capped = found.capped_by_type.get(name, set())
        failed = _shown(counts.get(Status.FAILED, 0), Status.FAILED in capped)
        waited = found.oldest_ready.get(name)
        return [
            Cell(f"> {name}", "bold") if number == self._chosen else f"  {name}",
            _shown(found.ready.get(name, 0), name in found.capped_waiting),
            _shown(counts.get(Status.RUNNING, 0), Status.RUNNING in capped),
            Cell(failed, "red" if counts.get(Status.FAILED) else ""),
            "" if waited is None else lasting(waited),
            "" if rates is None else rates.minute.completed + rates.minute.failed,
            Cell("paused", "yellow") if paused else Cell("failing", "red") if rates and rates.minute.failed else "ok",
        ]


def _trouble(found: Stats, name: str) -> tuple[float, ...]:
    """The worst first: what fails now, what has waited longest, what has failed."""
    rates = found.rates.get(name)
    failing = rates.minute.failed if rates is not None else 0
    return (-failing, -(found.oldest_ready.get(name, 0.0) // 10), -found.by_type.get(name, {}).get(Status.FAILED, 0))


def _shown(number: int, capped: bool) -> str:
    return f"{number}+" if capped else str(number)


def sparkline(values: list[float], bars: str = BARS) -> str:
    """Numbers as a line of bars, the largest as high as it goes."""
    highest = max(values, default=0)
    return "".join(bars[round(value / highest * (len(bars) - 1))] if highest else bars[0] for value in values)


@contextmanager
def _other_screen() -> Iterator[None]:
    """Leaves the terminal as it was, with what stood on it; nobody's log is written over it."""
    silent = logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(silent)  # or Python itself would print warnings that nobody handles
    sys.stdout.write(OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(FIRST_SCREEN)
        sys.stdout.flush()
        root.removeHandler(silent)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """A way to wait that returns early with the key that was pressed."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor):
            raise OSError
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):  # no terminal to read keys from

        def sleep(seconds: float) -> str | None:
            time.sleep(seconds)
            return None

        yield sleep
        return

    pending = b""

    def wait(seconds: float) -> str | None:
        nonlocal pending
        if not pending:
            if not select.select([descriptor], [], [], seconds)[0]:
                return None
            pending = os.read(descriptor, 64)
            if not pending:
                return QUIT
        size = 3 if pending.startswith(b"\x1b[") else 1
        key, pending = pending[:size], pending[size:]
        return KEYS.get(key)

    tty.setcbreak(descriptor)
    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

"""`queuert top`: the statistics again and again, until `q` or Ctrl-C."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from queuert import DatabaseUnavailableError, Queuert
from queuert.app import context_of
from queuert.cli import stats
from queuert.cli.exits import OK
from queuert.cli.loading import open_app
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Cell, Output, is_terminal, terminal_size
from queuert.cli.parser import add_command
from queuert.cli.values import duration

HOME_AND_CLEAR = "\x1b[H\x1b[J"
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "top",
        "watch it live; q or Ctrl-C ends it",
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
        if args.once:
            _draw(Output(), app, args)
            return OK
        live = is_terminal(sys.stdout)
        with _keys() as wait, _other_screen(live):
            try:
                while True:
                    _show_frame(_frame(app, args, live), live)
                    if wait(max(0.1, args.interval)):
                        return OK
            except KeyboardInterrupt:
                return OK


def _draw(out: Output, app: Queuert, args: argparse.Namespace) -> None:
    out.line(Cell("queuert top", "bold"), f"  {datetime.now(timezone.utc):%H:%M:%S} UTC")
    out.line()
    limit = None if args.exact else args.count_limit
    stats.draw(out, app.stats(types=args.types, count_limit=limit))


def _frame(app: Queuert, args: argparse.Namespace, live: bool) -> str:
    text = io.StringIO()
    out = Output(text, terminal=live)
    try:
        _draw(out, app, args)
    except Exception as error:
        if not isinstance(error, DatabaseUnavailableError) and not context_of(app).database.is_transient(error):
            raise
        # A database that is restarting comes back.
        out.line(Cell(hide_secrets(message_of(error)), "red"))
    return text.getvalue()


def _show_frame(frame: str, live: bool) -> None:
    if live:
        lines = terminal_size()[1]
        frame = HOME_AND_CLEAR + "\n".join(frame.splitlines()[: max(1, lines - 1)])
    sys.stdout.write(f"{frame}\n")
    sys.stdout.flush()


@contextmanager
def _other_screen(live: bool) -> Iterator[None]:
    """Leaves the terminal as it was, with what stood on it."""
    if not live:
        yield
        return
    sys.stdout.write(OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(FIRST_SCREEN)
        sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A way to wait that returns early, with True, when `q` is pressed."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor):
            raise OSError
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):  # no terminal to read keys from

        def sleep(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield sleep
        return

    def wait(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0] and os.read(descriptor, 1) in (b"q", b"Q", b""):
                return True
        return False

    tty.setcbreak(descriptor)
    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

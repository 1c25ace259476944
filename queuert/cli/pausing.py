"""`queuert pause` and `queuert resume`: keep jobs from being claimed, and let them go on."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta, timezone
from typing import Any

from queuert import Pause, Queuert
from queuert.cli.exits import OK, UsageError
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command
from queuert.cli.values import as_json, brief, duration, moment
from queuert.cli.who import actor, add_reason


def add(commands: Any) -> None:
    pause = add_command(
        commands,
        "pause",
        "claim no more jobs of some types, or of any; those that run go on",
        details="It takes effect at once, in every worker. Without types, --all or --list it lists what is paused.",
        example="""
            queuert pause charge-card --app shop:app --until 30m --reason bank-is-down
            queuert pause --all --app shop:app
            queuert pause --periodic nightly-report --app shop:app
            queuert pause --list --app shop:app --json""",
        json=True,
    )
    _add_what(pause, "everything")
    pause.add_argument("--list", action="store_true", help="change nothing: say what is paused")
    pause.add_argument("--until", type=_until, metavar="TIME", help="it ends by itself: in 30m or 2h, or at 2026-01-31T09:30Z")
    add_reason(pause)
    pause.set_defaults(run=run_pause)

    resume = add_command(
        commands,
        "resume",
        "claim jobs of these types again; without types, lift every pause",
        details="A type runs when neither it nor everything is paused.",
        example="""
            queuert resume charge-card --app shop:app
            queuert resume --all --app shop:app""",
        json=True,
    )
    _add_what(resume, "every pause is lifted")
    resume.set_defaults(run=run_resume)


def _add_what(command: argparse.ArgumentParser, everything: str) -> None:
    command.add_argument("types", nargs="*", metavar="TYPE", help="of jobs")
    command.add_argument("--all", action="store_true", help=everything)
    command.add_argument("--periodic", action="append", metavar="NAME", help="a schedule; may be repeated")


def _until(text: str) -> datetime:
    """A time, or how long from now."""
    try:
        return datetime.now(timezone.utc) + timedelta(seconds=duration(text))
    except (argparse.ArgumentTypeError, OverflowError):
        return moment(text)


def run_pause(args: argparse.Namespace) -> int:
    _check(args)
    with open_app(args) as app:
        if args.all:
            app.pause(until=args.until, reason=args.reason, actor=actor())
        elif args.types:
            app.pause(*args.types, until=args.until, reason=args.reason, actor=actor())
        for name in args.periodic or ():
            app.pause_periodic(name, until=args.until, reason=args.reason, actor=actor())
        done = None
        if args.types or args.all or args.periodic:
            done = f"Paused {_what(args)}: running jobs go on, and nothing new is claimed."
        return _report(app, args, done)


def run_resume(args: argparse.Namespace) -> int:
    _check(args)
    with open_app(args) as app:
        if args.types:
            app.resume(*args.types, actor=actor())
        elif args.all or not args.periodic:
            app.resume(actor=actor())
        for name in args.periodic or ():
            app.resume_periodic(name, actor=actor())
        return _report(app, args, f"Resumed {_what(args)}.")


def _check(args: argparse.Namespace) -> None:
    if args.all and args.types:
        raise UsageError("Name types, or pass --all, not both.")


def _what(args: argparse.Namespace) -> str:
    schedules = [f"the schedule {name}" for name in args.periodic or ()]
    return ", ".join([*args.types, *schedules]) or "everything"


def _report(app: Queuert, args: argparse.Namespace, done: str | None) -> int:
    out, pauses = Output(), app.pauses()
    if args.json:
        out.items([as_json(app, pause) for pause in pauses])
        return OK
    if done is not None:
        out.line(done)
    if pauses:
        draw_pauses(out, pauses)
    else:
        out.line(Cell("Nothing is paused.", "dim"))
    return OK


def draw_pauses(out: Output, pauses: list[Pause]) -> None:
    out.table(
        ["paused", "since", "until", "by", "reason"],
        [
            [
                Cell(pause.type_name or "everything", "yellow"),
                brief(out, pause.since),
                brief(out, pause.until) or "resumed",
                pause.actor,
                pause.reason,
            ]
            for pause in pauses
        ],
    )

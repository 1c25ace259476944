"""`flask queuert ...`: every command of `queuert`, on the queue of the current application."""

from __future__ import annotations

import sys

import click
from flask import current_app
from flask.cli import ScriptInfo, with_appcontext

from queuert.cli import main
from queuert.cli.host import Host, this_program

PROGRAM = "flask queuert"
WORKER_KEYS = ("CONCURRENCY", "POLL_INTERVAL")


@click.command(
    "queuert",
    short_help="Run jobs, and see how they stand.",
    add_help_option=False,  # the help is that of `queuert`
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@with_appcontext
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Run jobs, watch them and repair them: the commands of `queuert`."""
    config = current_app.config
    host = Host(
        app=current_app.extensions["queuert"],
        program=PROGRAM,
        command=_again(context, words),
        worker={key.lower(): config[f"QUEUERT_{key}"] for key in WORKER_KEYS if f"QUEUERT_{key}" in config},
    )
    context.exit(main(words, host=host))


def _again(context: click.Context, words: tuple[str, ...]) -> list[str]:
    """What comes before the words, such as `python -m flask --app shop queuert`."""
    own = sys.argv[1 : len(sys.argv) - len(words)]
    if own and own[-1] == "queuert":
        return [*this_program(), *own]
    # Called by other code, not by a command line.
    path = context.ensure_object(ScriptInfo).app_import_path
    return [sys.executable, "-m", "flask", *(["--app", path] if path else []), "queuert"]

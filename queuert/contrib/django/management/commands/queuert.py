"""`manage.py queuert ...`: every command of `queuert`, on the project's queue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from queuert.cli import main
from queuert.cli.host import Host, this_program
from queuert.contrib.django.conf import WORKER_KEYS, configured, project_queue

PROGRAM = "manage.py queuert"


class Command(BaseCommand):
    help = "Run jobs, watch them and repair them: the commands of `queuert`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """As it was typed: the words after ours go to our own parser, its help and its exit code are the command's."""
        words, path = _without_djangos(argv[2:])
        try:
            code = main(words, host=_host(path))
        finally:
            connections.close_all()
        sys.exit(code)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="a command of queuert, and its options")

    def handle(self, *_: Any, words: Sequence[str], **options: Any) -> None:
        """From `call_command("queuert", "stats", "--json")`."""
        with ExitStack() as stack:
            for name, redirect in (("stdout", redirect_stdout), ("stderr", redirect_stderr)):
                if options.get(name) is not None:
                    stack.enter_context(redirect(options[name]))
            code = main(list(words), host=_host(None))
        if code:
            raise CommandError(f"queuert {' '.join(words)} ended with {code}.", returncode=code)


def _host(path: str | None) -> Host:
    settings = configured()
    return Host(
        app=project_queue(),
        program=PROGRAM,
        # The settings are in the environment by now.
        command=[*this_program(), "queuert", *([] if path is None else ["--pythonpath", path])],
        worker={key.lower(): settings[key] for key in WORKER_KEYS if key in settings},
    )


def _without_djangos(words: list[str]) -> tuple[list[str], str | None]:
    """The words without the options that every command of Django's has, which it has read already; and the path among them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option)
    found, rest = parser.parse_known_args(words)
    return rest, found.pythonpath

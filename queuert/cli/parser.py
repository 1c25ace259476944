"""The grammar of the command line. Each command's own options are in the module that runs it."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

from queuert.cli.exits import UsageError
from queuert.cli.messages import hide_secrets
from queuert.suggestions import did_you_mean

DESCRIPTION: Final = "Durable job chains that commit with your database transactions: run, watch and repair them."
EPILOG: Final = """\
examples:
  queuert demo                                     see what it does, in half a minute
  queuert worker shop:app -c 10 --processes 4      run jobs
  queuert stats --app shop:app                     how things stand
  queuert jobs --url sqlite:///shop.db --status failed

Every command takes --app MODULE:APP or --url URL, or reads QUEUERT_APP or QUEUERT_URL (a worker needs the application).
An id may be shortened to any unambiguous beginning or end of at least 6 characters.
A URL with a password is better in QUEUERT_URL or in a file (--url-file): everybody on the machine sees the list of processes.
exit codes: 0 fine; 1 not found, nothing matched, refused or unhealthy; 2 wrong usage
"""


class Parser(argparse.ArgumentParser):
    """Repeats no password in its complaints, which are JSON where JSON was asked for."""

    # Set for all parsers of a command line at once: each command has one of its own.
    json = False

    def error(self, message: str) -> NoReturn:
        message = _with_suggestion(message)
        if self.json:
            raise UsageError(message)
        super().error(hide_secrets(message))


def _with_suggestion(message: str) -> str:
    """argparse's complaint about a word that is none of several, with the one that was probably meant."""
    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    return message + did_you_mean(found[1], re.findall(r"[\w-]+", found[2])) if found else message


def build_parser(*, json: bool = False, prog: str = "queuert") -> argparse.ArgumentParser:
    from queuert.cli import (
        acts,
        check,
        cleanup,
        dashboard,
        demo,
        health,
        limits,
        listing,
        migrate,
        pausing,
        periodic,
        schema,
        show,
        starting,
        stats,
        tail,
        top,
        worker,
        workers,
    )

    class Spoken(Parser):  # a class, since argparse makes one of it for each command
        pass

    Spoken.json = json
    parser = Spoken(
        prog=prog,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"queuert {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        demo,
        worker,
        migrate,
        check,
        stats,
        workers,
        top,
        tail,
        health,
        listing,
        show,
        limits,
        periodic,
        pausing,
        starting,
        acts,
        cleanup,
        dashboard,
        schema,
    ):
        module.add(commands)
    return parser


def add_command(
    commands: Any,
    name: str,
    help: str,
    *,
    example: str,
    details: str = "",
    database: bool = True,
    json: bool = False,
) -> argparse.ArgumentParser:
    """A command's parser, with the options that it shares with others."""
    description = f"{help[0].upper()}{help[1:]}." + (f" {details}" if details else "")
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog="example:\n" + "\n".join(f"  {line.strip()}" for line in example.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if database:
        add_database(command)
    if json:
        command.add_argument("--json", action="store_true", help="print JSON and nothing else")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def add_database(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("which database")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--app", metavar="MODULE:APP", help="the application's Queuert object (or QUEUERT_APP)")
    which.add_argument(
        "--url",
        help="the database itself, without the application's code (or QUEUERT_URL): sqlite:///file.db, postgresql://...",
    )
    which.add_argument(
        "--url-file", metavar="FILE", help="a file whose first line is the URL: nobody sees it in the list of processes"
    )
    group.add_argument("--prefix", metavar="NAME", help="with --url: the tables' prefix (queuert_)")
    group.add_argument("--schema", metavar="NAME", help="with --url: the schema on PostgreSQL (public)")
    group.add_argument("--id-type", metavar="TYPE", help="with --url: the SQL type of the ids, if the application set one")


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def port(text: str) -> int:
    """A TCP port; 0 is any that is free."""
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def names(text: str) -> list[str]:
    """Names with commas between them."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("it names nothing")
    return found


def _version() -> str:
    try:
        return version("queuert")
    except PackageNotFoundError:
        return f"(not installed), Python {sys.version_info.major}.{sys.version_info.minor}"

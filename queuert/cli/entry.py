"""Runs a command, and turns whatever goes wrong into one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence

from queuert.cli.exits import INTERRUPTED, REFUSED, USAGE, CommandError
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import clean
from queuert.cli.parser import build_parser
from queuert.errors import InvalidCursorError, InvalidJobIdError, UnsupportedDatabaseError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Text of jobs may hold what this terminal's encoding cannot show: never fail over that.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    args: argparse.Namespace | None = None
    try:
        args = build_parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as error:  # argparse has said what it had to say
        return error.code if isinstance(error.code, int) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except Exception as error:
        return _report(error, args)


def _report(error: Exception, args: argparse.Namespace | None) -> int:
    urls = [getattr(args, "url", None)]
    if getattr(args, "debug", False):
        print(hide_secrets(traceback.format_exc(), urls), file=sys.stderr, end="")
    print(f"queuert: {clean(hide_secrets(message_of(error), urls))}", file=sys.stderr)
    if isinstance(error, CommandError):
        return error.code
    usage = (InvalidJobIdError, InvalidCursorError, UnsupportedDatabaseError)
    return USAGE if isinstance(error, usage) else REFUSED

"""Runs a command, and turns whatever goes wrong into an exit code, and one line on stderr or, with `--json`, a JSON object on
stdout: `error` says what to tell a person, `type` what it is."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence

from queuert.cli.exits import INTERRUPTED, REFUSED, USAGE, CommandError
from queuert.cli.host import Host
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Output, clean
from queuert.cli.parser import build_parser
from queuert.errors import InvalidCursorError, InvalidJobIdError, UnsupportedDatabaseError


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Run one command line; its exit code. With a `host`, on its app, whatever the environment names."""
    for stream in (sys.stdout, sys.stderr):
        # Text of jobs may hold what this terminal's encoding cannot show: never fail over that.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    args: argparse.Namespace | None = None
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(json="--json" in words, prog="queuert" if host is None else host.program).parse_args(words)
        args.framework = host
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
        return _report(error, args, json="--json" in words)


def _report(error: Exception, args: argparse.Namespace | None, *, json: bool) -> int:
    urls = [getattr(args, "url", None)]
    if getattr(args, "debug", False):
        print(hide_secrets(traceback.format_exc(), urls), file=sys.stderr, end="")
    message = hide_secrets(message_of(error), urls)
    code = _exit_code(error)
    if json:
        Output().json({"error": message, "type": _kind(error), "exit_code": code})
    else:
        print(f"queuert: {clean(message)}", file=sys.stderr)
    return code


def _exit_code(error: Exception) -> int:
    if isinstance(error, CommandError):
        return error.code
    usage = (InvalidJobIdError, InvalidCursorError, UnsupportedDatabaseError)
    return USAGE if isinstance(error, usage) else REFUSED


def _kind(error: Exception) -> str:
    return error.kind or type(error).__name__ if isinstance(error, CommandError) else type(error).__name__

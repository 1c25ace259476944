"""Who does it, and why: for the timeline and the log."""

from __future__ import annotations

import argparse
import getpass


def actor() -> str:
    """Who does it."""
    try:
        return f"cli:{getpass.getuser()}"
    except Exception:  # no such user, in a container
        return "cli"


def add_reason(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reason", type=_reason, metavar="TEXT", help="why, for the timeline and the log")


def _reason(text: str) -> str:
    if not text.strip() or len(text) > 500 or "\0" in text:
        raise argparse.ArgumentTypeError("a reason has 1 to 500 characters")
    return text

"""Filters that no index serves: `--stranded`, `--worker`, `--key`, `--input FIELD=VALUE`.

They look through what the other filters choose, and no further than a limit; how far that was is told.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from queuert import Chain, Job, Page, Status
from queuert.cli.exits import UsageError

T = TypeVar("T", Job, Chain)

FURTHEST: Final = 20_000
NAMES: Final = ("stranded", "worker", "key", "input")


def add_choices(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stranded", action="store_true", help="only what waits for a chain that failed or was cancelled")
    command.add_argument("--worker", metavar="W", help="only what this worker has in hand, or has tried: its id, or its name")
    command.add_argument("--key", metavar="K", help="only what carries this deduplication key, or else this limit key")
    command.add_argument("--input", type=_field, action="append", metavar="FIELD=VALUE", help="only with this in the input")


def _field(text: str) -> tuple[list[str], Any]:
    name, equals, given = text.partition("=")
    if not equals or not all(name.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE, such as order_id=7 or customer.name=Ann")
    try:
        value = json.loads(given, parse_constant=_no_constant)
    except ValueError:
        value = given
    if isinstance(value, (list, dict)):
        raise argparse.ArgumentTypeError(f"{text!r}: a field is compared with text, a number, true, false or null")
    return name.split("."), value


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def prepare(args: argparse.Namespace) -> None:
    """What the choice says about the state of a job is asked of the index."""
    if args.stranded:
        if args.status not in (None, [Status.BLOCKED]):
            raise UsageError("What is stranded is blocked: leave --status out.")
        args.status = [Status.BLOCKED]


def choice(args: argparse.Namespace) -> dict[str, Any]:
    """The filters as `list_jobs` and `list_chains` take them."""
    fields: dict[str, Any] = {}
    for path, value in args.input or ():
        inner = fields
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--input asks for {name} to be two things.")
        inner[path[-1]] = value
    return {"stranded": bool(args.stranded), "worker": args.worker, "key": args.key, "input": fields or None}


@dataclass
class Found(Generic[T]):
    """What was found, where to go on, and how many rows were looked at; None where an index told."""

    items: list[T]
    next_cursor: str | None
    looked_at: int | None


def gather(read: Callable[[str | None, int], Page[T]], cursor: str | None, limit: int) -> Found[T]:
    """Pages until there are enough, none is left, or too many rows were looked at."""
    found = Found[T]([], cursor, None)
    while True:
        page = read(found.next_cursor, limit - len(found.items))
        found.items += page.items
        found.next_cursor = page.next_cursor
        if page.looked_at is not None:
            found.looked_at = (found.looked_at or 0) + page.looked_at
        if page.next_cursor is None or len(found.items) >= limit or (found.looked_at or 0) >= FURTHEST:
            return found

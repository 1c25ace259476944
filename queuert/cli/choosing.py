"""Filters that no index serves: `--stranded`, `--worker`, `--key`, `--input FIELD=VALUE`.

They look through what the other filters choose, newest first, and no further than a limit; how far that was is told.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from queuert import Chain, Job, Queuert, Status
from queuert.cli.exits import UsageError
from queuert.cli.values import as_json

FURTHEST: Final = 20_000
NAMES: Final = ("stranded", "worker", "key", "input")

_MISSING: Final = object()


def add_choices(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stranded", action="store_true", help="only what waits for a chain that failed or was cancelled")
    command.add_argument("--worker", metavar="W", help="only what this worker has in hand, or completed: its id, or its name")
    command.add_argument("--key", metavar="K", help="only what carries this deduplication or limit key")
    command.add_argument("--input", type=_field, action="append", metavar="FIELD=VALUE", help="only with this in the input")


def _field(text: str) -> tuple[list[str], Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE, such as order_id=7 or customer.name=Ann")
    try:
        return name.split("."), json.loads(value)
    except ValueError:
        return name.split("."), value


def is_choosy(args: argparse.Namespace) -> bool:
    return any(getattr(args, name, None) not in (None, False) for name in NAMES)


def prepare(args: argparse.Namespace) -> None:
    """What the choice says about the state of a job is asked of the index."""
    if args.stranded:
        if args.status not in (None, [Status.BLOCKED]):
            raise UsageError("What is stranded is blocked: leave --status out.")
        args.status = [Status.BLOCKED]


class Chooser:
    """Lets through what was asked for, and counts what it looked at."""

    def __init__(self, app: Queuert, args: argparse.Namespace) -> None:
        self._app = app
        self._args = args
        self.looked_at = 0
        self.stopped = False

    def jobs(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            if self._counted() and self._fits(job, as_json(self._app, job)["input"]):
                yield job
            if self.stopped:
                return

    def chains(self, pages: Iterable[list[Chain]]) -> Iterator[Chain]:
        for page in pages:
            named = [chain.tail_id for chain in page]
            tails = {job.id: job for job in self._app.list_jobs(job_ids=named, limit=1_000).items} if named else {}
            for chain in page:
                tail = tails.get(chain.tail_id)
                if tail is not None and self._counted() and self._fits(tail, as_json(self._app, chain)["input"]):
                    yield chain
                if self.stopped:
                    return

    def _counted(self) -> bool:
        if self.looked_at >= FURTHEST:
            self.stopped = True
            return False
        self.looked_at += 1
        return True

    def _fits(self, job: Job, value: Any) -> bool:
        args = self._args
        if args.worker is not None and not _is_by(job, args.worker):
            return False
        if args.key is not None and args.key not in (job.deduplication_key, getattr(job, "limit_key", None)):
            return False
        if any(_dig(value, path) != wanted for path, wanted in args.input or ()):
            return False
        return not args.stranded or self._is_stranded(job)

    def _is_stranded(self, job: Job) -> bool:
        if job.status is not Status.BLOCKED:
            return False
        lost = (Status.FAILED, Status.CANCELLED)
        return any(blocker.status in lost for blocker in self._app.get_job_blockers(job.id))


def _is_by(job: Job, worker: str) -> bool:
    holder = job.leased_by or job.completed_by or ""
    return holder == worker or holder.partition("@")[0] == worker


def _dig(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    return value

"""`queuert tail`: what happens to jobs, a line each, as it happens.

Nothing in the tables is in the order in which it happened, and an index for that would cost every job a write. So this looks
at what runs, at the newest jobs, and at those that it has seen before, and tells what has become of them since. A job that was
old, and was claimed and ended between two looks, may be missed: `queuert show` has it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from queuert import DatabaseUnavailableError, Job, Queuert, Status
from queuert.app import context_of
from queuert.cli.exits import OK
from queuert.cli.loading import open_app
from queuert.cli.messages import hide_secrets, message_of
from queuert.cli.output import Cell, Output, one_line
from queuert.cli.parser import add_command, names, positive
from queuert.cli.show import EVENT_STYLES
from queuert.cli.values import duration, iso

NEWEST: Final = 500  # jobs looked at each time, of all and of those that are closed
FOLLOWED: Final = 1_000  # open jobs that were seen before
REMEMBERED: Final = 20_000


class Happened(NamedTuple):
    """One thing that happened to a job."""

    at: datetime
    event: str
    job: Job
    detail: str


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "tail",
        "follow what happens to jobs, a line each; Ctrl-C ends it",
        details="With --json each line is a JSON object.",
        example="""
            queuert tail --app shop:app
            queuert tail --url postgresql://localhost/shop --types charge-card --json""",
        json=True,
    )
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    command.add_argument("--interval", type=duration, default=0.5, metavar="SECONDS", help="between two looks (0.5)")
    command.add_argument("--limit", type=positive, metavar="N", help="end after so many lines")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        follower = Follower(app, args.types)
        shown = 0
        away = False
        try:
            while True:
                try:
                    for happened in follower.look():
                        _show(out, happened, args.json)
                        shown += 1
                        if shown == args.limit:
                            return OK
                    away = False
                except Exception as error:
                    if not isinstance(error, DatabaseUnavailableError) and not context_of(app).database.is_transient(error):
                        raise
                    if not away:  # a database that is restarting comes back
                        print(f"queuert: {hide_secrets(message_of(error))}; trying again.", file=sys.stderr)
                    away = True
                sys.stdout.flush()
                time.sleep(max(0.05, args.interval))
        except KeyboardInterrupt:
            return OK


def _show(out: Output, happened: Happened, as_json: bool) -> None:
    job = happened.job
    if as_json:
        facts: dict[str, Any] = {"at": iso(happened.at), "event": happened.event, "job_id": job.id, "chain_id": job.chain_id}
        facts |= {"type_name": job.type_name, "status": job.status.value, "attempt": job.attempt, "detail": happened.detail}
        print(json.dumps(facts))
        return
    at = happened.at.astimezone(timezone.utc)
    out.line(
        Cell(f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} ", "dim"),
        Cell(f"{happened.event:<15} ", EVENT_STYLES.get(happened.event, "")),
        out.id(job.id),
        f" {job.type_name}  {happened.detail}".rstrip(),
    )


class Follower:
    """Looks again and again, and says what has happened in between."""

    def __init__(self, app: Queuert, types: list[str] | None) -> None:
        self._app = app
        self._types = types
        self._known: dict[str, Job] = {}
        context = context_of(app)
        self._began = context.read(None, context.repository.clock)
        self._remember(self._read())

    def look(self) -> list[Happened]:
        """What has happened since the last look, in order."""
        found = self._read()
        happened = [each for job in found.values() for each in self._of(job)]
        self._remember(found)
        return sorted(happened, key=lambda each: each.at)

    def _read(self) -> dict[str, Job]:
        app, types = self._app, self._types
        pages = [
            app.list_jobs(types=types, statuses=["running"], limit=1_000),
            app.list_jobs(types=types, limit=NEWEST),
            app.list_jobs(types=types, statuses=["completed", "failed", "cancelled"], limit=NEWEST),
        ]
        found = {job.id: job for page in pages for job in page.items}
        open_ones = [job.id for job in self._known.values() if not job.status.closed and job.id not in found]
        if followed := open_ones[-FOLLOWED:]:
            found |= {job.id: job for job in app.list_jobs(job_ids=followed, limit=1_000).items}
        return found

    def _remember(self, found: dict[str, Job]) -> None:
        for identity, job in found.items():
            self._known.pop(identity, None)  # so that it is the newest of them
            self._known[identity] = job
        for identity in list(self._known)[: max(0, len(self._known) - REMEMBERED)]:
            del self._known[identity]

    def _of(self, job: Job) -> Iterator[Happened]:
        before = self._known.get(job.id)
        if before is None and job.created_at > self._began:
            yield Happened(job.created_at, "ENQUEUED", job, "")
        attempted = 0 if before is None else before.attempt
        claimed = job.last_attempt_at
        if claimed is not None and claimed > self._began and (job.attempt > attempted or _claimed_again(before, job)):
            yield Happened(claimed, "CLAIMED", job, _by(job.leased_by or job.completed_by, job.attempt))
        if before is not None and before.status is job.status and before.attempt == job.attempt:
            if job.status is Status.PENDING and job.scheduled_at < before.scheduled_at:
                yield Happened(job.scheduled_at, "TRIGGERED", job, "")
            return
        yield from self._ended(job, before)

    def _ended(self, job: Job, before: Job | None) -> Iterator[Happened]:
        closed = job.completed_at
        if closed is not None and closed > self._began:
            if job.status is Status.COMPLETED:
                event = "SUCCEEDED" if job.continued_to is None else "CONTINUED"
                yield Happened(closed, event, job, _by(job.completed_by, job.attempt))
            else:
                yield Happened(closed, job.status.value.upper(), job, _problem(job))
        elif job.status is Status.PENDING and before is not None:
            now = datetime.now(timezone.utc)
            if before.status is Status.BLOCKED:
                yield Happened(job.scheduled_at, "UNBLOCKED", job, "")
            elif before.status.closed:
                yield Happened(now, "RETRIED", job, "")
            elif job.error_code is not None:
                yield Happened(now, "RETRY_SCHEDULED", job, f"{_problem(job)} again at {job.scheduled_at:%H:%M:%S}")


def _claimed_again(before: Job | None, job: Job) -> bool:
    return before is not None and job.status is Status.RUNNING and before.lease_token != job.lease_token


def _by(worker: str | None, attempt: int) -> str:
    return " ".join(filter(None, [f"attempt {attempt}" if attempt else "", f"by {worker}" if worker else ""]))


def _problem(job: Job) -> str:
    last = (job.last_attempt_error or "").strip().rpartition("\n")[2]
    return one_line(" ".join(filter(None, [job.error_code, last])), 120)

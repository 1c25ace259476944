"""`queuert show ID`: all there is to know about a job or a chain, with its timeline drawn."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from datetime import datetime, timezone
from typing import Any, NamedTuple

from queuert import Attempt, Chain, Job, Queuert, Status, TimelineEntry
from queuert.cli.exits import OK, CommandError
from queuert.cli.ids import find_job
from queuert.cli.listing import draw_chains, draw_jobs
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Content, Output, one_line, status_cell
from queuert.cli.parser import add_command, positive
from queuert.cli.values import as_json, lasting, payload_text, plain, when

EVENT_STYLES = {
    "SUCCEEDED": "green",
    "CONTINUED": "green",
    "FAILED": "red",
    "RECOVERED": "red",
    "CANCELLED": "dim",
    "BLOCKED": "magenta",
    "RETRY_SCHEDULED": "yellow",
}


# What keeps a job waiting stands first, and what went wrong before what still runs.
HOLDING = (Status.FAILED, Status.CANCELLED, Status.BLOCKED, Status.RUNNING, Status.PENDING, Status.COMPLETED)


class Story(NamedTuple):
    """A job with what happened to it."""

    job: Job
    blockers: list[Chain]
    attempts: list[Attempt]
    timeline: list[TimelineEntry]


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "show",
        "all about a job or a chain: payloads, attempts, blockers, timeline",
        details="The id of a chain is the id of its first job: that shows the chain, unless --job is given.",
        example="""
            queuert show 01890a5d-ac96-774b-bcce-b302099a8057 --app shop:app
            queuert show 01890a5d-ac96-774b-bcce-b302099a8057 --url sqlite:///shop.db --json""",
        json=True,
    )
    command.add_argument("id", metavar="ID", help="of a job or a chain; a beginning or an end of 6 or more will do")
    command.add_argument("--job", action="store_true", help="the job alone, also if the id is that of a chain")
    command.add_argument(
        "--limit",
        type=positive,
        default=20,
        metavar="N",
        help="show the newest N jobs of a long chain, and N of the blockers that are completed (20)",
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        job = find_job(app, args.id)
        chain = app.get_chain(job.chain_id)
        if chain is None:
            raise CommandError(f"Chain {job.chain_id} was deleted just now.")
        if args.job or job.id != job.chain_id:
            story = read_story(app, job)
            _job_json(out, app, story, chain) if args.json else _draw_job(out, app, story, chain, args.limit)
            return OK
        page = app.list_chain_jobs(chain.id, order="desc", limit=min(args.limit, 1_000))
        stories = [read_story(app, one) for one in reversed(page.items)]
        waiting = app.list_blocked_jobs(chain.id, limit=args.limit).items
        if args.json:
            _chain_json(out, app, chain, stories, waiting)
        else:
            _draw_chain(out, app, chain, stories, waiting, args.limit)
    return OK


def read_story(app: Queuert, job: Job) -> Story:
    blockers = app.get_job_blockers(job.id) if job.blocker_count else []
    return Story(job, blockers, app.attempts(job.id), app.timeline(job.id))


def _story_json(app: Queuert, story: Story) -> dict[str, Any]:
    return {
        **as_json(app, story.job),
        "blockers": [as_json(app, blocker) for blocker in story.blockers],
        "attempts": [as_json(app, attempt) for attempt in story.attempts],
        "timeline": [as_json(app, entry) for entry in story.timeline],
    }


def _job_json(out: Output, app: Queuert, story: Story, chain: Chain) -> None:
    out.json({"kind": "job", "job": _story_json(app, story), "chain": as_json(app, chain)})


def _chain_json(out: Output, app: Queuert, chain: Chain, stories: list[Story], waiting: list[Job]) -> None:
    out.json(
        {
            "kind": "chain",
            "chain": as_json(app, chain),
            "jobs": [_story_json(app, story) for story in stories],
            "blocks": [as_json(app, job) for job in waiting],
        }
    )


def _draw_job(out: Output, app: Queuert, story: Story, chain: Chain, limit: int) -> None:
    job, shown = story.job, as_json(app, story.job)
    out.line(Cell(f"Job {job.id}", "bold"))
    out.facts(
        [
            ("type", job.type_name),
            ("status", status_cell(job.status)),
            ("chain", f"{chain.id} ({chain.type_name}, {chain.status}), job {job.chain_index + 1} of it"),
            ("continued to", job.continued_to),
            ("created", when(job.created_at)),
            ("scheduled", when(job.scheduled_at) if job.status is Status.PENDING else None),
            ("completed", when(job.completed_at) or None),
            ("completed by", job.completed_by),
            ("priority", job.priority or None),
            ("attempts", f"{job.attempts_used} of {'any number' if job.max_attempts is None else job.max_attempts}"),
            ("leased", _lease(job)),
            ("key", job.deduplication_key),
            ("input", payload_text(shown["input"])),
            ("output", None if job.output is None else payload_text(shown["output"])),
            ("error", None if job.error_code is None else Cell(job.error_code, "red")),
            ("last error", job.last_attempt_error.rstrip() if job.last_attempt_error else None),
        ]
    )
    _draw_blockers(out, [story], limit)
    _draw_attempts(out, [story])
    draw_timeline(out, [story])


def _draw_chain(out: Output, app: Queuert, chain: Chain, stories: list[Story], waiting: list[Job], limit: int) -> None:
    shown, tail = as_json(app, chain), stories[-1].job
    ended = chain.completed_at or datetime.now(timezone.utc)
    out.line(Cell(f"Chain {chain.id}", "bold"))
    out.facts(
        [
            ("type", chain.type_name),
            ("status", status_cell(chain.status)),
            ("created", when(chain.created_at)),
            ("completed", when(chain.completed_at) or None),
            ("took" if chain.completed_at else "open for", lasting((ended - chain.created_at).total_seconds())),
            ("key", tail.deduplication_key),
            ("input", payload_text(shown["input"])),
            ("output", None if chain.output is None else payload_text(shown["output"])),
            ("error", None if chain.error_code is None else Cell(chain.error_code, "red")),
            ("last error", tail.last_attempt_error.rstrip() if tail.last_attempt_error else None),
        ]
    )
    out.heading("Jobs")
    if stories[0].job.chain_index:
        out.line(Cell(f"{stories[0].job.chain_index} earlier jobs are not shown: --limit", "dim"))
    draw_jobs(out, [story.job for story in stories])
    _draw_blockers(out, stories, limit)
    if waiting:
        out.heading("Waiting for it")
        draw_jobs(out, waiting)
    _draw_attempts(out, stories)
    draw_timeline(out, stories)


def _draw_blockers(out: Output, stories: list[Story], limit: int) -> None:
    blockers = [blocker for story in stories for blocker in story.blockers]
    if not blockers:
        return
    counts = Counter(blocker.status for blocker in blockers)
    numbers = ", ".join(f"{counts[status]} {status}" for status in sorted(counts, key=HOLDING.index))
    out.heading("Blockers" if len(blockers) == 1 else f"Blockers: {numbers}")
    blockers.sort(key=lambda blocker: HOLDING.index(blocker.status))  # stable: within a state the order stands
    open_ones = sum(number for status, number in counts.items() if status is not Status.COMPLETED)
    shown = blockers if out.width is None else blockers[: open_ones + limit]
    draw_chains(out, shown)
    if len(shown) < len(blockers):
        out.line(Cell(f"and {len(blockers) - len(shown)} more that are completed: --limit", "dim"))


def _draw_attempts(out: Output, stories: list[Story]) -> None:
    attempts = [(story.job, attempt) for story in stories for attempt in story.attempts]
    if not attempts:
        return
    out.heading("Attempts")
    rows: list[list[Content]] = [
        [
            job.type_name,
            attempt.attempt,
            Cell(attempt.outcome, "green" if attempt.outcome == "succeeded" else "yellow"),
            _took(attempt),
            attempt.worker_id,
            Cell(one_line(" ".join(filter(None, [attempt.error_code, attempt.error_detail])), 100), "red"),
        ]
        for job, attempt in attempts
    ]
    out.table(["type", "attempt", "outcome", "took", "worker", "error"], rows, right=["attempt", "took"])


def _took(attempt: Attempt) -> str:
    began = attempt.started_at or attempt.claimed_at
    return "" if began is None else lasting(max(0.0, (attempt.finished_at - began).total_seconds()))


def draw_timeline(out: Output, stories: list[Story]) -> None:
    """One line an event, with the time since the one before it."""
    entries = [(entry, story.job) for story in stories for entry in story.timeline]
    entries.sort(key=lambda pair: pair[0].at)  # stable: within one job the order stands
    out.heading("Timeline (UTC)")
    first, middle, last = ("┌", "├", "└") if out.draws else ("+", "|", "+")
    before: datetime | None = None
    for number, (entry, job) in enumerate(entries):
        at = entry.at.astimezone(timezone.utc)
        day = f"{at:%Y-%m-%d} " if before is None or at.date() != before.date() else " " * 11
        if out.width is not None:
            if day.strip():
                out.line(Cell(day.strip(), "dim"))
            day = ""
        gap = "" if before is None else f"+{lasting(max(0.0, (at - before).total_seconds()))}"
        mark = first if number == 0 else last if number == len(entries) - 1 else middle
        who = f"{job.type_name}  " if len(stories) > 1 else ""
        head = f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03d} {gap:>12} {mark} "
        event, text = f"{entry.event:<15}", f"{who}{_detail(entry)}"
        cells = (Cell(head, "dim"), Cell(event, EVENT_STYLES.get(entry.event, "")))
        if out.width is None or len(head) + len(event) + 2 + len(text) <= out.width:
            out.line(*cells, f"  {text}".rstrip())
        else:
            out.line(*cells)
            for line in textwrap.wrap(text, out.width - len(head), break_long_words=False, break_on_hyphens=False):
                out.line(" " * len(head), line)
        before = at


def _detail(entry: TimelineEntry) -> str:
    detail = dict(entry.detail)
    parts = []
    if (attempt := detail.pop("attempt", None)) is not None:
        parts.append(f"attempt {attempt}")
    if entry.actor:
        parts.append(f"by {entry.actor}")
    parts += [f"{name} {_short(value)}" for name, value in detail.items() if value is not None]
    return one_line(", ".join(parts))


def _short(value: object) -> str:
    return value if isinstance(value, str) else payload_text(plain(value), 100)


def _lease(job: Job) -> str | None:
    if job.leased_by is None:
        return None
    return f"by {job.leased_by} until {when(job.leased_until)}, last heartbeat {when(job.heartbeat_at) or 'none'}"

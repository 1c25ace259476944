"""`queuert jobs` and `queuert chains`: pages of them, by creation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from queuert import Chain, Job, Page, Queuert, Status
from queuert.chains.pages import MAX_LIMIT
from queuert.cli.choosing import NAMES, Found, add_choices, choice, gather, prepare
from queuert.cli.exits import OK, UsageError
from queuert.cli.ids import find_job
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output, one_line, status_cell
from queuert.cli.parser import add_command, names, positive
from queuert.cli.values import as_json, brief, moment

T = TypeVar("T", Job, Chain)

ERROR_WIDTH: Final = 60
FILTERS: Final = ("status", "type", "chain_type", "error_code", "since", "until", *NAMES)
STATUS_HELP: Final = f"only in these states: {', '.join(status.value for status in Status)}"


def add(commands: Any) -> None:
    jobs = add_command(
        commands,
        "jobs",
        "list jobs, newest first",
        example="""
            queuert jobs --app shop:app --status failed
            queuert jobs --url sqlite:///shop.db --type charge-card --since 2h --json""",
        json=True,
    )
    add_filters(jobs)
    jobs.add_argument("--chain", action="append", metavar="ID", help="only jobs of this chain; may be repeated")
    _add_paging(jobs)
    jobs.set_defaults(run=run_jobs)

    chains = add_command(
        commands,
        "chains",
        "list chains, newest first",
        details="A chain's status is that of its newest job.",
        example="""
            queuert chains --app shop:app --status pending,running
            queuert chains --url postgresql://localhost/shop --type charge-card --limit 10""",
        json=True,
    )
    chains.add_argument("--status", type=statuses, metavar="A,B", help=STATUS_HELP)
    chains.add_argument("--type", type=names, metavar="A,B", help="only chains of these types")
    chains.add_argument("--error-code", metavar="CODE", help="only those whose newest job carries this error (or TIMEOUT:)")
    add_choices(chains)
    chains.add_argument("--root-only", action="store_true", help="only chains that no job waited for")
    _add_times(chains)
    _add_paging(chains)
    chains.set_defaults(run=run_chains)


def add_filters(command: argparse.ArgumentParser) -> None:
    """The options that choose jobs."""
    command.add_argument("--status", type=statuses, metavar="A,B", help=STATUS_HELP)
    command.add_argument("--type", type=names, metavar="A,B", help="only jobs of these types")
    command.add_argument("--chain-type", type=names, metavar="A,B", help="only jobs of chains of these types")
    command.add_argument("--error-code", metavar="CODE", help="only jobs that carry this error (or TIMEOUT: for a category)")
    add_choices(command)
    _add_times(command)


def chosen_filters(args: argparse.Namespace) -> list[str]:
    """The filters that were given."""
    return [name for name in FILTERS if getattr(args, name) not in (None, False)]


def _add_times(command: argparse.ArgumentParser) -> None:
    command.add_argument("--since", type=moment, metavar="TIME", help="created then or later: 2026-01-31T09:30Z, 2h, 3d")
    command.add_argument("--until", type=moment, metavar="TIME", help="created before")


def _add_paging(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=positive, default=50, metavar="N", help=f"how many, at most {MAX_LIMIT} (50)")
    command.add_argument("--cursor", help="go on where the page before ended")
    command.add_argument("--oldest-first", action="store_true", help="oldest first")


def statuses(text: str) -> list[Status]:
    """States with commas between them."""
    try:
        return [Status(name) for name in names(text)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; a status is one of {', '.join(s.value for s in Status)}") from None


def run_jobs(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        chains = None if args.chain is None else [find_job(app, identity).chain_id for identity in args.chain]
        prepare(args)
        read = partial(jobs_page, app, args, chain_ids=chains)
        _show(out, app, args, gather(read, args.cursor, _limit(args)), draw_jobs, "job")
    return OK


def run_chains(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        prepare(args)
        read = partial(_chains_page, app, args)
        _show(out, app, args, gather(read, args.cursor, _limit(args)), draw_chains, "chain")
    return OK


def jobs_page(
    app: Queuert, args: argparse.Namespace, cursor: str | None, limit: int, *, chain_ids: list[str] | None = None
) -> Page[Job]:
    return app.list_jobs(
        types=args.type,
        chain_types=args.chain_type,
        statuses=args.status,
        error_codes=None if args.error_code is None else [args.error_code],
        chain_ids=chain_ids,
        since=args.since,
        until=args.until,
        order="asc" if getattr(args, "oldest_first", True) else "desc",
        cursor=cursor,
        limit=limit,
        **choice(args),
    )


def _chains_page(app: Queuert, args: argparse.Namespace, cursor: str | None, limit: int) -> Page[Chain]:
    return app.list_chains(
        types=args.type,
        statuses=args.status,
        error_codes=None if args.error_code is None else [args.error_code],
        root_only=args.root_only,
        since=args.since,
        until=args.until,
        order="asc" if args.oldest_first else "desc",
        cursor=cursor,
        limit=limit,
        **choice(args),
    )


def _limit(args: argparse.Namespace) -> int:
    if args.limit > MAX_LIMIT:
        raise UsageError(f"--limit is at most {MAX_LIMIT}: go on with --cursor.")
    return int(args.limit)


def every_job(app: Queuert, args: argparse.Namespace) -> Iterator[Job]:
    """All jobs that the filters choose, however far they are."""
    cursor: str | None = None
    while True:
        page = jobs_page(app, args, cursor, MAX_LIMIT)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _show(
    out: Output,
    app: Queuert,
    args: argparse.Namespace,
    found: Found[T],
    draw: Callable[[Output, list[T]], None],
    what: str,
) -> None:
    if args.json:
        looked = {} if found.looked_at is None else {"looked_at": found.looked_at, "complete": found.next_cursor is None}
        out.items([as_json(app, each) for each in found.items], found.next_cursor, **looked)
        return
    if found.items:
        draw(out, found.items)
    else:
        out.line(Cell(f"No {what} found.", "dim"))
    if found.looked_at is not None and found.next_cursor is not None:
        out.line(Cell(f"Looked at {found.looked_at} {what}s, and not further: --since, --until, --type.", "yellow"))
    if found.next_cursor is not None:
        out.line(Cell(f"There are more: --cursor {found.next_cursor}", "dim"))


def draw_jobs(out: Output, jobs: list[Job]) -> None:
    out.table(
        ["id", "type", "status", "attempt", "created", "scheduled", "error"],
        [
            [
                out.id(job.id),
                job.type_name,
                status_cell(job.status),
                job.attempt,
                brief(out, job.created_at),
                brief(out, job.scheduled_at) if job.status is Status.PENDING else "",
                _error(job),
            ]
            for job in jobs
        ],
        right=["attempt"],
        optional=["attempt", "created", "scheduled"],
    )


def draw_chains(out: Output, chains: list[Chain]) -> None:
    out.table(
        ["id", "type", "status", "newest job", "created", "completed", "error"],
        [
            [
                out.id(chain.id),
                chain.type_name,
                status_cell(chain.status),
                chain.tail_type_name,
                brief(out, chain.created_at),
                brief(out, chain.completed_at),
                Cell(chain.error_code or "", "red"),
            ]
            for chain in chains
        ],
        optional=["completed", "created", "newest job"],
    )


def _error(job: Job) -> Cell:
    # The last line of a traceback is the one that says what it was.
    last = (job.last_attempt_error or "").strip().rpartition("\n")[2]
    return Cell(one_line(" ".join(filter(None, [job.error_code, last])), ERROR_WIDTH), "red")

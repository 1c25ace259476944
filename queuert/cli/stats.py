"""`queuert stats`: the five questions. How many in each state; what is stuck, and on whom; how often is it tried; what goes
wrong; what is kept."""

from __future__ import annotations

import argparse
from typing import Any, Final

from queuert import Queuert, Stats, Status
from queuert.cli.exits import OK
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Content, Output
from queuert.cli.parser import add_command, names, positive
from queuert.cli.values import iso, lasting, plain, size_text, when
from queuert.model import CLOSED
from queuert.storage.sizes import Sizes

SHOWN_CODES: Final = 10
SHOWN_RUNNING: Final = 5
ATTEMPT_BANDS: Final = ((0, 0, "0"), (1, 1, "1"), (2, 2, "2"), (3, 5, "3-5"), (6, 10, "6-10"), (11, None, "over 10"))


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "stats",
        "how things stand: states, what is stuck, retries, errors, what is kept",
        example="""
            queuert stats --app shop:app
            queuert stats --url sqlite:///shop.db --types charge-card --json""",
        json=True,
    )
    add_options(command)
    command.add_argument("--sizes", action="store_true", help="also how much room tables, indexes, dead rows and the WAL take")
    command.set_defaults(run=run)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    limits = command.add_mutually_exclusive_group()
    limits.add_argument(
        "--count-limit", type=positive, default=10_000, metavar="N", help="stop the count of each state there (10000)"
    )
    limits.add_argument("--exact", action="store_true", help="count all, however many")


def run(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        stats, kept = read(app, args)
        if args.json:
            shown = stats_json(stats, kept)
            out.json({**shown, "sizes": sizes_json(app.sizes())} if args.sizes else shown)
        else:
            draw(out, stats, kept)
            if args.sizes:
                draw_sizes(out, app.sizes())
    return OK


def read(app: Queuert, args: argparse.Namespace) -> tuple[Stats, dict[Status, Any]]:
    limit = None if args.exact else args.count_limit
    return app.stats(types=args.types, count_limit=limit), oldest_kept(app, args.types)


def oldest_kept(app: Queuert, types: list[str] | None) -> dict[Status, Any]:
    """When the oldest closed chain of each state was created: what retention has left."""
    found = {}
    for status in sorted(CLOSED):
        page = app.list_chains(types=types, statuses=[status], order="asc", limit=1)
        if page.items:
            found[status] = page.items[0].created_at
    return found


def stats_json(stats: Stats, kept: dict[Status, Any]) -> dict[str, Any]:
    return {
        "by_status": plain(stats.by_status),
        "by_type": plain(stats.by_type),
        "capped": plain(stats.capped),
        "capped_by_type": plain(stats.capped_by_type),
        "stranded": stats.stranded,
        "stranded_jobs": stats.stranded_jobs,
        "ready": plain(stats.ready),
        "scheduled": plain(stats.scheduled),
        "retrying": plain(stats.retrying),
        "rates": {name: {span: vars(getattr(each, span)) for span in ("minute", "hour")} for name, each in stats.rates.items()},
        "eta_seconds": stats.eta_seconds,
        "oldest_ready_seconds": stats.oldest_ready_seconds,
        "oldest_running": None if stats.oldest_running is None else plain(stats.oldest_running._asdict()),
        "longest_running": [plain(running._asdict()) for running in stats.longest_running],
        "attempts": plain(stats.attempts),
        "attempts_by_type": plain(stats.attempts_by_type),
        "error_codes": [
            {
                "code": code,
                "jobs": number,
                "types": stats.error_types.get(code, []),
                "example": stats.error_examples.get(code),
            }
            for code, number in stats.error_codes
        ],
        "oldest_kept": {status.value: iso(at) for status, at in kept.items()},
    }


def draw(out: Output, stats: Stats, kept: dict[Status, Any] | None = None) -> None:
    _draw_states(out, stats)
    _draw_stuck(out, stats)
    _draw_attempts(out, stats)
    _draw_errors(out, stats)
    if kept:
        out.heading("What is kept")
        out.facts((f"oldest {status}", f"chain of {when(at)}") for status, at in kept.items())


def sizes_json(sizes: Sizes) -> dict[str, Any]:
    return {**vars(sizes), "tables": [vars(table) for table in sizes.tables]}


def draw_sizes(out: Output, sizes: Sizes) -> None:
    out.heading("Room that it takes")
    out.table(
        ["table", "rows", "dead rows", "size", "indexes"],
        [
            [
                table.name,
                "" if table.rows is None else f"~{table.rows}",
                table.dead_rows,
                size_text(table.bytes),
                size_text(table.index_bytes),
            ]
            for table in sizes.tables
        ],
        right=["rows", "dead rows", "size", "indexes"],
    )
    out.facts(
        [
            ("file or database", size_text(sizes.total_bytes)),
            ("WAL", size_text(sizes.wal_bytes) if sizes.wal_bytes is not None else "not ours to see"),
            ("free pages", None if sizes.free_bytes is None else f"{size_text(sizes.free_bytes)} (queuert vacuum)"),
        ]
    )


def _draw_states(out: Output, stats: Stats) -> None:
    out.line(Cell("Jobs", "bold"))
    totals: list[Content] = [_total(stats.by_status[status], status in stats.capped) for status in Status]
    rows: list[list[Content]] = [
        [name, *(_count(counts.get(status, 0), status in stats.capped_by_type.get(name, ())) for status in Status)]
        for name, counts in sorted(stats.by_type.items())
    ]
    columns = ["type", *(status.value for status in Status)]
    out.table(columns, [*rows, [Cell("all", "bold"), *totals]], right=columns[1:])


def _draw_stuck(out: Output, stats: Stats) -> None:
    out.heading("What waits, what is stuck")
    ready = stats.oldest_ready_seconds
    a_minute = sum(each.minute.completed + each.minute.failed for each in stats.rates.values())
    eta = "" if stats.eta_seconds is None else f"; what is ready is done in {lasting(stats.eta_seconds)}"
    plus = "+" if stats.capped_waiting else ""
    numbers = {"ready": stats.ready, "scheduled": stats.scheduled, "backing off": stats.retrying}
    out.facts(
        [
            ("pending", ", ".join(f"{sum(each.values())}{plus} {name}" for name, each in numbers.items())),
            ("last minute", f"{a_minute} jobs ended{eta}"),
            ("oldest ready job", "none is waiting" if ready is None else f"has waited {lasting(ready)}"),
            ("stranded", Cell(_stranded(stats.stranded), "red" if stats.stranded else "")),
            ("running", None if stats.longest_running else "nothing"),
        ]
    )
    if stats.longest_running:
        out.table(
            ["running for", "type", "attempt", "worker", "last heartbeat", "job"],
            [
                [lasting(r.seconds), r.type_name, r.attempt, r.worker_id, f"{lasting(r.heartbeat_seconds)} ago", r.job_id]
                for r in sorted(stats.longest_running, key=lambda r: -r.heartbeat_seconds)[:SHOWN_RUNNING]
            ],
            right=["attempt"],
        )


def _stranded(number: int) -> str:
    return f"{number} blocked by a chain that failed or was cancelled" if number else "none"


def _draw_attempts(out: Output, stats: Stats) -> None:
    if not stats.attempts:
        return
    out.heading("Attempts of jobs that are not completed")
    labels = [label for *_, label in ATTEMPT_BANDS]
    rows: list[list[Content]] = []
    for name, counts in [*stats.attempts_by_type.items(), ("all", stats.attempts)]:
        numbers = [
            sum(n for attempt, n in counts.items() if attempt >= low and (high is None or attempt <= high))
            for low, high, _ in ATTEMPT_BANDS
        ]
        rows.append([name, *(number or Cell("-", "dim") for number in numbers)])
    out.table(["type", *labels], rows, right=labels)


def _draw_errors(out: Output, stats: Stats) -> None:
    if not stats.error_codes:
        return
    out.heading("Errors")
    out.table(
        ["jobs", "code", "types", "example"],
        [
            [number, Cell(code, "red"), _some(stats.error_types.get(code, [])), stats.error_examples.get(code)]
            for code, number in stats.error_codes[:SHOWN_CODES]
        ],
        right=["jobs"],
    )
    if len(stats.error_codes) > SHOWN_CODES:
        out.line(Cell(f"and {len(stats.error_codes) - SHOWN_CODES} codes more", "dim"))


def _some(types: list[str]) -> str:
    return ", ".join(types[:2]) + (f" and {len(types) - 2} more" if len(types) > 2 else "")


def _count(number: int, capped: bool) -> Content:
    if not number:
        return Cell("-", "dim")
    return f"{number}+" if capped else number


def _total(number: int, capped: bool) -> Cell:
    return Cell(f"{number}+" if capped else str(number), "bold")

"""`queuert retry`, `cancel`, `trigger` and `delete`: by id, or all that a filter chooses.

Ids that were named are one transaction: all or none. What a filter chooses may change while it is being worked
through, so that goes in batches, at a given rate if one is wanted, and one that is no longer in the right state is skipped
and counted.

The filters are those of `queuert jobs`, so that what was looked at is what is acted on. Retry, cancel and delete act
on the chains of the jobs; only jobs that are the newest of their chain count, since those carry its state.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuert import Chain, Job, Queuert, QueuertError, Status
from queuert.cli.choosing import prepare
from queuert.cli.exits import INTERRUPTED, OK, REFUSED, CommandError, UsageError
from queuert.cli.ids import find_job
from queuert.cli.listing import add_filters, chosen_filters, draw_jobs, every_job
from queuert.cli.loading import open_app
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command, positive
from queuert.cli.progress import progress
from queuert.cli.values import moment, rate
from queuert.cli.who import actor, add_reason

ASK_FROM: Final = 10  # ids that were typed: more than that were pasted
BATCH: Final = 100
BATCHES_A_SECOND: Final = 2  # with a rate: smooth enough, and few transactions
SHOWN: Final = 10


@dataclass(frozen=True)
class Act:
    """One of the four."""

    name: str
    done: str
    what: str
    # The states that it makes sense for; those that a filter without `--status` means.
    statuses: tuple[Status, ...]
    apply: Callable[[Queuert, Sequence[str], argparse.Namespace], Sequence[Chain | Job]]
    # States that must be asked for.
    also: tuple[Status, ...] = ()


ACTS: Final = (
    Act(
        "retry",
        "Retried",
        "chain",
        (Status.FAILED,),
        lambda app, ids, args: app.retry_chains(ids, actor=actor(), reason=args.reason),
        also=(Status.CANCELLED,),
    ),
    Act(
        "cancel",
        "Cancelled",
        "chain",
        (Status.BLOCKED, Status.PENDING, Status.RUNNING),
        lambda app, ids, args: app.cancel_chains(ids, cascade=args.cascade, actor=actor(), reason=args.reason),
    ),
    Act(
        "trigger",
        "Triggered",
        "job",
        (Status.PENDING,),
        lambda app, ids, args: app.trigger_jobs(ids, actor=actor(), reason=args.reason),
    ),
    Act(
        "delete",
        "Deleted",
        "chain",
        (Status.COMPLETED, Status.FAILED, Status.CANCELLED),
        lambda app, ids, args: app.delete_chains(ids, cascade=args.cascade, actor=actor(), reason=args.reason),
        also=(Status.BLOCKED, Status.PENDING, Status.RUNNING),
    ),
)

HELP: Final = {
    "retry": (
        "give failed or cancelled chains fresh attempts",
        "queuert retry --app shop:app --error-code TIMEOUT:GATEWAY\n"
        "queuert retry --app shop:app --failed-since 2h --limit 100 --rate 10/s --reason bank-is-back",
    ),
    "cancel": ("cancel open chains; running handlers are signalled", "queuert cancel --app shop:app --type send-mail --yes"),
    "trigger": ("run scheduled jobs now", "queuert trigger --app shop:app --type send-mail"),
    "delete": ("delete chains with all their jobs and history", "queuert delete --app shop:app --status cancelled"),
}


def add(commands: Any) -> None:
    for act in ACTS:
        help, by_filter = HELP[act.name]
        command = add_command(
            commands,
            act.name,
            help,
            details=f"Without --status a filter means {', '.join(act.statuses)}. Exit code 1 if nothing matched.",
            example=f"queuert {act.name} 01890a5d-ac96-774b-bcce-b302099a8057 --app shop:app\n{by_filter}",
            json=True,
        )
        command.add_argument("ids", nargs="*", metavar="ID", help=f"of {act.what}s; a beginning or an end of 6 or more will do")
        add_filters(command)
        if act.name in ("retry", "delete"):
            command.add_argument("--failed-since", type=moment, metavar="TIME", help="only what failed then or later: 2h, 3d")
        if act.name == "cancel":
            command.add_argument("--cascade", action="store_true", help="also what waits for them")
        if act.name == "delete":
            command.add_argument("--cascade", action="store_true", help="also the chains that they waited for")
        command.add_argument("--limit", type=positive, metavar="N", help="with a filter: no more than this, oldest first")
        command.add_argument("--rate", type=rate, metavar="N/s", help="with a filter: so many a second (or 600/m, 100/10s)")
        add_reason(command)
        command.add_argument("-y", "--yes", action="store_true", help="do not ask")
        command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        command.set_defaults(run=run, act=act)


def run(args: argparse.Namespace) -> int:
    act: Act = args.act
    out = Output()
    filtered = chosen_filters(args) or getattr(args, "failed_since", None) is not None
    if args.ids and (filtered or args.limit or args.rate):
        raise UsageError("Name ids, or choose with filters, not both.")
    if not args.ids and not filtered:
        raise UsageError(f"Which? Name ids, or choose with a filter such as --status {act.statuses[0]}.")
    with open_app(args) as app:
        if args.ids:
            return _act_on_named(app, act, args, out)
        return _act_on_chosen(app, act, args, out)


def _act_on_named(app: Queuert, act: Act, args: argparse.Namespace, out: Output) -> int:
    ids = list(dict.fromkeys(_resolve(app, act, identity) for identity in args.ids))
    if args.dry_run:
        return _report(out, act, args, [], would=ids)
    if len(ids) > ASK_FROM and not _agreed(act, len(ids), args):
        return REFUSED
    return _report(out, act, args, [record.id for record in act.apply(app, ids, args)])


def _resolve(app: Queuert, act: Act, identity: str) -> str:
    """The id to act on: an operator may have that of a chain or of any of its jobs at hand."""
    job = find_job(app, identity)
    if act.what == "job":
        chain = app.get_chain(job.chain_id) if job.continued_to is not None else None
        return job.id if chain is None else chain.tail_id
    if act.name == "delete" and job.id != job.chain_id:
        raise CommandError(
            f"{identity} is a later job of chain {job.chain_id}, and jobs are not deleted alone; nothing was changed."
        )
    return job.chain_id


def _act_on_chosen(app: Queuert, act: Act, args: argparse.Namespace, out: Output) -> int:
    allowed = (*act.statuses, *act.also)
    failed_since = getattr(args, "failed_since", None)
    if args.stranded:
        prepare(args)
    if args.status is None:
        args.status = [Status.FAILED] if failed_since is not None else list(act.statuses)
    if wrong := [status.value for status in args.status if status not in allowed]:
        raise UsageError(f"{act.name} is not for {', '.join(wrong)}: --status is one of {', '.join(allowed)}.")
    # Read to the end before the first is touched: acting on them moves them to other pages.
    # Only their ids are kept: there may be very many.
    shown: list[Job] = []
    chosen: dict[str, None] = {}
    for job in every_job(app, args):
        if act.what != "job" and job.continued_to is not None:
            continue
        if failed_since is not None and (job.completed_at is None or job.completed_at < failed_since):
            continue
        shown += [job] if len(shown) < SHOWN else []
        chosen[job.id if act.what == "job" else job.chain_id] = None
        if len(chosen) == args.limit:
            break
    ids = list(chosen)
    if not ids:
        return _nothing(out, act, args)
    if args.dry_run:
        return _report(out, act, args, [], would=ids)
    if not args.json and not args.yes:
        draw_jobs(out, shown)
        if len(ids) > SHOWN:
            out.line(Cell(f"and {len(ids) - SHOWN} more", "dim"))
    if not _agreed(act, len(ids), args):
        return REFUSED
    done: list[str] = []
    skipped: dict[str, str] = {}
    try:
        with progress(f"{act.what}s {act.done.lower()}", len(ids), live=False if args.json else None) as show:
            _in_batches(app, act, ids, args, done, skipped, show)
    except KeyboardInterrupt:
        print(f"Interrupted: {act.done} {_number(len(done), act.what)} of {len(ids)}.", file=sys.stderr)
        return INTERRUPTED
    return _report(out, act, args, list(dict.fromkeys(done)), skipped=skipped)


def _in_batches(
    app: Queuert,
    act: Act,
    ids: list[str],
    args: argparse.Namespace,
    done: list[str],
    skipped: dict[str, str],
    show: Callable[[int], None],
) -> None:
    """Act on all of them; `done` and `skipped` say at any time how far it is."""
    size = BATCH if args.rate is None else max(1, min(BATCH, int(args.rate / BATCHES_A_SECOND)))
    began = time.monotonic()
    for start in range(0, len(ids), size):
        if args.rate is not None:
            time.sleep(max(0.0, began + start / args.rate - time.monotonic()))
        batch = ids[start : start + size]
        try:
            done += [record.id for record in act.apply(app, batch, args)]
        except QueuertError:  # one of them has changed since, or is waited for: find out which
            for identity in batch:
                try:
                    done += [record.id for record in act.apply(app, [identity], args)]
                except QueuertError as error:
                    skipped[identity] = str(error)
        show(start + len(batch))


def _agreed(act: Act, number: int, args: argparse.Namespace) -> bool:
    if args.yes:
        return True
    question = f"{act.name.capitalize()} {_number(number, act.what)}?"
    if args.json or not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody is there to answer: pass --yes to do it. Nothing was changed.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("Nothing was changed.", file=sys.stderr)
    return False


def _nothing(out: Output, act: Act, args: argparse.Namespace) -> int:
    _report(out, act, args, [], would=[] if args.dry_run else None)
    if not args.json:
        print(f"queuert: nothing matched, so there is nothing to {act.name}.", file=sys.stderr)
    return REFUSED


def _report(
    out: Output,
    act: Act,
    args: argparse.Namespace,
    done: list[str],
    *,
    skipped: dict[str, str] | None = None,
    would: list[str] | None = None,
) -> int:
    if args.json:
        shown: dict[str, Any] = {"act": act.name, "ids": done, "skipped": skipped or {}}
        out.json(shown if would is None else {**shown, "would": would})
    elif would is not None:
        out.line(f"Would {act.name} {_number(len(would), act.what)}.")
        for identity in would:
            out.line(identity)
    else:
        for identity, reason in (skipped or {}).items():
            out.line(Cell(f"skipped {identity}: ", "yellow"), reason)
        out.line(f"{act.done} {_number(len(done), act.what)}.")
    return REFUSED if skipped else OK


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""`queuert start TYPE` starts a chain; `queuert finish ID` completes one without a worker."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from queuert import Chain, Dedup, Queuert
from queuert.app import context_of
from queuert.cli.exits import OK, UsageError
from queuert.cli.ids import find_job
from queuert.cli.loading import named, open_app
from queuert.cli.output import Output
from queuert.cli.parser import add_command
from queuert.cli.values import as_json, duration, moment
from queuert.cli.who import actor, add_reason
from queuert.storage.protocol import Session
from queuert.storage.repository import Repository


def add(commands: Any) -> None:
    start = add_command(
        commands,
        "start",
        "start a chain",
        details=(
            "With --app the input is checked against its type, and the type's own options count. With --url alone nothing is "
            "known of the type: the input is taken as it is, with the usual options."
        ),
        example="""
            queuert start charge-card --input {"order_id":7} --app shop:app
            queuert start charge-card --input {"order_id":7} --app shop:app --after 15m --key order-7""",
        json=True,
    )
    start.add_argument("type", metavar="TYPE", help="of its first job")
    start.add_argument("--input", type=payload, metavar="JSON", help="the input, or @FILE to read it from there (null)")
    start.add_argument("--id", metavar="ID", help="its id, instead of a new one")
    when = start.add_mutually_exclusive_group()
    when.add_argument("--at", type=_future, metavar="TIME", help="not before: 2026-01-31T09:30Z")
    when.add_argument("--after", type=duration, metavar="TIME", help="not before so long from now: 15m, 2h")
    start.add_argument("--priority", type=int, metavar="N", help="from -100 to 100, higher first")
    start.add_argument("--key", metavar="KEY", help="deduplication: none is started while an open chain has this key")
    start.set_defaults(run=run_start)

    finish = add_command(
        commands,
        "finish",
        "complete a chain without a worker",
        details="For what was done by hand. A handler that runs is told that its job is completed already.",
        example="""
            queuert finish 01890a5d-ac96-774b-bcce-b302099a8057 --output {"paid":true} --app shop:app --reason by-phone""",
        json=True,
    )
    finish.add_argument("id", metavar="ID", help="of a chain, or of a job of it; a beginning or an end of 6 or more will do")
    finish.add_argument("--output", type=payload, metavar="JSON", help="its output, or @FILE to read it from there (null)")
    add_reason(finish)
    finish.set_defaults(run=run_finish)


def payload(text: str) -> Any:
    """JSON, or the JSON in a file."""
    try:
        if text.startswith("@"):
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        return json.loads(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error}): a text needs quotes of its own, '\"so\"'") from None


def _future(text: str) -> datetime:
    if text[-1:].lower() in "smhdw":
        raise argparse.ArgumentTypeError(f"{text!r} is no time of the future: write 2026-01-31T09:30Z, or use --after")
    return moment(text)


def run_start(args: argparse.Namespace) -> int:
    spec, _ = named(args)
    with open_app(args) as app:
        if app.types.find(args.type) is None:
            if spec is not None:
                known = ", ".join(sorted(job_type.name for job_type in app.types)) or "none"
                raise UsageError(f"The application has no job type {args.type!r}; it has {known}.")
            app.declare(args.type)
        value: Any = args.input
        chain = app.start_chain(
            args.type,
            value,
            id=args.id,
            at=args.at,
            after=args.after,
            priority=args.priority,
            dedup=None if args.key is None else Dedup(args.key),
        )
        return _report(app, args, chain, "There was one with this key already" if chain.deduplicated else "Started")


def run_finish(args: argparse.Namespace) -> int:
    with open_app(args) as app:
        job = find_job(app, args.id)
        context = context_of(app)
        with app.complete_chain(job.chain_id) as tail:
            tail.finish(args.output)
            _note(context.repository, context.join(tail.conn), tail.id, args.reason)
        chain = app.get_chain(job.chain_id)
        assert chain is not None, "it was completed just now"
        return _report(app, args, chain, "Finished")


def _note(repository: Repository, session: Session, job_id: str, reason: str | None) -> None:
    detail = json.dumps({} if reason is None else {"reason": reason})
    repository.add_events(session, [{"job_id": job_id, "event": "FINISHED", "actor": actor(), "detail": detail}])


def _report(app: Queuert, args: argparse.Namespace, chain: Chain, done: str) -> int:
    out = Output()
    if args.json:
        out.json({"chain": as_json(app, chain), "deduplicated": chain.deduplicated})
    else:
        out.line(f"{done}: {chain.type_name} {chain.id} is {chain.status}.")
    return OK

"""What visitors do: one at a time, or all that a filter chooses.

One is done at once. Many are counted and asked about first; then they go in batches, so that others get their turn at the
database, and one that has moved on meanwhile is left alone and counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from werkzeug.wrappers import Response

from queuert.cli.values import duration
from queuert.dashboard.failures import BadInput
from queuert.dashboard.filters import CHAIN_NAMES, JOB_NAMES, Filters, read_filters
from queuert.dashboard.scanning import scan_jobs
from queuert.dashboard.visit import Visit
from queuert.errors import QueuertError
from queuert.model import Status

MOST: Final = 1_000  # in one go
BATCH: Final = 100
LONGEST_REASON: Final = 200  # characters
BREATH: Final = 0.05  # seconds between two batches

# The states in which an act makes sense: those that a filter without one means.
STATES: Final[dict[str, tuple[Status, ...]]] = {
    "retry": (Status.FAILED,),
    "cancel": (Status.BLOCKED, Status.PENDING, Status.RUNNING),
    "delete": (Status.COMPLETED, Status.FAILED, Status.CANCELLED),
    "trigger": (Status.PENDING,),
}


def chain(visit: Visit, id: str, act: str) -> Response:
    app, form = visit.app, visit.request.form
    cascade, by, why = form.get("cascade") == "yes", visit.visitor.name, reason(visit)
    if act == "retry":
        app.retry_chain(id, actor=by, reason=why)
    elif act == "cancel":
        app.cancel_chain(id, cascade=cascade, actor=by, reason=why)
    elif act == "finish":
        with app.complete_chain(id) as tail:
            tail.finish(_output(form.get("output", "")))
    else:
        app.delete_chain(id, cascade=cascade, actor=by, reason=why)
        return visit.back(visit.url("chains"), done=act)
    return visit.back(visit.url("chains", id), done=act)


def job(visit: Visit, id: str, act: str) -> Response:
    visit.app.trigger_job(id, actor=visit.visitor.name, reason=reason(visit))
    return visit.back(visit.url("jobs", id), done=act)


def kind(visit: Visit, name: str, act: str) -> Response:
    """Pause or resume a type."""
    by = visit.visitor.name
    if act == "pause":
        visit.app.pause(name, reason=reason(visit), actor=by, until=_until(visit))
    else:
        visit.app.resume(name, actor=by)
    return visit.back(visit.url("types"), done=act)


def everything(visit: Visit, act: str) -> Response:
    """Pause everything, or lift every pause."""
    if act == "pause":
        visit.app.pause(reason=reason(visit), actor=visit.visitor.name, until=_until(visit))
    else:
        visit.app.resume(actor=visit.visitor.name)
    return visit.back(visit.url("types"), done=act)


def schedule(visit: Visit, name: str, act: str) -> Response:
    """Pause or resume a schedule, or start what it starts, now."""
    app, by = visit.app, visit.visitor.name
    if act == "pause":
        app.pause_periodic(name, reason=reason(visit), actor=by, until=_until(visit))
    elif act == "resume":
        app.resume_periodic(name, actor=by)
    else:
        periodic = app._ticker.find(name)
        if periodic is None:
            raise BadInput(f"This app does not define the schedule {name!r}, so it cannot start what it starts.")
        app.start_chain(periodic.job_type, periodic.input)
    return visit.back(visit.url("schedules"), done=act)


def _until(visit: Visit) -> datetime | None:
    """When a pause ends, if the form says for how long."""
    text = visit.request.form.get("for", "").strip()
    if not text:
        return None
    try:
        return visit.context.read(None, visit.context.repository.clock) + timedelta(seconds=duration(text))
    except (argparse.ArgumentTypeError, OverflowError) as error:
        raise BadInput("How long? Write 90s, 15m, 2h or 3d, or leave it empty.") from error


def reason(visit: Visit) -> str | None:
    """Why, if the form says so."""
    text = " ".join(visit.request.form.get("reason", "").split())
    if "\0" in text or len(text) > LONGEST_REASON:
        raise BadInput(f"A reason has at most {LONGEST_REASON} characters.")
    return text or None


def _output(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise BadInput(f'The output must be JSON, such as {{}} or "text": {error}.') from error


def many(visit: Visit, act: str) -> Response:
    """All that were selected, or all that the filters choose; the first time round, the page that asks."""
    form = visit.request.form
    kind = form.get("kind", "chains")
    if kind not in ("chains", "jobs") or (kind == "jobs") != (act == "trigger"):
        raise BadInput(f"{act} does not go with {kind[:20]!r}.")
    chosen = form.getlist("chosen")
    if len(chosen) > MOST:
        raise BadInput(f"At most {MOST:,} at once.")
    filters = read_filters(form, CHAIN_NAMES if kind == "chains" else JOB_NAMES)
    ids, more = (list(dict.fromkeys(chosen)), False) if chosen else _matching(visit, act, kind, filters)
    if form.get("confirmed") != "yes" or not ids:
        return visit.page(
            "confirm.html",
            act=act,
            kind=kind,
            filters=filters,
            chosen=chosen,
            number=len(ids),
            more=more,
            most=MOST,
            back=form.get("back", visit.url(kind)),
        )
    done, skipped = _in_batches(_doing(visit, act), ids)
    return visit.back(visit.url(kind, query=filters.query), done=act, number=done, skipped=skipped)


def _matching(visit: Visit, act: str, kind: str, filters: Filters) -> tuple[list[str], bool]:
    """The ids that the filters choose, as many as go at once, and whether there are more."""
    states = [status.value for status in STATES[act]]
    wanted = filters.but(status=filters.status or tuple(states), cursor="", limit=MOST)
    if kind == "chains":
        chains = visit.app.list_chains(**wanted.for_chains())
        return [entry.id for entry in chains.items], chains.next_cursor is not None
    jobs = scan_jobs(visit, wanted)[0] if wanted.scans else visit.app.list_jobs(**wanted.for_jobs())
    return [entry.id for entry in jobs.items], jobs.next_cursor is not None


def _doing(visit: Visit, act: str) -> Callable[[Sequence[str]], object]:
    app, by, why = visit.app, visit.visitor.name, reason(visit)
    if act == "retry":
        return lambda ids: app.retry_chains(ids, actor=by, reason=why)
    if act == "cancel":
        return lambda ids: app.cancel_chains(ids, actor=by, reason=why)
    if act == "trigger":
        return lambda ids: app.trigger_jobs(ids, actor=by, reason=why)
    return lambda ids: app.delete_chains(ids, actor=by, reason=why)


def _in_batches(do: Callable[[Sequence[str]], object], ids: Sequence[str]) -> tuple[int, int]:
    """How many were done, and how many had moved on."""
    done = skipped = 0
    for start in range(0, len(ids), BATCH):
        if start:
            time.sleep(BREATH)
        batch = ids[start : start + BATCH]
        try:
            do(batch)
            done += len(batch)
        except QueuertError:
            # One of them has moved on, and the batch is all or nothing: find out which.
            for identity in batch:
                try:
                    do([identity])
                    done += 1
                except QueuertError:
                    skipped += 1
    return done, skipped

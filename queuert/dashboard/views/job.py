"""One job: payloads, attempts, what it waits for, what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from werkzeug.wrappers import Response

from queuert.chains.why import Why
from queuert.dashboard.done import done_text
from queuert.dashboard.showing import ALONE, jsonable, shown_attempt, shown_chain, shown_entry, shown_job
from queuert.dashboard.visit import Visit
from queuert.dashboard.waterfall import bars_of, draw_waterfall
from queuert.errors import JobNotFoundError
from queuert.model import Attempt, Chain, Job, TimelineEntry

ATTEMPTS: Final = 200  # shown, the newest
BLOCKERS: Final = 200  # shown, the open and failed first


@dataclass(frozen=True)
class Whole:
    """A job with what belongs to it."""

    job: Job
    chain: Chain | None
    attempts: list[Attempt]
    timeline: list[TimelineEntry]
    blockers: list[Chain]
    why: Why


def read_job(visit: Visit, id: str) -> Whole:
    app = visit.app
    job = app.get_job(id)
    if job is None:
        raise JobNotFoundError(id)
    blockers = app.get_job_blockers(job.id) if job.blocker_count else []
    timeline = app.timeline(job.id)
    return Whole(job, app.get_chain(job.chain_id), app.attempts(job.id), timeline, blockers, app.why(job.id))


def show(visit: Visit, id: str) -> Response:
    whole = visit.shared(("job", id), lambda: read_job(visit, id))
    job = whole.job
    now = visit.shared("now", lambda: visit.context.read(None, visit.context.repository.clock))
    troubled = sorted(whole.blockers, key=lambda chain: chain.status.value == "completed")
    return visit.page(
        "job.html",
        whole=whole,
        why=whole.why,
        job=job,
        shown=shown_job(visit, job, most=ALONE),
        attempts=[shown_attempt(visit, job.type_name, attempt) for attempt in whole.attempts[-ATTEMPTS:]],
        entries=[shown_entry(visit, job.type_name, entry) for entry in whole.timeline],
        blockers=troubled[:BLOCKERS],
        hidden_blockers=len(troubled[BLOCKERS:]),
        waterfall=draw_waterfall(bars_of(job, whole.attempts, now)),
        now=now,
        here=visit.url("jobs", id),
        done=done_text(visit.request.args),
    )


def job_json(visit: Visit, whole: Whole) -> dict[str, Any]:
    name = whole.job.type_name
    return {
        "job": shown_job(visit, whole.job, most=ALONE),
        "chain": None if whole.chain is None else shown_chain(visit, whole.chain),
        "attempts": [shown_attempt(visit, name, attempt) for attempt in whole.attempts],
        "timeline": [shown_entry(visit, name, entry) for entry in whole.timeline],
        "why": jsonable(whole.why),
        "blockers": [shown_chain(visit, blocker) for blocker in whole.blockers],
    }

"""One chain: its jobs in order, what it waits for and what waits for it, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from werkzeug.wrappers import Response

from queuert.chains.why import Why
from queuert.dashboard.done import done_text
from queuert.dashboard.filters import read_filters
from queuert.dashboard.graph import Graph, draw_graph
from queuert.dashboard.showing import ALONE, jsonable, shown_attempt, shown_chain, shown_entry, shown_job
from queuert.dashboard.visit import Visit
from queuert.dashboard.waterfall import Bar, Waterfall, bars_of, draw_waterfall
from queuert.errors import ChainNotFoundError
from queuert.model import Attempt, Chain, Job, TimelineEntry

JOBS: Final = 50  # of a chain on one page, the newest
OPENED: Final = 10  # jobs whose attempts are read: the newest, and those that were tried more than once
BLOCKED: Final = 50  # jobs that wait for it


@dataclass(frozen=True)
class Whole:
    """A chain with what belongs to it."""

    chain: Chain
    jobs: list[Job]
    attempts: dict[str, list[Attempt]]
    timeline: list[TimelineEntry]
    blockers: dict[str, list[Chain]]
    blocked: list[Job]
    older: str | None
    more_blocked: bool
    why: Why

    @property
    def tail(self) -> Job:
        return self.jobs[-1]


def read_chain(visit: Visit, id: str, cursor: str = "") -> Whole:
    """A chain by its id, or by that of one of its later jobs."""
    app = visit.app
    chain = app.get_chain(id)
    if chain is None:
        job = app.get_job(id)
        chain = None if job is None else app.get_chain(job.chain_id)
    if chain is None:
        raise ChainNotFoundError(id)
    page = app.list_chain_jobs(chain.id, order="desc", limit=JOBS, cursor=cursor or None)
    if not page.items:
        raise ChainNotFoundError(id)
    jobs = page.items[::-1]
    tried = [job for job in jobs if job.attempt > 1][-OPENED:]
    opened = {job.id: job for job in [*tried, jobs[-1]]}
    waiting = [job for job in jobs if job.blocker_count][-OPENED:]
    blocked = app.list_blocked_jobs(chain.id, limit=BLOCKED)
    return Whole(
        chain,
        jobs,
        {identity: app.attempts(identity) for identity in opened},
        app.timeline(jobs[-1].id),
        {job.id: app.get_job_blockers(job.id) for job in waiting},
        blocked.items,
        page.next_cursor,
        blocked.next_cursor is not None,
        app.why(jobs[-1].id),
    )


def show(visit: Visit, id: str) -> Response:
    filters = read_filters(visit.request.args, ("cursor",))
    whole = visit.shared(("chain", id, filters.cursor), lambda: read_chain(visit, id, filters.cursor))
    if whole.chain.id != visit.context.ids.check(id):
        return visit.go(visit.url("jobs", id))
    return visit.page(
        "chain.html",
        whole=whole,
        why=whole.why,
        chain=whole.chain,
        shown=shown_chain(visit, whole.chain, most=ALONE),
        jobs=[(job, shown_job(visit, job, most=ALONE)) for job in whole.jobs],
        entries=[shown_entry(visit, whole.tail.type_name, entry) for entry in whole.timeline],
        attempts=attempts_shown(visit, whole),
        graph=_graph(visit, whole),
        waterfall=_waterfall(visit, whole),
        older_url=visit.url("chains", id, query={"cursor": whole.older}) if whole.older else None,
        here=visit.url("chains", id),
        now=_now(visit),
        done=done_text(visit.request.args),
    )


def attempts_shown(visit: Visit, whole: Whole) -> dict[str, list[dict[str, Any]]]:
    types = {job.id: job.type_name for job in whole.jobs}
    return {
        identity: [shown_attempt(visit, types[identity], attempt) for attempt in attempts]
        for identity, attempts in whole.attempts.items()
    }


def chain_json(visit: Visit, whole: Whole) -> dict[str, Any]:
    attempts = attempts_shown(visit, whole)
    return {
        "chain": shown_chain(visit, whole.chain, most=ALONE),
        "jobs": [
            {
                **shown_job(visit, job, most=ALONE),
                "attempts": attempts.get(job.id),
                "blockers": [shown_chain(visit, blocker) for blocker in whole.blockers.get(job.id, [])],
            }
            for job in whole.jobs
        ],
        "timeline": [shown_entry(visit, whole.tail.type_name, entry) for entry in whole.timeline],
        "blocks": [shown_job(visit, job) for job in whole.blocked],
        "why": jsonable(whole.why),
        "next_cursor": whole.older,
    }


def _now(visit: Visit) -> Any:
    return visit.shared("now", lambda: visit.context.read(None, visit.context.repository.clock))


def _graph(visit: Visit, whole: Whole) -> Graph:
    return draw_graph(whole.jobs, whole.blockers, whole.blocked, more_jobs=bool(whole.older), more_blocked=whole.more_blocked)


def _waterfall(visit: Visit, whole: Whole) -> Waterfall:
    bars: list[Bar] = []
    for job in whole.jobs[-20:]:
        bars.extend(bars_of(job, whole.attempts.get(job.id), _now(visit)))
    return draw_waterfall(bars)

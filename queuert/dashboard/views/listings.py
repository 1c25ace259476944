"""The lists of chains and of jobs."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Response

from queuert.dashboard.done import done_text
from queuert.dashboard.filters import CHAIN_NAMES, JOB_NAMES, Filters, read_filters
from queuert.dashboard.scanning import scan_jobs
from queuert.dashboard.standing import read_types
from queuert.dashboard.visit import Visit
from queuert.model import Chain, Job, Page, Status


def chains(visit: Visit) -> Response:
    filters = read_filters(visit.request.args, CHAIN_NAMES)
    return _show(visit, "chains", filters, chains_page(visit, filters))


def jobs(visit: Visit) -> Response:
    filters = read_filters(visit.request.args, JOB_NAMES)
    if filters.scans:
        page, looked = visit.shared(("scan", filters.identity), lambda: scan_jobs(visit, filters))
        return _show(visit, "jobs", filters, page, looked=looked)
    return _show(visit, "jobs", filters, jobs_page(visit, filters))


def chains_page(visit: Visit, filters: Filters) -> Page[Chain]:
    return visit.shared(("chains", filters.identity), lambda: visit.app.list_chains(**filters.for_chains()))


def jobs_page(visit: Visit, filters: Filters) -> Page[Job]:
    if filters.scans:
        return visit.shared(("scan", filters.identity), lambda: scan_jobs(visit, filters))[0]
    return visit.shared(("jobs", filters.identity), lambda: visit.app.list_jobs(**filters.for_jobs()))


def _show(visit: Visit, kind: str, filters: Filters, page: Page[Any], *, looked: int | None = None) -> Response:
    following = None if page.next_cursor is None else visit.url(kind, query={**filters.query, "cursor": page.next_cursor})
    return visit.page(
        f"{kind}.html",
        kind=kind,
        filters=filters,
        page=page,
        looked=looked,
        next_url=following,
        first_url=visit.url(kind, query=filters.query) if filters.cursor else None,
        here=visit.url(kind, query={**filters.query, "cursor": filters.cursor}),
        types=read_types(visit),
        statuses=[status.value for status in Status],
        done=done_text(visit.request.args),
    )

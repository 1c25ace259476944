"""The same data as JSON."""

from __future__ import annotations

from werkzeug.wrappers import Response

from queuert.dashboard.failures import BadInput
from queuert.dashboard.filters import CHAIN_NAMES, JOB_NAMES, read_filters
from queuert.dashboard.openapi import describe
from queuert.dashboard.showing import jsonable, shown_chain, shown_job
from queuert.dashboard.standing import read_schedules, read_standing, standing_json
from queuert.dashboard.troubles import find_troubles
from queuert.dashboard.views.chain import chain_json, read_chain
from queuert.dashboard.views.job import job_json, read_job
from queuert.dashboard.views.limits import read_limits
from queuert.dashboard.views.listings import chains_page, jobs_page
from queuert.dashboard.views.types import kinds_json, read_kinds
from queuert.dashboard.visit import Visit


def index(visit: Visit) -> Response:
    return visit.json({"openapi": visit.url("api", "openapi.json")})


def openapi(visit: Visit) -> Response:
    return visit.json(describe(visit.root, visit.settings))


def overview(visit: Visit) -> Response:
    _no_parameters(visit)
    standing = read_standing(visit)
    troubles = [{"level": t.level, "title": t.title, "text": t.text} for t in find_troubles(standing)]
    return visit.json({**standing_json(standing), "troubles": troubles})


def chains(visit: Visit) -> Response:
    page = chains_page(visit, read_filters(visit.request.args, CHAIN_NAMES, strict=True))
    return visit.json({"items": [shown_chain(visit, chain) for chain in page.items], "next_cursor": page.next_cursor})


def jobs(visit: Visit) -> Response:
    page = jobs_page(visit, read_filters(visit.request.args, JOB_NAMES, strict=True))
    return visit.json({"items": [shown_job(visit, job) for job in page.items], "next_cursor": page.next_cursor})


def chain(visit: Visit, id: str) -> Response:
    filters = read_filters(visit.request.args, ("cursor",), strict=True)
    return visit.json(chain_json(visit, read_chain(visit, id, filters.cursor)))


def job(visit: Visit, id: str) -> Response:
    _no_parameters(visit)
    return visit.json(job_json(visit, read_job(visit, id)))


def types(visit: Visit) -> Response:
    _no_parameters(visit)
    return visit.json({"items": kinds_json(read_kinds(visit))})


def schedules(visit: Visit) -> Response:
    _no_parameters(visit)
    return visit.json({"items": jsonable(visit.shared("schedules", lambda: read_schedules(visit)))})


def workers(visit: Visit) -> Response:
    _no_parameters(visit)
    return visit.json({"items": jsonable(read_standing(visit).workers)})


def pauses(visit: Visit) -> Response:
    _no_parameters(visit)
    return visit.json({"items": jsonable(read_standing(visit).pauses)})


def limits(visit: Visit) -> Response:
    _no_parameters(visit)
    return visit.json({"items": jsonable(read_limits(visit))})


def _no_parameters(visit: Visit) -> None:
    if visit.request.args:
        raise BadInput(f"{next(iter(visit.request.args))[:50]!r} is no parameter here: it takes none.")

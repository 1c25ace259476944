"""The search box: an id or a part of it, a type, or an error code."""

from __future__ import annotations

from werkzeug.wrappers import Response

from queuert.cli.exits import CommandError
from queuert.cli.ids import find_job
from queuert.dashboard.failures import BadInput
from queuert.dashboard.filters import LONGEST
from queuert.dashboard.standing import read_types
from queuert.dashboard.visit import Visit
from queuert.errors import InvalidJobIdError


def show(visit: Visit) -> Response:
    wanted = visit.request.args.get("q", "").strip()
    if "\0" in wanted or len(wanted) > LONGEST:
        raise BadInput("No id, type or error code is that long.")
    if not wanted:
        return visit.go(visit.url(""))
    found = _by_id(visit, wanted)
    if found is not None:
        return visit.go(found)
    types = read_types(visit)
    if wanted in types:
        return visit.go(visit.url("jobs", query={"type": wanted}))
    if ":" in wanted and visit.app.list_jobs(error_codes=[wanted], limit=1).items:
        return visit.go(visit.url("jobs", query={"error_code": wanted}))
    similar = [name for name in types if wanted.lower() in name.lower()][:20]
    return visit.page("search.html", wanted=wanted, similar=similar, status=200 if similar else 404)


def _by_id(visit: Visit, wanted: str) -> str | None:
    try:
        job = find_job(visit.app, wanted)
    except (CommandError, InvalidJobIdError):
        return None
    return visit.url("chains", job.id) if job.id == job.chain_id else visit.url("jobs", job.id)

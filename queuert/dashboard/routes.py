"""Every address, what shows it, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Response

from queuert.dashboard.views import acts, api, chain, job, limits, listings, overview, search, types, workers


class Route(NamedTuple):
    """What answers an address; `act` is what a POST there does, where the address itself does not say."""

    view: Callable[..., Response]
    act: str = ""


def _get(path: str, view: Callable[..., Response]) -> Rule:
    return Rule(path, endpoint=Route(view), methods=["GET"])


def _post(path: str, view: Callable[..., Response], act: str = "") -> Rule:
    return Rule(path, endpoint=Route(view, act), methods=["POST"])


_CHAIN_ACTS: Final = "any(retry,cancel,delete,finish)"
_RULES: Final[list[Any]] = [
    _get("/", overview.show),
    _get("/search", search.show),
    _get("/chains", listings.chains),
    _get("/chains/<id>", chain.show),
    _get("/jobs", listings.jobs),
    _get("/jobs/<id>", job.show),
    _get("/types", types.show),
    _get("/workers", workers.show),
    _get("/schedules", types.schedules),
    _get("/limits", limits.show),
    _get("/metrics", workers.metrics),
    # Acts
    _post(f"/chains/<id>/<{_CHAIN_ACTS}:act>", acts.chain),
    _post("/jobs/<id>/<any(trigger):act>", acts.job),
    _post("/types/<path:name>/<any(pause,resume):act>", acts.kind),
    _post("/<any(pause,resume):act>", acts.everything),
    _post("/schedules/<path:name>/<any(pause,resume,start):act>", acts.schedule),
    _post("/limits/<path:name>/<any(set,reset):act>", limits.change),
    _post("/many/<any(retry,cancel,delete,trigger):act>", acts.many),
    # The same as JSON
    _get("/api", api.index),
    _get("/api/openapi.json", api.openapi),
    _get("/api/overview", api.overview),
    _get("/api/chains", api.chains),
    _get("/api/chains/<id>", api.chain),
    _get("/api/jobs", api.jobs),
    _get("/api/jobs/<id>", api.job),
    _get("/api/types", api.types),
    _get("/api/workers", api.workers),
    _get("/api/schedules", api.schedules),
    _get("/api/pauses", api.pauses),
    _get("/api/limits", api.limits),
]

ROUTES: Final = Map(_RULES, strict_slashes=False, merge_slashes=True, redirect_defaults=False)

"""The types of jobs with their numbers, and what recurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from werkzeug.wrappers import Response

from queuert.chains.pace import TypeRates
from queuert.dashboard.done import done_text
from queuert.dashboard.showing import jsonable
from queuert.dashboard.standing import read_schedules, read_standing, read_types
from queuert.dashboard.visit import Visit
from queuert.model import Pause

SAMPLE: Final = 100  # completed jobs of a type that its durations are of
MEASURED: Final = 50  # types whose durations are read
DURATIONS_LAST: Final = 15.0  # seconds


@dataclass(frozen=True)
class Kind:
    """A type of jobs, with how it does."""

    name: str
    counts: dict[str, int]
    capped: frozenset[str]
    defined: bool
    max_attempts: int | None
    p50: float | None
    p95: float | None
    sample: int
    pause: Pause | None
    rates: TypeRates

    @property
    def failure_share(self) -> float | None:
        """Of the attempts of the last hour, how many failed."""
        hour = self.rates.hour
        return hour.failed / (hour.completed + hour.failed) if hour.completed + hour.failed else None


def read_kinds(visit: Visit) -> list[Kind]:
    """Every type, with its numbers."""
    standing = read_standing(visit)
    stats, pauses = standing.stats, {pause.type_name: pause for pause in standing.pauses}
    found = []
    for position, name in enumerate(read_types(visit)):
        durations = _durations(visit, name) if position < MEASURED and stats.by_type.get(name, {}).get("completed") else []
        known = visit.app.types.find(name)
        found.append(
            Kind(
                name,
                stats.by_type.get(name, {}),
                frozenset(stats.capped_by_type.get(name, ())),
                known is not None,
                None if known is None else known.max_attempts,
                quantile(durations, 0.5),
                quantile(durations, 0.95),
                len(durations),
                pauses.get(name),
                stats.rates.get(name) or TypeRates(),
            )
        )
    return found


def _durations(visit: Visit, name: str) -> list[float]:
    """How long the newest completed jobs of a type ran, in order."""

    def read() -> list[float]:
        page = visit.app.list_jobs(types=[name], statuses=["completed"], limit=SAMPLE)
        return sorted(
            (job.completed_at - job.last_attempt_at).total_seconds()
            for job in page.items
            if job.completed_at is not None and job.last_attempt_at is not None
        )

    return visit.shared(("durations", name), read, lasts=DURATIONS_LAST)


def quantile(ordered: list[float], share: float) -> float | None:
    """The value that so many of the values do not exceed."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(visit: Visit) -> Response:
    here = visit.url("types")
    kinds, standing = read_kinds(visit), read_standing(visit)
    all_paused = next((pause for pause in standing.pauses if pause.type_name is None), None)
    return visit.page("types.html", kinds=kinds, all_paused=all_paused, here=here, done=done_text(visit.request.args))


def schedules(visit: Visit) -> Response:
    standing = read_standing(visit)
    return visit.page(
        "schedules.html",
        schedules=visit.shared("schedules", lambda: read_schedules(visit)),
        now=standing.now,
        here=visit.url("schedules"),
        done=done_text(visit.request.args),
    )


def kinds_json(kinds: list[Kind]) -> list[dict[str, Any]]:
    return [
        {
            "name": kind.name,
            "defined": kind.defined,
            "counts": kind.counts,
            "capped": sorted(kind.capped),
            "max_attempts": kind.max_attempts,
            "pause": jsonable(kind.pause),
            "rates": jsonable(kind.rates),
            "failure_share": kind.failure_share,
            "seconds": {"p50": kind.p50, "p95": kind.p95, "sample": kind.sample},
        }
        for kind in kinds
    ]

"""How things stand, read once for all pages that are open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queuert.chains.history import Stats
from queuert.chains.periodic import PeriodicStatus
from queuert.dashboard.showing import jsonable
from queuert.dashboard.visit import Visit
from queuert.model import Pause, WorkerInfo

PARTS: Final = 12  # of five minutes
STATES: Final = ("pending", "running", "blocked", "failed", "completed", "cancelled")


@dataclass(frozen=True)
class Standing:
    """Everything that the overview rests on, at one moment."""

    now: datetime
    stats: Stats
    schedules: list[PeriodicStatus]
    pauses: list[Pause]
    workers: list[WorkerInfo]
    # What was completed and what failed in each five minutes of the last hour, the oldest first.
    pace: list[tuple[int, int]]


def read_standing(visit: Visit) -> Standing:
    """How things stand, at most a second ago."""
    return visit.shared("standing", lambda: _read(visit))


def _read(visit: Visit) -> Standing:
    context = visit.context
    now = context.read(None, context.repository.clock)
    ages = context.read(None, context.repository.rates_by_age)
    pace = [ages.get(age, (0, 0)) for age in reversed(range(PARTS))]
    return Standing(now, visit.app.stats(), read_schedules(visit), visit.app.pauses(), visit.app.workers(), pace)


def read_schedules(visit: Visit) -> list[PeriodicStatus]:
    """What recurs: with the app's own definitions, and what only the database knows of."""
    own = visit.app.periodics()
    names = {schedule.name for schedule in own}
    return [*own, *(noted for noted in visit.app.periodics(noted=True) if noted.name not in names)]


def standing_json(standing: Standing) -> dict[str, Any]:
    return {
        "at": jsonable(standing.now),
        "stats": jsonable(standing.stats),
        "schedules": jsonable(standing.schedules),
        "pauses": jsonable(standing.pauses),
        "workers": jsonable(standing.workers),
        "pace": [{"completed": completed, "failed": failed} for completed, failed in standing.pace],
    }


def read_types(visit: Visit) -> list[str]:
    """The types that there are jobs of, and those that the app defines."""
    context = visit.context
    stored = visit.shared("types", lambda: context.read(None, context.repository.job_types), lasts=10.0)
    return sorted({*stored, *(job_type.name for job_type in visit.app.types)})

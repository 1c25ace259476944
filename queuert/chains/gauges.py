"""How the queues stand, in numbers that are watched: for metrics and for `queuert health`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from queuert.chains.history import LOST_AFTER, History
from queuert.chains.periodic import PREFIX
from queuert.context import Context
from queuert.storage.protocol import Session

COUNT_LIMIT: Final = 100_000
"""How far the jobs of each type and state are counted; where a count stops there, that is told beside it."""
SCHEDULE_GRACE: Final = 60.0
"""Seconds by which a schedule may be late: workers look about once a second."""


@dataclass(frozen=True)
class Gauges:
    """Numbers of one look at the tables."""

    jobs: dict[str, dict[str, int]]
    # The states of each type of which there are at least as many as it says.
    capped: dict[str, set[str]] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    oldest_ready: dict[str, float] = field(default_factory=dict)
    workers: int = 0
    busy: int = 0
    zombies: int = 0
    stranded: int = 0
    expired_leases: int = 0
    schedules_overdue: int = 0


def read_gauges(context: Context) -> Gauges:
    """All of them, by one look at the tables."""
    repository = context.repository
    stats = History(context).stats(None, COUNT_LIMIT, None, share=COUNT_LIMIT)
    pending = [name for name, counts in stats.by_type.items() if counts.get("pending")]

    def work(session: Session) -> Gauges:
        alive = [worker for worker in repository.list_workers(session, LOST_AFTER) if not worker.lost]
        ready = repository.ready_by_type(session, pending, COUNT_LIMIT) if pending else []
        return Gauges(
            jobs={name: {str(status): number for status, number in counts.items()} for name, counts in stats.by_type.items()},
            capped=stats.capped_by_type,
            ready={name: float(number) for name, number, _ in ready},
            oldest_ready={name: seconds for name, _, seconds in ready},
            workers=len(alive),
            busy=sum(worker.busy for worker in alive),
            zombies=sum(worker.zombies for worker in alive),
            stranded=stats.stranded,
            expired_leases=repository.count_expired(session, COUNT_LIMIT),
            schedules_overdue=overdue_schedules(context, session, SCHEDULE_GRACE),
        )

    return context.read(None, work)


def overdue_schedules(context: Context, session: Session, grace: float) -> int:
    """Schedules that should have ticked more than `grace` seconds ago."""
    now = context.repository.clock(session)
    paused = {pause.name for pause in context.repository.list_pauses(session, "schedule") if pause.lasts}
    late = 0
    for name, _, _, _, next_run_at in context.repository.list_singletons(session):
        if name.startswith(PREFIX) and next_run_at is not None and name.removeprefix(PREFIX) not in paused:
            late += (now - next_run_at).total_seconds() > grace
    return late

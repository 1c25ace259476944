"""When each attempt ran, as bars on one line of time, with the waits between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from queuert.model import Attempt, Job, Status

SCALE: Final = 1000  # units across
ROW: Final = 22
MOST: Final = 60  # bars, the newest
THINNEST: Final = 4.0


@dataclass(frozen=True)
class Bar:
    """One attempt: waited from `queued`, ran from `started` to `ended`."""

    label: str
    outcome: str
    queued: datetime
    started: datetime
    ended: datetime
    job_id: str

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended - self.started).total_seconds())

    @property
    def waited(self) -> float:
        return max(0.0, (self.started - self.queued).total_seconds())


@dataclass(frozen=True)
class Line:
    """A bar with its place."""

    bar: Bar
    y: int
    wait_x: float
    wait_width: float
    x: float
    width: float


@dataclass(frozen=True)
class Waterfall:
    """What the template draws."""

    lines: list[Line]
    height: int
    seconds: float
    left_out: int


def bars_of(job: Job, attempts: Sequence[Attempt] | None, now: datetime) -> list[Bar]:
    """The attempts of a job. Without the rows of its attempts, the one that the job itself tells of."""
    bars: list[Bar] = []
    queued = job.created_at
    for attempt in attempts or ():
        started = attempt.started_at or attempt.claimed_at or attempt.finished_at
        label = f"{job.type_name} #{attempt.attempt}"
        bars.append(Bar(label, attempt.outcome, min(queued, started), started, attempt.finished_at, job.id))
        queued = attempt.finished_at
    if job.status is Status.RUNNING and job.last_attempt_at is not None:
        started = job.last_attempt_at
        bars.append(Bar(f"{job.type_name} #{job.attempt}", "running", min(queued, started), started, max(now, started), job.id))
    elif not bars and job.last_attempt_at is not None and job.completed_at is not None:
        outcome = "succeeded" if job.status is Status.COMPLETED else job.status.value
        started = job.last_attempt_at
        bars.append(Bar(f"{job.type_name} #{job.attempt}", outcome, min(queued, started), started, job.completed_at, job.id))
    return bars


def draw_waterfall(bars: Sequence[Bar]) -> Waterfall:
    """The bars on a common scale."""
    shown = list(bars[-MOST:])
    if not shown:
        return Waterfall([], 0, 0.0, 0)
    begin = min(bar.queued for bar in shown)
    span = max((max(bar.ended for bar in shown) - begin).total_seconds(), 0.001)

    def at(moment: datetime) -> float:
        return round((moment - begin).total_seconds() / span * SCALE, 2)

    lines = []
    for row, bar in enumerate(shown):
        x = min(at(bar.started), SCALE - THINNEST)
        width = max(THINNEST, min(at(bar.ended), SCALE) - x)
        lines.append(Line(bar, row * ROW, at(bar.queued), max(0.0, round(x - at(bar.queued), 2)), x, round(width, 2)))
    return Waterfall(lines, len(shown) * ROW, span, len(bars) - len(shown))

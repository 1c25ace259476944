"""When a job type recurs: the schedules of `periodic`, as they were defined.

Cron expressions need the extra `cron`. Around a change of the clocks they behave as in Debian's cron: a job of an hour that is
skipped runs right after it, and one of an hour that comes twice runs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queuert.job_types.graph import check_blockers, check_entry
from queuert.job_types.job_type import JobType, check_name
from queuert.options import Duration, seconds

Missed = Literal["once", "all", "skip"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Schedule(Protocol):
    """When something recurs."""

    def after(self, moment: datetime) -> datetime:
        """The first tick later than a moment."""
        ...


@dataclass(frozen=True)
class Interval:
    """Every so many seconds, counted from 1970, so that all processes agree."""

    every: float

    def after(self, moment: datetime) -> datetime:
        # In whole microseconds: with fractions two processes might round to different ticks.
        step = timedelta(microseconds=round(self.every * 1_000_000))
        return EPOCH + ((moment - EPOCH) // step + 1) * step


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: tzinfo

    def after(self, moment: datetime) -> datetime:
        from cronsim import CronSim  # an extra

        tick: datetime
        for tick in CronSim(self.expression, moment.astimezone(self.zone)):
            # In an hour that comes twice it names ticks by their first time, which may be over.
            if (found := tick.astimezone(timezone.utc)) > moment:
                return found
        raise ValueError(f"{self.expression!r} does not come true any more.")


@dataclass(frozen=True)
class Periodic:
    """A schedule on a job type."""

    name: str
    job_type: JobType[Any, Any]
    schedule: Schedule
    text: str
    input: object
    missed: Missed


def periodic_of(
    job_type: JobType[Any, Any],
    schedule: str | Duration,
    *,
    tz: str | tzinfo,
    name: str | None,
    input: object,
    missed: Missed,
) -> Periodic:
    """A schedule on a job type, checked."""
    if missed not in ("once", "all", "skip"):
        raise ValueError(f"missed must be 'once', 'all' or 'skip', not {missed!r}.")
    key = check_name(job_type.name if name is None else name)
    check_entry(job_type)
    check_blockers(job_type, [])
    job_type.encode_input(input)
    return Periodic(key, job_type, _parse(schedule, tz), _describe(schedule, tz), input, missed)


def _parse(schedule: str | Duration, tz: str | tzinfo) -> Schedule:
    if not isinstance(schedule, str):
        every = seconds(schedule, "the schedule", positive=True)
        if every < 1:
            raise ValueError("A schedule cannot tick more often than once a second.")
        return Interval(every)
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ImportError("Cron expressions need a library: pip install 'queuert[cron]'.") from error
    cron = Cron(schedule, _zone(tz))
    try:
        CronSim(schedule, datetime.now(cron.zone))
    except CronSimError as error:
        raise ValueError(f"{schedule!r} is not a cron expression: {error}.") from None
    try:
        cron.after(datetime.now(timezone.utc))
    except ValueError:
        raise ValueError(f"{schedule!r} never comes true.") from None
    return cron


def _zone(tz: str | tzinfo) -> tzinfo:
    if isinstance(tz, tzinfo):
        return tz
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # a directory of zones is an OSError
        raise ValueError(f"{tz!r} is not a known time zone (on Windows: pip install tzdata).") from error


def _describe(schedule: str | Duration, tz: str | tzinfo) -> str:
    if isinstance(schedule, str):
        return schedule if str(tz) == "UTC" else f"{schedule} ({tz})"
    return f"every {seconds(schedule, 'the schedule'):g} s"

"""Recurring work: one chain for every tick of a schedule, however many workers run.

The next tick of each schedule is a row in the database. When it is due, whoever moves it on to the one after starts the chain
in the same transaction: two workers cannot both move it, and a crash leaves either both or neither. Ticks are counted by the
database's clock.

Cron expressions need the extra `cron`. Around a change of the clocks they behave as in Debian's cron: a job of an hour that is
skipped runs right after it, and one of an hour that comes twice runs once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queuert.engine import Engine
from queuert.job_types import JobType, check_name
from queuert.options import Duration, seconds
from queuert.starting import NewChain, Starter
from queuert.storage.base import Session

logger = logging.getLogger("queuert.periodic")

Missed = Literal["once", "all", "skip"]

PREFIX: Final = "queuert:periodic:"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
MOST_AT_ONCE: Final = 1_000
GRACE: Final = 60.0  # seconds: a tick found later than this was missed


class Schedule(Protocol):
    """When something recurs."""

    def after(self, moment: datetime) -> datetime:
        """The first tick later than a moment."""


@dataclass(frozen=True)
class Interval:
    """Every so many seconds, counted from 1970, so that all processes agree."""

    every: float

    def after(self, moment: datetime) -> datetime:
        count = math.floor((moment - EPOCH).total_seconds() / self.every) + 1
        tick = EPOCH + timedelta(seconds=count * self.every)
        # Rounding must not give the same tick twice.
        return tick if tick > moment else EPOCH + timedelta(seconds=(count + 1) * self.every)


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: tzinfo

    def after(self, moment: datetime) -> datetime:
        from cronsim import CronSim  # an extra

        tick: datetime = next(CronSim(self.expression, moment.astimezone(self.zone)))
        return tick.astimezone(timezone.utc)


@dataclass(frozen=True)
class Periodic:
    """A schedule on a job type."""

    name: str
    job_type: JobType[Any, Any]
    schedule: Schedule
    text: str
    input: object
    missed: Missed


@dataclass(frozen=True)
class PeriodicStatus:
    """What recurs, and when."""

    name: str
    type_name: str
    schedule: str
    last_run_at: datetime | None
    next_run_at: datetime | None


class Ticker:
    """Starts the chains that are due by schedule."""

    def __init__(self, engine: Engine, starter: Starter) -> None:
        self._engine = engine
        self._starter = starter
        self._all: dict[str, Periodic] = {}
        self._look_at = 0.0

    def add(
        self,
        job_type: JobType[Any, Any],
        schedule: str | Duration,
        *,
        tz: str | tzinfo,
        name: str | None,
        input: object,
        missed: Missed,
    ) -> None:
        if not isinstance(job_type, JobType):
            raise TypeError("periodic goes above @app.job: it takes a job type.")
        if missed not in ("once", "all", "skip"):
            raise ValueError(f"missed must be 'once', 'all' or 'skip', not {missed!r}.")
        key = check_name(name or job_type.name)
        if key in self._all:
            raise ValueError(f"There is a schedule {key!r} already: give this one another name=.")
        self._engine.encode_input(job_type, input)
        self._all[key] = Periodic(key, job_type, _parse(schedule, tz), _describe(schedule, tz), input, missed)

    def status(self) -> list[PeriodicStatus]:
        rows = {row[0]: row for row in self._engine.read(None, self._engine.repository.list_singletons)}
        found = []
        for periodic in self._all.values():
            row = rows.get(PREFIX + periodic.name)
            last, following = (row[3], row[4]) if row else (None, None)
            found.append(PeriodicStatus(periodic.name, periodic.job_type.name, periodic.text, last, following))
        return found

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Start what is due: called about once a second by every worker."""
        if not self._all or time.monotonic() < self._look_at:
            return
        repository = self._engine.repository
        with self._engine.database.read() as session:
            now = repository.clock(session)
            due = {row[0]: row[4] for row in repository.list_singletons(session)}
        waits = [GRACE]
        for periodic in tuple(self._all.values()):
            if stop.is_set():
                return
            try:
                following = self._tick(periodic, due.get(PREFIX + periodic.name), now)
            except Exception:
                logger.exception("The schedule %r could not start its chain; it is tried again.", periodic.name)
                following = now
            waits.append((following - now).total_seconds())
        self._look_at = time.monotonic() + max(0.0, min(waits))

    def _tick(self, periodic: Periodic, due: datetime | None, now: datetime) -> datetime:
        """Start what is due of one schedule; when it is due next."""
        following = periodic.schedule.after(now)
        if due is not None and periodic.schedule.after(due - timedelta(microseconds=1)) == due and due > now:
            return due
        # Never seen before, or another schedule than the one that was noted: begin with its next tick.
        fresh = due is None or due > now
        ticks = [] if fresh or due is None else _ticks(periodic, due, now)
        chains = [NewChain(periodic.job_type, periodic.input) for _ in ticks]

        def work(session: Session) -> bool:
            name = PREFIX + periodic.name
            moved = self._engine.repository.advance_singleton(session, name, due, following, ran=bool(chains))
            if moved:
                self._starter.start_in(session, chains)
            return moved

        if self._engine.database.run(work) and chains:
            logger.info("Started %d chains of %r by schedule.", len(chains), periodic.job_type.name)
        return following


def _ticks(periodic: Periodic, due: datetime, now: datetime) -> list[datetime]:
    """The ticks from the one that was due until now that are to be run."""
    if periodic.missed == "skip":
        return [tick for tick in _until(periodic, due, now) if (now - tick).total_seconds() <= GRACE][-1:]
    every = list(_until(periodic, due, now))
    return every if periodic.missed == "all" else every[-1:]


def _until(periodic: Periodic, due: datetime, now: datetime) -> Iterator[datetime]:
    tick = due
    for _ in range(MOST_AT_ONCE):
        if tick > now:
            return
        yield tick
        tick = periodic.schedule.after(tick)


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
        next(CronSim(schedule, datetime.now(cron.zone)))
    except (CronSimError, StopIteration) as error:
        raise ValueError(f"{schedule!r} is not a cron expression that ever comes true: {error}") from None
    return cron


def _zone(tz: str | tzinfo) -> tzinfo:
    if isinstance(tz, tzinfo):
        return tz
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{tz!r} is not a known time zone (on Windows: pip install tzdata).") from error


def _describe(schedule: str | Duration, tz: str | tzinfo) -> str:
    if isinstance(schedule, str):
        return schedule if str(tz) == "UTC" else f"{schedule} ({tz})"
    return f"every {seconds(schedule, 'the schedule'):g} s"

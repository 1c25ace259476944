"""Recurring work: one chain for every tick of a schedule, however many workers run.

The next tick of each schedule is a row in the database. When it is due, whoever moves it on to the one after starts the chain
in the same transaction: two workers cannot both move it, and a crash leaves either both or neither. Ticks are counted by the
database's clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from queuert.chains.new_chain import NewChain
from queuert.chains.start import Starter
from queuert.context import Context
from queuert.errors import QueuertError
from queuert.job_types import Periodic, Schedule, check_name
from queuert.model import Pause
from queuert.storage.attendance import StoredPause
from queuert.storage.protocol import Session

logger = logging.getLogger("queuert.periodic")

PREFIX: Final = "queuert:periodic:"
MOST_AT_ONCE: Final = 1_000
ON_TIME: Final = 5.0  # seconds: ticks that are all found within this are each run, whatever was said of missed ones
GRACE: Final = 60.0  # seconds: a tick found later than this is too old for "skip"


@dataclass(frozen=True)
class PeriodicStatus:
    """What recurs, and when; type and schedule are None where only the database knows of it."""

    name: str
    type_name: str | None
    schedule: str | None
    last_run_at: datetime | None
    next_run_at: datetime | None
    pause: Pause | None = None


class Noted(NamedTuple):
    """What the database knows of a schedule."""

    last: datetime | None = None
    following: datetime | None = None
    # The newest pause, which may be over.
    pause: StoredPause | None = None


class Ticker:
    """Starts the chains that are due by schedule."""

    def __init__(self, context: Context, starter: Starter) -> None:
        self._context = context
        self._starter = starter
        self._look_at = 0.0

    @property
    def _all(self) -> dict[str, Periodic]:
        return self._context.types.periodics

    def find(self, name: str) -> Periodic | None:
        """The schedule of this name, if this app defines it."""
        return self._all.get(name)

    def status(self) -> list[PeriodicStatus]:
        """Every schedule of this app."""
        now, rows = self._context.read(None, self._noted)
        found = []
        for periodic in self._all.values():
            noted = rows.get(periodic.name, Noted())
            following = noted.following
            if following is None or (following > now and not _is_tick(periodic.schedule, following)):
                following = periodic.schedule.after(now)  # no worker has looked at it yet
            shown = _status(periodic.name, noted._replace(following=following), periodic.job_type.name)
            found.append(replace(shown, schedule=periodic.text))
        return found

    def noted(self) -> list[PeriodicStatus]:
        """Every schedule that workers have noted in the database, whoever's it is."""
        _, rows = self._context.read(None, self._noted)
        return [_status(name, noted) for name, noted in rows.items()]

    def require(self, name: object, conn: object | None) -> None:
        """An error if neither this app nor the database knows a schedule of this name."""
        if check_name(name) not in self._all and name not in self._context.read(conn, self._noted)[1]:
            raise QueuertError(f"There is no schedule {name!r}: app.periodics() lists those of this app.")

    def look_soon(self) -> None:
        """Something of a schedule has changed."""
        self._look_at = 0.0

    def _noted(self, session: Session) -> tuple[datetime, dict[str, Noted]]:
        repository = self._context.repository
        rows = [row for row in repository.list_singletons(session) if row[0].startswith(PREFIX)]
        found = {row[0].removeprefix(PREFIX): Noted(row[3], row[4]) for row in rows}
        for pause in repository.list_pauses(session, "schedule"):
            found[pause.name] = found.get(pause.name, Noted())._replace(pause=pause)
        return repository.clock(session), found

    def run_if_due(self, stop: threading.Event, owner: str) -> None:
        """Start what is due: called about once a second by every worker."""
        if not self._all or time.monotonic() < self._look_at:
            return
        with self._context.database.read() as session:
            now, rows = self._noted(session)
        waits = [GRACE]
        for periodic in tuple(self._all.values()):
            if stop.is_set():
                return
            noted = rows.get(periodic.name, Noted())
            if noted.pause is not None and noted.pause.lasts:
                waits.append(0.0)  # nobody tells us when it is resumed
                continue
            try:
                following = self._tick(periodic, noted, now)
            except Exception:
                about = {"event": "schedule_failed", "schedule": periodic.name, "type_name": periodic.job_type.name}
                logger.exception("The schedule %r could not start its chain; it is tried again.", periodic.name, extra=about)
                following = now
            waits.append((following - now).total_seconds())
        self._look_at = time.monotonic() + max(0.0, min(waits))

    def _tick(self, periodic: Periodic, noted: Noted, now: datetime) -> datetime:
        """Start what is due of one schedule; when it is due next."""
        schedule, due = periodic.schedule, noted.following
        if due is not None and due > now and _is_tick(schedule, due):
            return due
        resumed = None if noted.pause is None else noted.pause.until
        # Never seen before, or another schedule than the one that was noted: begin with its next tick.
        ticks = [] if due is None or due > now else _ticks(periodic, due, now, resumed)
        # Of very many that were missed the rest is started next time.
        following = schedule.after(ticks[-1] if len(ticks) == MOST_AT_ONCE else now)
        chains = [NewChain(periodic.job_type, periodic.input) for _ in ticks]

        def work(session: Session) -> bool:
            name = PREFIX + periodic.name
            repository, ran = self._context.repository, bool(chains)
            moved = repository.advance_singleton(session, name, due, following, schedule=periodic.name, ran=ran)
            if moved:
                self._starter.start_in(session, chains)
            return moved

        if self._context.database.run(work) and chains:
            about = {"event": "schedule_ticked", "schedule": periodic.name, "type_name": periodic.job_type.name}
            logger.info("Started %d chains of %r by schedule.", len(chains), periodic.job_type.name, extra=about)
        return following


def _status(name: str, noted: Noted, type_name: str | None = None) -> PeriodicStatus:
    found = noted.pause
    pause = Pause(type_name, *found[1:5]) if found is not None and found.lasts else None
    return PeriodicStatus(name, type_name, None, noted.last, noted.following, pause)


def _ticks(periodic: Periodic, due: datetime, now: datetime, resumed: datetime | None = None) -> list[datetime]:
    """The ticks from the one that was due until now that are to be run. Those before it was `resumed` were missed, also
    if that was a moment ago."""
    paused = resumed is not None and due < resumed
    if periodic.missed == "skip":
        oldest = now - timedelta(seconds=GRACE)
        due = max(due, periodic.schedule.after(max(oldest, resumed) if resumed is not None and paused else oldest))
    found = list(_until(periodic.schedule, due, now))
    if periodic.missed == "all" or ((now - due).total_seconds() <= ON_TIME and not (paused and periodic.missed == "once")):
        return found
    return found[-1:]


def _until(schedule: Schedule, due: datetime, now: datetime) -> Iterator[datetime]:
    tick = due
    for _ in range(MOST_AT_ONCE):
        if tick > now:
            return
        yield tick
        tick = schedule.after(tick)


def _is_tick(schedule: Schedule, moment: datetime) -> bool:
    return schedule.after(moment - timedelta(microseconds=1)) == moment

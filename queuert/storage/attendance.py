"""The part of the repository that is about workers and pauses: who is there, what they did lately, what must not run."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from queuert.model import WorkerInfo
from queuert.storage.protocol import Row, Session
from queuert.storage.records import RowReader, iso


class StoredPause(NamedTuple):
    """A pause as it is stored; it may be over."""

    name: str
    since: datetime
    until: datetime | None
    reason: str | None
    actor: str | None
    lasts: bool


class AttendanceRepository(ABC):
    """The operations on the tables of workers and pauses."""

    _rows: RowReader

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object: ...

    # How to say that a LIMIT is none.
    _no_limit: int | None = None

    def _limit(self, limit: int | None) -> int | None:
        return self._no_limit if limit is None else limit

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    # Pauses

    def pause(self, session: Session, kind: str, names: Sequence[str], **facts: Any) -> bool:
        """Pause types or schedules; False if the end is not in the future."""
        params: Mapping[str, object] = {**facts, "until": iso(facts["until"])}
        return bool(self._run(session, "pause", kind=kind, names=self._list(sorted(names)), **params))

    def resume_types(self, session: Session, names: Sequence[str] | None) -> list[str]:
        """The names of what was paused; an empty one stands for everything."""
        listed = None if names is None else self._list(names)
        return [row[0] for row in self._run(session, "resume_types", names=listed)]

    def resume_schedule(self, session: Session, name: str) -> bool:
        return bool(self._run(session, "resume_schedule", name=name))

    def list_pauses(self, session: Session, kind: str) -> list[StoredPause]:
        time = self._rows.time
        rows = self._run(session, "list_pauses", kind=kind)
        return [StoredPause(r[0], time(r[1]), time(r[2]), r[3], r[4], bool(r[5])) for r in rows]

    def forget_pauses(self, session: Session, age: float) -> None:
        self._run(session, "forget_pauses", age=age)

    # Workers

    # Whether one statement renews leases and tells that a worker is there, so that it needs no transaction around it.
    signs_in_one_statement = False

    @abstractmethod
    def renew_and_sign(
        self, session: Session, worker: str, items: Sequence[Mapping[str, Any]], sign: Mapping[str, Any], rates: Sequence[Any]
    ) -> set[str]:
        """Renew leases, and tell that a worker is there and what it did lately; the ids of what was renewed."""

    def leave(self, session: Session, worker: str) -> None:
        self._run(session, "leave", worker=worker)

    def list_workers(self, session: Session, lost_after: float) -> list[WorkerInfo]:
        time, rows = self._rows.time, self._run(session, "list_workers", lost_after=lost_after)
        found = []
        for row in rows:
            *who, started, seen, concurrency, busy, waiting, zombies, types, stopping, lost = row
            numbers = (concurrency, busy, waiting, zombies)
            values = [*who, time(started), time(seen), *numbers, tuple(json.loads(types)), bool(stopping), bool(lost)]
            found.append(WorkerInfo(*values))
        return found

    def forget_workers(self, session: Session, age: float) -> None:
        self._run(session, "forget_workers", age=age)

    def forget_rates(self, session: Session, age: float) -> None:
        self._run(session, "forget_rates", age=age)

    # What there is to do, and how fast it is done

    def count_blockers(self, session: Session, job_id: str) -> dict[str, int]:
        """By status: how many of the chains that a job was given as blockers."""
        return {row[0]: int(row[1]) for row in self._run(session, "count_blockers", id=job_id)}

    def running_order(self, session: Session) -> dict[str, list[tuple[str, str]]]:
        """Id and type of the running jobs of each worker, in the order in which it starts them."""
        found: dict[str, list[tuple[str, str]]] = {}
        for worker, identity, type_name in self._run(session, "running_order"):
            found.setdefault(worker, []).append((str(identity), type_name))
        return found

    def count_due(self, session: Session, types: Sequence[str], limit: int | None) -> dict[str, tuple[int, int, float | None]]:
        """By type: how many pending jobs are due, how many are not, and for how long the oldest has been due."""
        rows = self._run(session, "count_due", types=self._list(types), limit=self._limit(limit))
        return {row[0]: (int(row[1]), int(row[2]), row[3]) for row in rows}

    def count_backing_off(self, session: Session, types: Sequence[str], limit: int | None) -> dict[str, int]:
        rows = self._run(session, "count_backing_off", types=self._list(types), limit=self._limit(limit))
        return {row[0]: int(row[1]) for row in rows}

    def rates_by_age(self, session: Session) -> dict[int, tuple[int, int]]:
        """What was completed and what failed in each five minutes of the last hour, by how many of those ago that was."""
        return {max(0, row[0]): (row[1], row[2]) for row in self._run(session, "rates_by_age")}

    def list_rates(self, session: Session, types: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
        """By type: completed and failed in the last minute, completed and failed in the last hour."""
        rows = self._run(session, "list_rates", types=self._list(types))
        return {row[0]: (int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in rows}

    def count_arrivals(
        self, session: Session, types: Sequence[str], statuses: Sequence[str], limit: int
    ) -> list[tuple[str, int, int]]:
        """Type, which ten seconds of the last thirty, counted back, and how many jobs were created in them."""
        rows = self._run(session, "count_arrivals", types=self._list(types), statuses=self._list(statuses), limit=limit)
        return [(row[0], row[1], int(row[2])) for row in rows]

    def stranded_jobs(self, session: Session, types: Sequence[str], limit: int | None, most: int) -> list[str]:
        rows = self._run(session, "stranded_jobs", types=self._list(types), limit=self._limit(limit), most=most)
        return [str(row[0]) for row in rows]

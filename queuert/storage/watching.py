"""The part of the repository that counts: jobs by state, errors, what runs longest, what is ready, whose lease has ended."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from queuert.model import Status
from queuert.storage.protocol import Row, Session
from queuert.storage.records import STATUS, RowReader, Running
from queuert.storage.sizes import Sizes


class WatchingRepository(ABC):
    """Counts for statistics, metrics and health, and sizes."""

    _rows: RowReader

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object: ...

    @abstractmethod
    def _limit(self, limit: int | None) -> int | None: ...

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    @abstractmethod
    def sizes(self, session: Session) -> Sizes:
        """How much room the tables take."""

    def ready_by_type(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, float]]:
        """Type, how many of its jobs are due, and for how many seconds the oldest has been."""
        rows = self._count(session, "ready_by_type", limit, types=types)
        return [(row[0], int(row[1]), max(0.0, row[2])) for row in rows]

    def count_expired(self, session: Session, limit: int | None) -> int:
        """Running jobs whose lease has ended."""
        return int(self._count(session, "count_expired", limit)[0][0])

    def count_jobs(
        self, session: Session, types: Sequence[str], statuses: Sequence[str], limit: int | None
    ) -> list[tuple[str, Status, int]]:
        rows = self._count(session, "count_jobs", limit, types=types, statuses=statuses)
        return [(row[0], STATUS[row[1]], row[2]) for row in rows]

    def count_attempts(
        self, session: Session, types: Sequence[str], statuses: Sequence[str], limit: int | None
    ) -> list[tuple[str, int, int]]:
        """Type, attempts, number of jobs."""
        rows = self._count(session, "count_attempts", limit, types=types, statuses=statuses)
        return [(row[0], row[1], row[2]) for row in rows]

    def count_retries(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, int]]:
        """Type, attempts, number of pending jobs that have been tried before."""
        return [(row[0], row[1], row[2]) for row in self._count(session, "count_retries", limit, types=types)]

    def count_errors(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, str, list[str]]]:
        """Error code, number of jobs, one of them, and the types that have it."""
        rows = self._count(session, "count_errors", limit, types=types)
        return [(row[0], row[1], str(row[2]), sorted(_listed(row[3]))) for row in rows]

    def count_stranded(self, session: Session, types: Sequence[str], limit: int | None) -> int:
        return int(self._count(session, "count_stranded", limit, types=types)[0][0])

    def longest_running(self, session: Session, types: Sequence[str], limit: int) -> list[Running]:
        rows = self._count(session, "longest_running", limit, types=types)
        return [self._running(row) for row in rows]

    def _running(self, row: Row) -> Running:
        identity, type_name, worker, heard_of, attempt, ran, silent, lease = row
        ran, silent = max(0.0, ran or 0.0), max(0.0, silent or 0.0)
        return Running(str(identity), type_name, worker, self._rows.time(heard_of), attempt, ran, silent, lease or 0.0)

    def _count(self, session: Session, query: str, limit: int | None, **lists: Sequence[str]) -> list[Row]:
        named = {name: self._list(values) for name, values in lists.items()}
        return self._run(session, query, limit=self._limit(limit), **named)


def _listed(value: Any) -> list[str]:
    """A list as a database gives it: as one, or as JSON."""
    return json.loads(value) if isinstance(value, str) else list(value)

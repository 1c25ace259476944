"""The part of the repository that counts what is watched: what is ready, for how long, and whose lease has ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from queuert.storage.protocol import Row, Session
from queuert.storage.sizes import Sizes


class WatchingRepository(ABC):
    """Counts for metrics and health, and sizes."""

    @abstractmethod
    def _count(self, session: Session, query: str, limit: int | None, **lists: Sequence[str]) -> list[Row]: ...

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    @abstractmethod
    def sizes(self, session: Session) -> Sizes:
        """How much room the tables take."""

    def find_ids(self, session: Session, part: str, limit: int) -> list[str]:
        """The ids that begin or end so."""
        return [str(row[0]) for row in self._run(session, "find_ids", part=part, limit=limit)]

    def ready_by_type(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, float]]:
        """Type, how many of its jobs are due, and for how many seconds the oldest has been."""
        rows = self._count(session, "ready_by_type", limit, types=types)
        return [(row[0], int(row[1]), max(0.0, row[2])) for row in rows]

    def count_expired(self, session: Session, limit: int | None) -> int:
        """Running jobs whose lease has ended."""
        return int(self._count(session, "count_expired", limit)[0][0])

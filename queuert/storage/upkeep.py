"""What housekeeping asks of the tables: the part of the repository that nobody waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from queuert.storage.protocol import Row, Session
from queuert.storage.records import Freed, RowReader, freed
from queuert.storage.times import iso


class UpkeepRepository(ABC):
    """The operations of housekeeping on the tables of one app."""

    _rows: RowReader

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]:
        """Run a named query."""

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object:
        """The parameter for a list of ids or names."""

    @abstractmethod
    def add_events(self, session: Session, items: Sequence[Any]) -> None:
        """Note what was done to jobs."""

    # What nobody frees

    def blocked_page(
        self, session: Session, type_name: str, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[str, datetime, bool]]:
        """Job id, creation, and whether everything it waits for has completed."""
        at, identity = after or (None, None)
        position = {"after_at": iso(at), "after_id": identity}
        rows = self._run(session, "blocked_page", type_name=type_name, limit=limit, **position)
        return [(str(row[0]), self._rows.time(row[1]), bool(row[2])) for row in rows]

    def release_stranded(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        """Free those of these jobs that are still blocked though everything they wait for has completed."""
        found = [freed(row) for row in self._run(session, "release_stranded", ids=self._list(ids))]
        if found:
            self.add_events(session, [{"job_id": job.id, "event": "UNBLOCKED", "detail": "{}"} for job in found])
        return found

    # What grows without end

    def delete_middles(self, session: Session, ids: Sequence[str], keep: int, limit: int) -> int:
        """Delete completed jobs between the first and the last `keep` jobs of chains; how many, up to a limit."""
        return len(self._run(session, "delete_middles", ids=self._list(ids), keep=keep, limit=limit))

    def long_chains(
        self, session: Session, type_name: str, longer: int, after: str | None, limit: int
    ) -> list[tuple[str, bool]]:
        """Open chains of a type beyond a point, and whether they have more jobs than that."""
        rows = self._run(session, "long_chains", type_name=type_name, longer=longer, after_id=after, limit=limit)
        return [(str(row[0]), bool(row[1])) for row in rows]

    def long_histories(self, session: Session, type_name: str, keep: int, limit: int) -> list[str]:
        """Pending jobs of a type that have been tried more often than attempts are kept."""
        rows = self._run(session, "long_histories", type_name=type_name, keep=keep, limit=limit)
        return [str(row[0]) for row in rows]

    def trim_histories(self, session: Session, ids: Sequence[str], keep: int, limit: int) -> int:
        """Delete the oldest attempts and events of jobs but the last `keep`; how many, up to a limit of each."""
        named = self._list(ids)
        attempts = self._run(session, "trim_attempts", ids=named, keep=keep, limit=limit)
        events = self._run(session, "trim_events", ids=named, keep=keep, limit=limit)
        return len(attempts) + len(events)

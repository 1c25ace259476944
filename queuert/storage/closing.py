"""The part of the repository that is about chains that close without completing, and about failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queuert.model import Job
from queuert.storage.protocol import Row, Session
from queuert.storage.records import Freed, Released, RowReader

Item = Mapping[str, Any]


class ClosingOperations(ABC):
    """What is done when a chain fails or is cancelled, and when it opens again."""

    _rows: RowReader

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    @abstractmethod
    def _dumps(self, items: Iterable[object]) -> str: ...

    @abstractmethod
    def release_closed(self, session: Session, ids: Sequence[str]) -> Released:
        """Chains have failed or were cancelled: free who waited until they have closed."""

    @abstractmethod
    def reopen_blockers(self, session: Session, ids: Sequence[str]) -> bool:
        """Closed chains are about to be open again, for those who wait until they have closed. Whether the transaction sees
        only what was committed before it began."""

    @abstractmethod
    def recount_blockers(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        """Count anew what these jobs wait for, of those that wait until their blockers have closed; what was freed."""

    def overdue_joins(self, session: Session, limit: int) -> list[str]:
        """Jobs that wait until their blockers have closed, which all of these have."""
        return [str(row[0]) for row in self._run(session, "overdue_joins", limit=limit)]

    def unstarted_failures(self, session: Session, limit: int) -> list[Job]:
        """Jobs that failed for good and whose chain for that was not started."""
        return [self._rows.job(row) for row in self._run(session, "unstarted_failures", limit=limit)]

    def note_failures(self, session: Session, items: Sequence[Item]) -> set[str]:
        """Note which chains are started for failed jobs; those for which nobody else did."""
        return {str(row[0]) for row in self._run(session, "note_failures", items=self._dumps(items))}

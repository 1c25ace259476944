"""The part of the repository that lists: pages of jobs and chains, those that fit, the history of a job."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from queuert.model import Attempt, Chain, Job
from queuert.storage.protocol import Row, Session
from queuert.storage.records import RowReader


class Position(NamedTuple):
    """Where a job, or a chain with its newest job, stands in a listing."""

    id: str
    at: datetime
    tail_id: str


class ListingRepository(ABC):
    """Pages by age, and what is known of a job."""

    _rows: RowReader

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object: ...

    @abstractmethod
    def _limit(self, limit: int | None) -> int | None: ...

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    def job_types(self, session: Session) -> list[str]:
        return [row[0] for row in self._run(session, "job_types")]

    def list_jobs(self, session: Session, order: str, **filters: Any) -> list[Job]:
        """Jobs by age; by name, where `job_ids` and `chain_ids` are given."""
        name = "list_jobs_named" if "job_ids" in filters else "list_jobs"
        return [self._rows.job(row) for row in self._list_by_age(session, name, order, filters)]

    def list_chains(self, session: Session, order: str, **filters: Any) -> list[Chain]:
        """Chains by age; by name, where `job_ids` and `chain_ids` are given."""
        name = "list_chains_named" if "job_ids" in filters else "list_chains"
        return [self._rows.chain(row) for row in self._list_by_age(session, name, order, filters)]

    def _list_by_age(self, session: Session, name: str, order: str, filters: dict[str, Any]) -> list[Row]:
        lists = {key: None if value is None else self._list(value) for key, value in filters.items() if _is_list(value)}
        return self._run(session, f"{name}_{order}", **{**filters, **lists})

    def list_chain_jobs(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._rows.job(row) for row in self._run(session, f"list_chain_jobs_{order}", **filters)]

    def list_blocked_jobs(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._rows.job(row) for row in self._run(session, f"list_blocked_jobs_{order}", **filters)]

    def list_attempts(
        self, session: Session, job_id: str, *, before: int | None = None, limit: int | None = None
    ) -> list[Attempt]:
        """The last finished attempts before one, oldest first."""
        rows = self._run(session, "list_attempts", job_id=job_id, before=before, limit=self._limit(limit))
        return [self._rows.attempt(row) for row in rows]

    def list_events(
        self, session: Session, job_id: str, *, limit: int | None = None
    ) -> list[tuple[str, datetime, str | None, dict[str, Any]]]:
        rows = self._run(session, "list_events", job_id=job_id, limit=self._limit(limit))
        return [(row[0], self._rows.time(row[1]), row[2], json.loads(row[3])) for row in rows]

    def scan(self, session: Session, what: str, order: str, **filters: Any) -> list[Position]:
        """Where the `jobs` or `chains` stand that `list_jobs` or `list_chains` would give."""
        name = f"scan_{what}_named" if "job_ids" in filters else f"scan_{what}"
        rows = self._list_by_age(session, name, order, filters)
        return [Position(str(row[0]), self._rows.time(row[1]), str(row[2])) for row in rows]

    def fitting_jobs(
        self,
        session: Session,
        ids: Sequence[str],
        *,
        stranded: bool = False,
        worker: str | None = None,
        key: str | None = None,
        fields: Sequence[object] = (),
    ) -> set[str]:
        """Those of these jobs that are so."""
        what = {"stranded": stranded, "worker": worker, "key": key, "fields": json.dumps(list(fields))}
        return {str(row[0]) for row in self._run(session, "fitting_jobs", ids=self._list(ids), **what)}

    def keyed_chains(self, session: Session, types: Sequence[str], key: str, limit: int) -> list[str]:
        """The newest chains with this deduplication key."""
        return [str(row[0]) for row in self._run(session, "keyed_chains", types=self._list(types), key=key, limit=limit)]

    def find_ids(self, session: Session, part: str, between: tuple[str, str] | None, *, furthest: int, limit: int) -> list[str]:
        """The ids that begin or end so; where these begin so that are `between` two, the index tells."""
        low, high = between or (None, None)
        rows = self._run(session, "find_ids", part=part, low=low, high=high, furthest=furthest, limit=limit)
        return [str(row[0]) for row in rows]


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))

"""The operations on limits and their keys, a part of the repository."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from queuert.storage.protocol import Row, Session
from queuert.storage.records import Claim

Item = Mapping[str, Any]


class KeyLevel(NamedTuple):
    """Jobs of one type, limit, key and priority that wait, and whether the first is due."""

    type_name: str
    name: str
    key: str
    priority: int
    due: bool


class KeyState(NamedTuple):
    """What stands in the way of a key's jobs."""

    name: str
    key: str
    now: datetime
    running: int
    # What an operator has set.
    concurrency: int | None
    rate: float | None
    per: float | None
    burst: int | None
    used_until: datetime | None
    held_until: datetime | None
    # Where its jobs run in order: the first that is open, if it is due.
    head: str | None


class KeyInUse(NamedTuple):
    name: str
    key: str
    running: int
    waiting: int
    used_until: datetime | None
    held_until: datetime | None
    now: datetime


class LimitOperations(ABC):
    """What databases do alike; how keys are locked and jobs taken is each database's own."""

    _rows: Any

    @abstractmethod
    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]: ...

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object: ...

    @abstractmethod
    def _dumps(self, items: Iterable[object]) -> str: ...

    @abstractmethod
    def lock_limit_keys(self, session: Session, items: Sequence[Item]) -> None:
        """Lock the rows of keys, which are made where there are none."""

    @abstractmethod
    def claim_limited(
        self,
        session: Session,
        *,
        worker: str,
        token: int,
        levels: Sequence[Item],
        heads: Sequence[Item],
        limit: int,
        suspect: bool,
        held: Sequence[str],
    ) -> Claim:
        """Claim due jobs of keys that are locked, up to the room of each."""

    def waiting_keys(
        self, session: Session, type_name: str, *, suspect: bool, after: tuple[str, str], window: int
    ) -> list[KeyLevel]:
        params = {"type": type_name, "suspect": suspect, "after_name": after[0], "after_key": after[1], "window": window}
        return [KeyLevel(type_name, r[0], r[1], r[2], bool(r[3])) for r in self._run(session, "waiting_keys", **params)]

    def look_at_keys(self, session: Session, items: Sequence[Item]) -> list[KeyState]:
        time = self._rows.time
        return [
            KeyState(
                r[0],
                r[1],
                time(r[2]),
                r[3],
                r[4],
                r[5],
                r[6],
                r[7],
                time(r[8]),
                time(r[9]),
                None if r[10] is None else str(r[10]),
            )
            for r in self._run(session, "look_at_keys", items=self._dumps(items))
        ]

    def key_holders(self, session: Session, name: str, key: str, window: int) -> list[str]:
        """The chains whose jobs run with a key, some of them."""
        return [str(row[0]) for row in self._run(session, "key_holders", name=name, key=key, window=window)]

    def head_of_key(self, session: Session, name: str, key: str) -> tuple[str, str] | None:
        """Of a key whose jobs run in order, the first that is open, and its chain."""
        rows = self._run(session, "head_of_key", name=name, key=key)
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def use_rates(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "use_rates", items=self._dumps(items))

    def give_back_rates(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "give_back_rates", items=self._dumps(items))

    def hold_keys(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "hold_keys", items=self._dumps(items))

    def next_scheduled(self, session: Session, types: Sequence[str]) -> float | None:
        rows = self._run(session, "next_scheduled", types=self._list(types))
        return float(rows[0][0]) if rows else None

    def adopt_jobs(self, session: Session, types: Sequence[str], name: str, window: int) -> int:
        return len(self._run(session, "adopt_jobs", types=self._list(types), name=name, window=window))

    def set_limit(self, session: Session, **values: object) -> None:
        self._run(session, "set_limit", **values)

    def reset_limit(self, session: Session, name: str) -> bool:
        return bool(self._run(session, "reset_limit", name=name))

    def list_limits(self, session: Session) -> dict[str, tuple[int | None, float | None, float | None, int | None, str]]:
        return {row[0]: (row[1], row[2], row[3], row[4], row[5]) for row in self._run(session, "list_limits")}

    def limits_in_use(self, session: Session, types: Sequence[str], window: int) -> list[KeyInUse]:
        rows = self._run(session, "limits_in_use", types=self._list(types), window=window)
        time = self._rows.time
        return [KeyInUse(r[0], r[1], r[2], r[3], time(r[4]), time(r[5]), time(r[6])) for r in rows]

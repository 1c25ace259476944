"""One method per operation on the tables: Python values in, records out. No SQL text here, and no rule of the domain.

What databases do alike is here; what they do each in their own way is in `queuert.postgres.repository` and
`queuert.sqlite.repository`. Every call is O(1) statements, however many jobs it is about.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from queuert.codec.text import make_encoder
from queuert.model import Chain, Job
from queuert.storage.attendance import AttendanceRepository
from queuert.storage.closing import ClosingOperations
from queuert.storage.limits import LimitOperations
from queuert.storage.listing import ListingRepository
from queuert.storage.loader import Query
from queuert.storage.names import Names
from queuert.storage.protocol import Block, Commit, Row, Session
from queuert.storage.records import (
    STATUS,
    Claim,
    Completed,
    EndedAttempt,
    Freed,
    LeaseState,
    Level,
    RowReader,
    freed,
    iso,
)
from queuert.storage.upkeep import UpkeepRepository
from queuert.storage.watching import WatchingRepository

Item = Mapping[str, Any]

CLAIM_WINDOW: Final = 2.0  # candidates looked at for each job asked for, so that rows locked by others do not leave it short

_encode: Final = make_encoder(ascii=True, allow_nan=True)


def dumps(items: Iterable[object]) -> str:
    """JSON for a parameter."""
    return _encode(items if isinstance(items, (list, tuple)) else list(items)) if items else "[]"


class Repository(
    AttendanceRepository, ListingRepository, WatchingRepository, UpkeepRepository, ClosingOperations, LimitOperations
):
    """The operations on the tables of one app."""

    # Whether one statement completes a group of jobs, so that it needs no transaction around it.
    completes_in_one_statement: bool
    # Whether `claim_head` is quicker than `claim`.
    has_claim_head = False
    # Whether `claim` is quicker where it is told how far the one before it came.
    claims_from_hint = False

    def __init__(self, names: Names, queries: Mapping[str, Query], rows: RowReader) -> None:
        self.names = names
        self.queries = queries
        self._rows = rows

    @abstractmethod
    def _list(self, values: Iterable[object]) -> object:
        """The parameter for a list of ids or names."""

    def _dumps(self, items: Iterable[object]) -> str:
        return dumps(items)

    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]:
        return session.run(self.queries[query], params)

    def _ids(self, session: Session, query: str, ids: Iterable[str]) -> list[str]:
        """The first column of a query about ids."""
        return [str(row[0]) for row in self._run(session, query, ids=self._list(ids))]

    # Starting

    @abstractmethod
    def insert_chain(self, session: Session, item: Item, channel: str | None = None) -> datetime:
        """Insert a first job whose id is new, due now and waiting for nothing; when it was created. The type is told on the
        channel, if there is one."""

    @abstractmethod
    def insert_chains(self, session: Session, items: Sequence[Item], channel: str | None = None) -> datetime:
        """Insert first jobs whose ids are new; when they were created."""

    @abstractmethod
    def insert_named_chains(
        self, session: Session, items: Sequence[Item], channel: str | None = None
    ) -> tuple[datetime, set[str]]:
        """Insert first jobs whose ids the caller has chosen; when they were created, and which ids were free."""

    @abstractmethod
    def missing_blocker(self, error: Exception) -> str | None:
        """The chain that was named as a blocker and has been deleted meanwhile, if that is what an insert was refused for."""

    def touch_keys(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "touch_keys", items=dumps(items))

    def find_duplicates(self, session: Session, items: Sequence[Item]) -> dict[int, str]:
        """The chain that stands in the way, by the item's number `n`."""
        return {row[0]: str(row[1]) for row in self._run(session, "find_duplicates", items=dumps(items))}

    def insert_blockers(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "insert_blockers", items=dumps(items))

    def settle_blockers(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        return [freed(row) for row in self._run(session, "settle_blockers", ids=self._list(ids))]

    def waits_for(self, session: Session, ids: Sequence[str]) -> set[str]:
        return set(self._ids(session, "waits_for", ids))

    # Claiming

    @abstractmethod
    def claim(
        self,
        session: Session,
        *,
        worker: str,
        token: int,
        leases: Mapping[str, float],
        limit: int,
        suspect: bool = False,
        held: Sequence[str] = (),
        levels: Sequence[Level] = (),
        window: float = CLAIM_WINDOW,
    ) -> Claim:
        """Claim up to `limit` due jobs of the types in `leases`, except those `held`.

        With `levels` only these need be looked at, from the time each names on. What was claimed is read by `claimed_jobs`,
        after the transaction: others may be waiting for its end.
        """

    def claim_head(
        self, session: Session, *, worker: str, token: int, type_name: str, lease: float, limit: int, held: Sequence[str] = ()
    ) -> Claim:
        """Claim up to `limit` due jobs among the first few of one type. There may be more behind them."""
        return self.claim(session, worker=worker, token=token, leases={type_name: lease}, limit=limit, held=held)

    def claimed_with(self, session: Session, worker: str, token: int, *, suspect: bool = False) -> Claim:
        """What a claim has taken whose answer was lost, where answers can get lost."""
        return Claim([], worker, token, suspect, more=True)

    def no_claim(self, worker: str, token: int, suspect: bool) -> Claim:
        """A claim that took nothing."""
        return Claim([], worker, token, suspect, more=False)

    def claimed_jobs(self, claim: Claim) -> list[Job]:
        """The jobs of a claim, in claim order."""
        return self._rows.claimed(claim.rows, claim)

    def claim_jobs(self, session: Session, **options: Any) -> list[Job]:
        """What `claim` takes, read at once."""
        return self.claimed_jobs(self.claim(session, **options))

    def next_due(self, session: Session, types: Sequence[str]) -> float | None:
        """Seconds until the next pending job of these types is due: negative if it is, None if there is none."""
        rows = self._run(session, "next_due", types=self._list(types))
        return float(rows[0][0]) if rows else None

    def release_claims(self, session: Session, worker: str, items: Sequence[Item]) -> list[Freed]:
        return [freed(row) for row in self._run(session, "release_claims", worker=worker, items=dumps(items))]

    # Leases

    def clock(self, session: Session) -> datetime:
        now: datetime = self._rows.time(self._run(session, "clock")[0][0])
        return now

    def renew_leases(self, session: Session, worker: str, items: Sequence[Item]) -> set[str]:
        return {str(row[0]) for row in self._run(session, "renew_leases", worker=worker, items=dumps(items))}

    def lease_states(self, session: Session, ids: Sequence[str]) -> dict[str, LeaseState]:
        rows = self._run(session, "lease_states", ids=self._list(ids))
        return {str(row[0]): LeaseState(str(row[0]), STATUS[row[1]], row[2], row[3]) for row in rows}

    def lock_expired(self, session: Session, before: datetime, limit: int) -> list[Job]:
        return [self._rows.job(row) for row in self._run(session, "lock_expired", before=iso(before), limit=limit)]

    def end_attempts(self, session: Session, items: Sequence[Item]) -> list[EndedAttempt]:
        return [self._ended(row) for row in self._run(session, "end_attempts", items=dumps(items))]

    def _ended(self, row: Row) -> EndedAttempt:
        return EndedAttempt(str(row[0]), str(row[1]), row[2], STATUS[row[3]], self._rows.time(row[4]))

    # Completing

    @abstractmethod
    def encode_completions(self, worker: str | None, items: Sequence[Item]) -> Any:
        """The items as `complete_jobs` sends them: better made before the transaction, whose end others may wait for."""

    @abstractmethod
    def complete_jobs(
        self,
        session: Session,
        worker: str | None,
        items: Sequence[Item],
        *,
        wait: bool = True,
        encoded: Any = None,
        snapshot_checked: bool = False,
    ) -> Completed:
        """Complete jobs, continue their chains, free who waited for the chains that end.

        Unless it may `wait`, items whose rows somebody else has locked are left out. `encoded` is what `encode_completions`
        made of the items. Where the transaction cannot see who has come to wait for a chain meanwhile, the rows are locked and
        nothing else happens, until the caller has `snapshot_checked` that nobody is missed.
        """

    def complete_and_commit(self, block: Block, worker: str, item: Item) -> tuple[Completed, Commit | None] | None:
        """Complete one job as the last act of a block and COMMIT, in one round trip; None where that gains nothing. There is no
        commit if its lease was lost."""
        return None

    @abstractmethod
    def lock_closing(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        """Lock jobs that are about to close a chain, and the first jobs of those chains; the ids that are locked now."""

    @abstractmethod
    def lock_jobs(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        """Lock jobs that are about to change; the ids that are locked now."""

    @abstractmethod
    def lock_completions(self, session: Session, items: Sequence[Item], *, wait: bool) -> set[str]:
        """Lock what completing these items will lock, so that something can be checked before; the jobs that are not free."""

    @abstractmethod
    def lock_tail(self, session: Session, chain_id: str) -> Job | None:
        """Lock a chain, and read its tail."""

    # Chains

    def get_jobs(self, session: Session, ids: Sequence[str]) -> dict[str, Job]:
        jobs = [self._rows.job(row) for row in self._run(session, "get_jobs", ids=self._list(ids))]
        return {job.id: job for job in jobs}

    def get_chains(self, session: Session, ids: Sequence[str]) -> dict[str, Chain]:
        chains = [self._rows.chain(row) for row in self._run(session, "get_chains", ids=self._list(ids))]
        return {chain.id: chain for chain in chains}

    def get_tails(self, session: Session, ids: Sequence[str]) -> dict[str, Job]:
        """The tails, by chain id."""
        jobs = [self._rows.job(row) for row in self._run(session, "get_tails", ids=self._list(ids))]
        return {job.chain_id: job for job in jobs}

    def get_blockers(self, session: Session, ids: Sequence[str]) -> dict[str, list[Chain]]:
        """The blocker chains of each job that has any, in order."""
        found: dict[str, list[Chain]] = {}
        for row in self._run(session, "get_blockers", ids=self._list(ids)):
            found.setdefault(str(row[0]), []).append(self._rows.chain(row[1:]))
        return found

    def waiting_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return self._ids(session, "waiting_chains", ids)

    def waiting_jobs(self, session: Session, ids: Sequence[str]) -> set[str]:
        return set(self._ids(session, "waiting_jobs", ids))

    def blocker_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return self._ids(session, "blocker_chains", ids)

    def connected_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return self._ids(session, "connected_chains", ids)

    def chain_types(self, session: Session) -> list[str]:
        return [row[0] for row in self._run(session, "chain_types")]

    # Acts of an operator

    def lock_chains(self, session: Session, ids: Sequence[str]) -> dict[str, str]:
        """Lock all jobs of the chains; the chain of each job."""
        return {str(row[0]): str(row[1]) for row in self._run(session, "lock_chains", ids=self._list(ids))}

    def cancel_tails(
        self, session: Session, ids: Sequence[str], actor: str | None, reason: str | None = None
    ) -> list[tuple[str, str]]:
        """Job and chain id of what was cancelled."""
        rows = self._run(session, "cancel_tails", ids=self._list(ids), actor=actor, reason=reason)
        return [(str(row[0]), str(row[1])) for row in rows]

    def retry_tails(self, session: Session, ids: Sequence[str], actor: str | None, reason: str | None = None) -> list[Freed]:
        return [freed(row) for row in self._run(session, "retry_tails", ids=self._list(ids), actor=actor, reason=reason)]

    def missing_blockers(self, session: Session, ids: Sequence[str]) -> set[str]:
        return set(self._ids(session, "missing_blockers", ids))

    def trigger_jobs(self, session: Session, ids: Sequence[str], actor: str | None, reason: str | None = None) -> list[Freed]:
        return [freed(row) for row in self._run(session, "trigger_jobs", ids=self._list(ids), actor=actor, reason=reason)]

    def add_events(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "add_events", items=dumps(items))

    def blocker_references(self, session: Session, ids: Sequence[str]) -> list[tuple[str, str, str]]:
        """Waiting job, its chain, and the chain it waits for."""
        rows = self._run(session, "blocker_references", ids=self._list(ids))
        return [(str(row[0]), str(row[1]), str(row[2])) for row in rows]

    def delete_chains(self, session: Session, ids: Sequence[str]) -> set[str]:
        """Delete chains with all that belongs to them; the ids that were there."""
        named = self._list(ids)
        self._run(session, "delete_references", ids=named)
        rows = self._run(session, "delete_chains", ids=named)
        keys = {(row[1], row[2]) for row in rows if isinstance(row[2], str)}
        if keys:
            items = [{"type_name": type_name, "key": key} for type_name, key in sorted(keys)]
            self._run(session, "delete_unused_keys", items=dumps(items))
        return {str(row[0]) for row in rows}

    def expired_chains(
        self, session: Session, type_name: str, status: str, age: float, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[str, datetime, bool]]:
        """Chain id, creation, and whether it may go."""
        at, identity = after or (None, None)
        position = {"after_at": iso(at), "after_id": identity}
        rows = self._run(session, "expired_chains", type_name=type_name, status=status, age=age, limit=limit, **position)
        return [(str(row[0]), self._rows.time(row[1]), bool(row[2])) for row in rows]

    # Tasks that one process at a time does

    def take_singleton(
        self, session: Session, name: str, owner: str, lease: float
    ) -> tuple[datetime | None, datetime | None] | None:
        """Last and next run, if it was taken."""
        rows = self._run(session, "take_singleton", name=name, owner=owner, lease=lease)
        return (self._rows.time(rows[0][0]), self._rows.time(rows[0][1])) if rows else None

    def finish_singleton(
        self, session: Session, name: str, owner: str, *, next_at: datetime | None = None, next_in: float | None = None
    ) -> bool:
        rows = self._run(session, "finish_singleton", name=name, owner=owner, next_at=iso(next_at), next_in=next_in)
        return bool(rows)

    def advance_singleton(
        self, session: Session, name: str, expected: datetime | None, next_at: datetime, *, schedule: str, ran: bool
    ) -> bool:
        """Whether it was us who moved it on; what `ran` is not, while its schedule is paused."""
        times = {"expected": iso(expected), "next_at": iso(next_at)}
        return bool(self._run(session, "advance_singleton", name=name, schedule=schedule, ran=ran, **times))

    def list_singletons(
        self, session: Session
    ) -> list[tuple[str, str | None, datetime | None, datetime | None, datetime | None]]:
        rows = self._run(session, "list_singletons")
        return [(row[0], row[1], *(self._rows.time(value) for value in row[2:5])) for row in rows]

    def make_older(self, session: Session, by: float) -> None:
        """For tests: move every time into the past."""
        for what in ("jobs", "attempts", "events", "singletons", "pauses", "workers", "rates"):
            self._run(session, f"make_{what}_older", by=by)

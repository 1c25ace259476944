"""One method per named query: Python values in, records out. No SQL text here, and no rule of the domain.

Batches travel as one JSON parameter, so that both dialects take the same values and every call is one round trip.
Records come back with `input` and `output` as JSON text; what they decode to is for the layers above, which know the job
types.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from queuert.codec.text import make_encoder
from queuert.model import Attempt, Chain, Job, Status
from queuert.storage.protocol import Row, Session
from queuert.storage.sqlfiles import CLAIMED_COLUMNS, JOB_COLUMNS, Names, queries

Item = Mapping[str, object]

_STATUS: Final = {status.value: status for status in Status}
_TIME_NAMES: Final = frozenset(name for name in JOB_COLUMNS if name.endswith("_at") or name == "leased_until")
_TIMES: Final = tuple(index for index, name in enumerate(JOB_COLUMNS) if name in _TIME_NAMES)
_STATUS_AT: Final = JOB_COLUMNS.index("status")
_SUSPECT_AT: Final = JOB_COLUMNS.index("suspect")
_IDS: Final = tuple(JOB_COLUMNS.index(name) for name in ("id", "chain_id", "continued_to"))
_CLAIMED_ID: Final = CLAIMED_COLUMNS.index("id")
_CLAIMED_TIMES: Final = tuple(name for name in CLAIMED_COLUMNS if name in _TIME_NAMES)

_JUST_CLAIMED: Final = {**dict.fromkeys(JOB_COLUMNS), "status": Status.RUNNING, "open_blockers": 0}
_COMPLETION: Final = {**dict.fromkeys(("outcome", "holder", "waited")), "strict": False}
_COMPLETED: Final = ("id", "token", "output", "outcome", "waited")
_CONTINUED: Final = (
    *("next_id", "next_type", "next_input", "next_priority", "next_at", "next_after", "next_max_attempts", "next_blockers"),
    "next_trace",
)
"""Their order in the lists that complete_jobs takes on SQLite."""
_NEW_CHAIN: Final = {"priority": 0, "blockers": 0, **dict.fromkeys(("at", "after", "key", "trace"))}
"""What an item need not say."""
_READS_Z: Final = sys.version_info >= (3, 11)

CLAIM_WINDOW: Final = 2.0  # candidates looked at for each job asked for, so that rows locked by others do not leave it short
WIDER: Final = 4
WIDEST_WINDOW: Final = 10_000


class Claim(NamedTuple):
    """What a claim has taken, as the database tells it."""

    rows: list[Row] | str
    worker: str
    token: int
    suspect: bool
    more: bool
    """Whether there may be more: it took as many as were asked for, or stepped over some that others have locked."""
    only: set[Any] | None = None
    """The ids of those that it has really taken, where not all of the rows were."""


class Finished(NamedTuple):
    """What a batch of completions did."""

    ids: set[str]
    """The jobs that are done."""
    freed: list[Freed]
    locked: set[str]
    """Jobs that were left out: somebody else has locked their rows."""
    fixed_snapshot: bool
    """Whether the transaction sees only what was committed before it began (never on SQLite)."""


class Ended(NamedTuple):
    """An attempt that was ended without completing."""

    id: str
    chain_id: str
    type_name: str
    status: Status
    scheduled_at: datetime


class Freed(NamedTuple):
    """A job that became pending, or was given its first status."""

    id: str
    type_name: str
    status: Status


class LeaseState(NamedTuple):
    """Who holds a job."""

    id: str
    status: Status
    leased_by: str | None
    lease_token: int | None


class Level(NamedTuple):
    """Pending jobs of one type and priority, and up to which time they were claimed already."""

    type_name: str
    priority: int
    since: datetime


class Running(NamedTuple):
    """A running job, for the statistics."""

    job_id: str
    type_name: str
    worker_id: str | None
    heartbeat_at: datetime | None
    attempt: int
    seconds: float


def iso(value: datetime | None) -> str | None:
    """A time as both databases take it: UTC, microseconds, fixed width."""
    if value is None:
        return None
    return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _parse_iso(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text if _READS_Z else text[:-1] + "+00:00")


def _as_is(value: Any) -> Any:
    return value


_encode: Final = make_encoder(ascii=True, allow_nan=True)


def _dumps(items: Iterable[object]) -> str:
    return _encode(items if isinstance(items, (list, tuple)) else list(items)) if items else "[]"


class Repository:
    """The named queries of one dialect."""

    def __init__(self, dialect: str, names: Names) -> None:
        self.dialect = dialect
        self.names = names
        self.queries = queries(dialect, names)
        self._time: Callable[[Any], Any] = _parse_iso if dialect == "sqlite" else _as_is
        # Ids are strings to the users, whatever the column's type.
        self._text_ids = (names.id_type or "text").lower() in ("text", "uuid")
        self._lowest_id: object = -(2**63) if "int" in (names.id_type or "").lower() else ""

    # Creating

    def insert_chains(
        self, session: Session, items: Sequence[Item], channel: str | None = None, *, new_ids: bool = False
    ) -> dict[str, datetime]:
        """Insert first jobs; when each was created, by id. One whose id exists is left out, unless all are known to be new."""
        if new_ids:
            return dict.fromkeys([str(item["id"]) for item in items], self._insert_new_chains(session, items, channel))
        rows = self._run(session, "insert_chains", items=_dumps(items), channel=channel)
        if not rows:
            return {}
        at = self._time(rows[0][1])
        return dict.fromkeys((str(item["id"]) for item in items) if rows[0][0] is None else (str(row[0]) for row in rows), at)

    def _insert_new_chains(self, session: Session, items: Sequence[Item], channel: str | None) -> datetime:
        if len(items) == 1:
            rows = session.run(self.queries["insert_chain"], {**_NEW_CHAIN, **items[0], "channel": channel})
        else:
            types = _dumps({item["type_name"]: None for item in items})
            rows = self._run(session, "insert_new_chains", items=_dumps(items), types=types, channel=channel)
        made_at: datetime = self._time(rows[0][1])
        return made_at

    def insert_plain(self, session: Session, params: Item) -> datetime:
        """Insert a first job whose id is known to be new, due now; when it was created. All is to be said, the channel too."""
        made_at: datetime = self._time(session.run(self.queries["insert_plain"], params)[0][1])
        return made_at

    def touch_keys(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "touch_keys", items=_dumps(items))

    def find_duplicates(self, session: Session, items: Sequence[Item]) -> dict[int, str]:
        """The chain that stands in the way, by the item's number `n`."""
        return {row[0]: str(row[1]) for row in self._run(session, "find_duplicates", items=_dumps(items))}

    def insert_blockers(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "insert_blockers", items=_dumps(items))

    def settle_blockers(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        rows = self._run(session, "settle_blockers", ids=_dumps(ids))
        return [Freed(str(row[0]), row[1], _STATUS[row[2]]) for row in rows]

    def waits_for(self, session: Session, ids: Sequence[str]) -> set[str]:
        return {str(row[0]) for row in self._run(session, "waits_for", ids=_dumps(ids))}

    # Working

    def claim_jobs(self, session: Session, **options: Any) -> list[Job]:
        """What `claim` takes, read at once."""
        return self.claimed_jobs(self.claim(session, **options))

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
        """Claim up to `limit` due jobs of the types in `leases`.

        With `levels`, only those are looked at, from the time each names on. What was claimed is read by `claimed_jobs`, after
        the transaction: on SQLite others wait for its end.
        """
        types = [] if levels else [{"name": name, "lease": lease} for name, lease in leases.items()]
        if self.dialect == "sqlite":  # it has no dead rows to step over, and looks for itself
            types = types or [{"name": name, "lease": lease} for name, lease in leases.items()]
            return self._claim_on_sqlite(session, worker, token, types, limit, suspect, held)
        known = [
            {"type_name": name, "priority": priority, "since": iso(since), "lease": leases[name]}
            for name, priority, since in levels
            if name in leases
        ]
        candidates = round(limit * window) + len(held)
        while True:
            rows = self._run(
                session,
                "claim_jobs",
                worker=worker,
                token=token,
                types=_dumps(types),
                levels=_dumps(known),
                suspect=suspect,
                held=_dumps(held),
                window=candidates,
                limit=limit,
            )
            found = [row[2:] for row in rows if row[2] is not None]  # one row tells only how many candidates there were
            # Every candidate was locked by somebody else while more may be due behind them: look further.
            more = rows[0][0] >= candidates
            if found or not more or candidates >= WIDEST_WINDOW:
                return Claim(found, worker, token, suspect, more or len(found) >= limit)
            candidates *= WIDER

    def _claim_on_sqlite(
        self, session: Session, worker: str, token: int, types: list[Any], limit: int, suspect: bool, held: Sequence[str]
    ) -> Claim:
        found = self._run(session, "find_due", types=_dumps(types), suspect=suspect, held=_dumps(held), limit=limit)
        won, now, jobs, number = found[0]
        if not number:  # a claim that finds nothing writes nothing
            return Claim("[]", worker, token, suspect, more=False)
        self._run(session, "take_due", worker=worker, token=token, won=won, now=now)
        only = None
        if session.changed < number:  # another process was there between the two
            only = {row[0] for row in self._run(session, "taken_ids", worker=worker, token=token, won=won)}
        return Claim(jobs, worker, token, suspect, number >= limit, only)

    def claim_head(
        self, session: Session, *, worker: str, token: int, type_name: str, lease: float, limit: int, held: Sequence[str] = ()
    ) -> Claim:
        """Claim up to `limit` due jobs among the first few of one type, on PostgreSQL. There may be more behind them."""
        rows = self._run(
            session,
            "claim_head",
            worker=worker,
            token=token,
            type=type_name,
            lease=lease,
            held=_dumps(held),
            window=round(limit * CLAIM_WINDOW),
            limit=limit,
        )
        return Claim(rows, worker, token, suspect=False, more=len(rows) >= limit)

    def claimed_with(self, session: Session, worker: str, token: int, *, suspect: bool = False) -> Claim:
        """What a claim has taken whose answer was lost."""
        rows = self._run(session, "claimed_with", worker=worker, token=token)
        return Claim(rows, worker, token, suspect, more=True)

    def claimed_jobs(self, claim: Claim) -> list[Job]:
        """The jobs of a claim, in claim order."""
        rows = json.loads(claim.rows) if isinstance(claim.rows, str) else claim.rows
        if claim.only is not None:
            rows = [row for row in rows if row[_CLAIMED_ID] in claim.only]
        jobs = self._claimed(rows, leased_by=claim.worker, lease_token=claim.token, suspect=claim.suspect)
        jobs.sort(key=_claim_order)
        return jobs

    def next_due(self, session: Session, types: Sequence[str]) -> float | None:
        """Seconds until the next pending job of these types is due: negative if it is, None if there is none."""
        rows = self._run(session, "next_due", types=_dumps(types))
        return float(rows[0][0]) if rows else None

    def renew_leases(self, session: Session, worker: str, items: Sequence[Item]) -> set[str]:
        return {str(row[0]) for row in self._run(session, "renew_leases", worker=worker, items=_dumps(items))}

    def lease_states(self, session: Session, ids: Sequence[str]) -> dict[str, LeaseState]:
        rows = self._run(session, "lease_states", ids=_dumps(ids))
        return {str(row[0]): LeaseState(str(row[0]), _STATUS[row[1]], row[2], row[3]) for row in rows}

    def lock_closing(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        name = "lock_closing" if wait else "lock_closing_now"
        return {str(row[0]) for row in self._run(session, name, ids=_dumps(ids))}

    def complete_jobs(
        self,
        session: Session,
        worker: str | None,
        items: Sequence[Item],
        *,
        closing: Sequence[str] = (),
        going_on: Sequence[str] = (),
        wait: bool = True,
        encoded: str | None = None,
    ) -> Finished:
        """Complete jobs, continue their chains, free who waited for the chains that end.

        On PostgreSQL the jobs `closing` and `going_on` are locked first, in this order; unless it may `wait`, items whose jobs
        somebody else has locked are left out. `encoded` is what `encode_completions` makes of the items.
        """
        if len(items) == 1 and (wait or self.dialect == "sqlite"):
            return self._complete_one(session, worker, items[0])
        encoded = self.encode_completions(items) if encoded is None else encoded
        if self.dialect == "sqlite":
            return self._complete_many_on_sqlite(session, worker, items, encoded)
        lists = {"closing": _dumps(closing), "going_on": _dumps(going_on)}
        return _finished(self._run(session, "complete_jobs", worker=worker, items=encoded, wait=wait, **lists))

    def encode_completions(self, items: Sequence[Item]) -> str:
        """The items as `complete_jobs` sends them: on SQLite, where others wait for its end, better done before."""
        if self.dialect == "postgres":
            return _dumps(items)
        # As lists: they are written and read faster than objects.
        names = (*_COMPLETED, *_CONTINUED) if any("next_id" in item for item in items) else _COMPLETED
        return _dumps([[item.get(name) for name in names] for item in items])

    def _complete_one(self, session: Session, worker: str | None, item: Item) -> Finished:
        query = self.queries["continue_job" if "next_id" in item else "complete_job"]
        rows = session.run(query, {**_COMPLETION, **item, "worker": worker})
        if self.dialect == "postgres":
            return _finished(rows)
        return self._finished_on_sqlite(session, {str(row[0]) for row in rows}, [str(row[1]) for row in rows if row[3]])

    def _complete_many_on_sqlite(self, session: Session, worker: str | None, items: Sequence[Item], encoded: str) -> Finished:
        continues = any("next_id" in item for item in items)
        rows = self._run(session, "complete_jobs", worker=worker, items=encoded, closing=None, going_on=continues, wait=None)
        # Only what is out of the ordinary comes back.
        special = json.loads(rows[0][0])
        ids = {str(item["id"]) for item in items}
        ids.difference_update([str(identity) for identity, chain_id in special if chain_id is None])
        return self._finished_on_sqlite(session, ids, [str(chain_id) for _, chain_id in special if chain_id is not None])

    def _finished_on_sqlite(self, session: Session, ids: set[str], awaited: Sequence[str]) -> Finished:
        freed = self._run(session, "release_dependants", chain_ids=_dumps(awaited)) if awaited else []
        return Finished(ids, [Freed(str(row[0]), row[1], Status.PENDING) for row in freed], set(), False)

    def end_attempts(self, session: Session, items: Sequence[Item]) -> list[Ended]:
        rows = self._run(session, "end_attempts", items=_dumps(items))
        return [Ended(str(r[0]), str(r[1]), r[2], _STATUS[r[3]], self._time(r[4])) for r in rows]

    def release_claims(self, session: Session, worker: str, items: Sequence[Item]) -> list[Freed]:
        rows = self._run(session, "release_claims", worker=worker, items=_dumps(items))
        return [Freed(str(row[0]), row[1], Status.PENDING) for row in rows]

    def clock(self, session: Session) -> datetime:
        now: datetime = self._time(self._run(session, "clock")[0][0])
        return now

    def lock_expired(self, session: Session, before: datetime, limit: int) -> list[Job]:
        return [self._job(row) for row in self._run(session, "lock_expired", before=iso(before), limit=limit)]

    # Chains

    def get_jobs(self, session: Session, ids: Sequence[str]) -> dict[str, Job]:
        jobs = [self._job(row) for row in self._run(session, "get_jobs", ids=_dumps(ids))]
        return {job.id: job for job in jobs}

    def get_chains(self, session: Session, ids: Sequence[str]) -> dict[str, Chain]:
        chains = [self._chain(row) for row in self._run(session, "get_chains", ids=_dumps(ids))]
        return {chain.id: chain for chain in chains}

    def lock_jobs(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        name = "lock_jobs" if wait else "lock_jobs_now"
        return {str(row[0]) for row in self._run(session, name, ids=_dumps(ids))}

    def get_tails(self, session: Session, ids: Sequence[str]) -> dict[str, Job]:
        """The tails, by chain id."""
        jobs = [self._job(row) for row in self._run(session, "get_tails", ids=_dumps(ids))]
        return {job.chain_id: job for job in jobs}

    def get_blockers(self, session: Session, ids: Sequence[str]) -> dict[str, list[Chain]]:
        """The blocker chains of each job that has any, in order."""
        found: dict[str, list[Chain]] = {}
        for row in self._run(session, "get_blockers", ids=_dumps(ids)):
            found.setdefault(str(row[0]), []).append(self._chain(row[1:]))
        return found

    def waiting_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return [str(row[0]) for row in self._run(session, "waiting_chains", ids=_dumps(ids))]

    def waiting_jobs(self, session: Session, ids: Sequence[str]) -> set[str]:
        return {str(row[0]) for row in self._run(session, "waiting_jobs", ids=_dumps(ids))}

    def blocker_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return [str(row[0]) for row in self._run(session, "blocker_chains", ids=_dumps(ids))]

    def connected_chains(self, session: Session, ids: Sequence[str]) -> list[str]:
        return [str(row[0]) for row in self._run(session, "connected_chains", ids=_dumps(ids))]

    def cancel_tails(self, session: Session, ids: Sequence[str], actor: str | None) -> list[tuple[str, str]]:
        """Job and chain id of what was cancelled."""
        rows = self._run(session, "cancel_tails", ids=_dumps(ids), actor=actor)
        return [(str(row[0]), str(row[1])) for row in rows]

    def retry_tails(self, session: Session, ids: Sequence[str], actor: str | None) -> list[Freed]:
        rows = self._run(session, "retry_tails", ids=_dumps(ids), actor=actor)
        return [Freed(str(row[0]), row[1], _STATUS[row[2]]) for row in rows]

    def missing_blockers(self, session: Session, ids: Sequence[str]) -> set[str]:
        return {str(row[0]) for row in self._run(session, "missing_blockers", ids=_dumps(ids))}

    def trigger_jobs(self, session: Session, ids: Sequence[str], actor: str | None) -> list[Freed]:
        rows = self._run(session, "trigger_jobs", ids=_dumps(ids), actor=actor)
        return [Freed(str(row[0]), row[1], Status.PENDING) for row in rows]

    def add_events(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "add_events", items=_dumps(items))

    def lock_chains(self, session: Session, ids: Sequence[str]) -> dict[str, str]:
        """Lock all jobs of the chains; the chain of each job."""
        return {str(row[0]): str(row[1]) for row in self._run(session, "lock_chains", ids=_dumps(ids))}

    def blocker_references(self, session: Session, ids: Sequence[str]) -> list[tuple[str, str, str]]:
        """Waiting job, its chain, and the chain it waits for."""
        rows = self._run(session, "blocker_references", ids=_dumps(ids))
        return [(str(row[0]), str(row[1]), str(row[2])) for row in rows]

    def delete_chains(self, session: Session, ids: Sequence[str]) -> set[str]:
        """Delete chains with all that belongs to them; the ids that were there."""
        named = _dumps(ids)
        self._run(session, "delete_references", ids=named)
        rows = self._run(session, "delete_chains", ids=named)
        keys = {(row[1], row[2]) for row in rows if row[2] is not None}
        if keys:
            items = [{"type_name": type_name, "key": key} for type_name, key in sorted(keys)]
            self._run(session, "delete_unused_keys", items=_dumps(items))
        return {str(row[0]) for row in rows}

    def expired_chains(
        self, session: Session, type_name: str, status: str, age: float, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[str, datetime, bool]]:
        """Chain id, creation, and whether it may go."""
        rows = self._run(
            session,
            "expired_chains",
            type_name=type_name,
            status=status,
            age=age,
            after_at=iso(after[0]) if after else None,
            after_id=after[1] if after else None,
            limit=limit,
        )
        return [(str(row[0]), self._time(row[1]), bool(row[2])) for row in rows]

    def chain_types(self, session: Session) -> list[str]:
        return [row[0] for row in self._run(session, "chain_types")]

    # Tasks that one process at a time does

    def take_singleton(
        self, session: Session, name: str, owner: str, lease: float
    ) -> tuple[datetime | None, datetime | None] | None:
        """Last and next run, if it was taken."""
        rows = self._run(session, "take_singleton", name=name, owner=owner, lease=lease)
        return (self._time(rows[0][0]), self._time(rows[0][1])) if rows else None

    def finish_singleton(
        self, session: Session, name: str, owner: str, *, next_at: datetime | None = None, next_in: float | None = None
    ) -> bool:
        rows = self._run(session, "finish_singleton", name=name, owner=owner, next_at=iso(next_at), next_in=next_in)
        return bool(rows)

    def advance_singleton(
        self, session: Session, name: str, expected: datetime | None, next_at: datetime, *, ran: bool
    ) -> bool:
        """Whether it was us who moved it on."""
        times = {"expected": iso(expected), "next_at": iso(next_at)}
        return bool(self._run(session, "advance_singleton", name=name, ran=ran, **times))

    def list_singletons(
        self, session: Session
    ) -> list[tuple[str, str | None, datetime | None, datetime | None, datetime | None]]:
        rows = self._run(session, "list_singletons")
        return [(row[0], row[1], *(self._time(value) for value in row[2:5])) for row in rows]

    def make_older(self, session: Session, by: float) -> None:
        """For tests: move every time into the past."""
        self._run(session, "make_older", by=by)

    # Listing

    def job_types(self, session: Session) -> list[str]:
        return [row[0] for row in self._run(session, "job_types")]

    def list_jobs(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._job(row) for row in self._run(session, f"list_jobs_{order}", **self._from_edge(order, filters))]

    def list_jobs_named(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._job(row) for row in self._run(session, f"list_jobs_named_{order}", **filters)]

    def list_chains(self, session: Session, order: str, **filters: object) -> list[Chain]:
        return [self._chain(row) for row in self._run(session, f"list_chains_{order}", **self._from_edge(order, filters))]

    def list_chains_named(self, session: Session, order: str, **filters: object) -> list[Chain]:
        return [self._chain(row) for row in self._run(session, f"list_chains_named_{order}", **filters)]

    def list_chain_jobs(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._job(row) for row in self._run(session, f"list_chain_jobs_{order}", **filters)]

    def list_blocked_jobs(self, session: Session, order: str, **filters: object) -> list[Job]:
        return [self._job(row) for row in self._run(session, f"list_blocked_jobs_{order}", **filters)]

    def _from_edge(self, order: str, filters: dict[str, object]) -> dict[str, object]:
        """Without a cursor SQLite would walk to the span's edge from the end of the index: make the edge the cursor."""
        edge = filters["since" if order == "asc" else "until"]
        if self.dialect != "sqlite" or filters["at"] is not None or edge is None:
            return filters
        return {**filters, "at": edge, "id": self._lowest_id}

    def list_attempts(self, session: Session, job_id: str) -> list[Attempt]:
        time = self._time
        return [
            Attempt(str(r[0]), r[1], r[2], time(r[3]), time(r[4]), time(r[5]), r[6], r[7], r[8], time(r[9]))
            for r in self._run(session, "list_attempts", job_id=job_id)
        ]

    def list_events(self, session: Session, job_id: str) -> list[tuple[str, datetime, str | None, dict[str, Any]]]:
        rows = self._run(session, "list_events", job_id=job_id)
        return [(row[0], self._time(row[1]), row[2], json.loads(row[3])) for row in rows]

    # Counting

    def count_jobs(
        self, session: Session, types: Sequence[str], statuses: Sequence[str], limit: int | None
    ) -> list[tuple[str, Status, int]]:
        rows = self._run(session, "count_jobs", types=_dumps(types), statuses=_dumps(statuses), limit=self._limit(limit))
        return [(row[0], _STATUS[row[1]], row[2]) for row in rows]

    def count_attempts(
        self, session: Session, types: Sequence[str], statuses: Sequence[str], limit: int | None
    ) -> list[tuple[str, int, int]]:
        """Type, attempts, number of jobs."""
        rows = self._run(session, "count_attempts", types=_dumps(types), statuses=_dumps(statuses), limit=self._limit(limit))
        return [(row[0], row[1], row[2]) for row in rows]

    def count_retries(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, int]]:
        """Type, attempts, number of pending jobs that have been tried before."""
        rows = self._run(session, "count_retries", types=_dumps(types), limit=self._limit(limit))
        return [(row[0], row[1], row[2]) for row in rows]

    def count_errors(self, session: Session, types: Sequence[str], limit: int | None) -> list[tuple[str, int, str]]:
        """Error code, number of jobs, and one of them."""
        rows = self._run(session, "count_errors", types=_dumps(types), limit=self._limit(limit))
        return [(row[0], row[1], str(row[2])) for row in rows]

    def count_stranded(self, session: Session, types: Sequence[str], limit: int | None) -> int:
        rows = self._run(session, "count_stranded", types=_dumps(types), limit=self._limit(limit))
        return int(rows[0][0])

    def longest_running(self, session: Session, types: Sequence[str], limit: int) -> list[Running]:
        rows = self._run(session, "longest_running", types=_dumps(types), limit=limit)
        return [Running(str(r[0]), r[1], r[2], self._time(r[3]), r[4], max(0.0, r[5])) for r in rows]

    # Rows to records

    def _run(self, session: Session, query: str, /, **params: object) -> list[Row]:
        return session.run(self.queries[query], params)

    def _limit(self, limit: int | None) -> int | None:
        # PostgreSQL reads LIMIT NULL as none, SQLite a negative one.
        return -1 if limit is None and self.dialect == "sqlite" else limit

    def _job(self, row: Row) -> Job:
        values = list(row)
        values[_STATUS_AT] = _STATUS[values[_STATUS_AT]]
        if self.dialect == "sqlite":
            for index in _TIMES:
                values[index] = _parse_iso(values[index])
            values[_SUSPECT_AT] = bool(values[_SUSPECT_AT])
        if not self._text_ids:
            for index in _IDS:
                values[index] = None if values[index] is None else str(values[index])
        # Hundreds of these are made a second: filling the dict is three times as fast as a frozen __init__.
        job = object.__new__(Job)
        job.__dict__.update(zip(JOB_COLUMNS, values, strict=True))
        return job

    def _claimed(self, rows: Iterable[Sequence[Any]], **lease: object) -> list[Job]:
        """The jobs of a claim. Thousands of these are made a second, and most of their times are the same."""
        known = {**_JUST_CLAIMED, **lease}
        times: dict[str, datetime | None] = {}
        jobs = []
        for row in rows:
            job = object.__new__(Job)
            values = job.__dict__
            values.update(known)
            values.update(zip(CLAIMED_COLUMNS, row, strict=True))
            if self.dialect == "sqlite":
                for name in _CLAIMED_TIMES:
                    text = values[name]
                    if text not in times:
                        times[text] = _parse_iso(text)
                    values[name] = times[text]
            if not self._text_ids:
                values["id"], values["chain_id"] = str(values["id"]), str(values["chain_id"])
            jobs.append(job)
        return jobs

    def _chain(self, row: Row) -> Chain:
        identity, type_name, status, input_, output, created, completed, tail, tail_type, code = row[:10]
        return Chain(
            id=str(identity),
            type_name=type_name,
            status=_STATUS[status],
            input=input_,
            output=output,
            created_at=self._time(created),
            completed_at=self._time(completed),
            tail_id=str(tail),
            tail_type_name=tail_type,
            error_code=code,
        )


def _finished(rows: Iterable[Row]) -> Finished:
    """What the rows of complete_jobs say on PostgreSQL."""
    done, locked, freed, fixed_snapshot = set(), set(), [], False
    for what, job_id, _, _, type_name, fixed in rows:
        if what == "done":
            done.add(str(job_id))
        elif what == "freed":
            freed.append(Freed(str(job_id), type_name, Status.PENDING))
        else:
            locked.add(str(job_id))
        fixed_snapshot = fixed_snapshot or fixed
    return Finished(done, freed, locked, fixed_snapshot)


def _claim_order(job: Job) -> tuple[int, datetime, str]:
    return (-job.priority, job.scheduled_at, job.id)

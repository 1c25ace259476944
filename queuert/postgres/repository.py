"""What the repository does its own way on PostgreSQL: row locks, arrays, functions, claims that skip what is locked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queuert.model import Job
from queuert.postgres.dialect import POSTGRES
from queuert.storage import loader
from queuert.storage.loader import Query
from queuert.storage.names import TABLES, Names
from queuert.storage.protocol import Block, Commit, Row, Session
from queuert.storage.records import Claim, Completed, Freed, Level, Released, RowReader, freed, iso
from queuert.storage.repository import CLAIM_WINDOW, Item, Repository, dumps
from queuert.storage.sizes import Sizes, TableSize

WIDER: Final = 4
WIDEST_WINDOW: Final = 10_000

FOREIGN_KEY_VIOLATION: Final = "23503"

_COMPLETION: Final = {**dict.fromkeys(("output", "outcome", "holder", "waited")), "strict": False, "checked": False}
_PLAIN: Final = re.compile(r"[\w.:+-]*").fullmatch


class _Encoded(NamedTuple):
    """The parameters of `complete_jobs`."""

    items: str
    outputs: str
    closing: str
    continuing: str


def array(values: Iterable[object]) -> str:
    """An array as PostgreSQL writes it: psycopg's own way takes several times as long."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    text = str(value)
    if _PLAIN(text) and text and text.upper() != "NULL":
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class PostgresRepository(Repository):
    """The operations on the tables in a PostgreSQL database."""

    completes_in_one_statement = True
    has_claim_head = True
    claims_from_hint = True

    def sizes(self, session: Session) -> Sizes:
        named = self._list(f"{self.names.prefix}{table}" for table in TABLES)
        rows = self._run(session, "table_sizes", schema=self.names.schema, tables=named)
        ((total, may_see_wal),) = self._run(session, "database_size")
        wal = int(self._run(session, "wal_size")[0][0]) if may_see_wal else None
        return Sizes([TableSize(*row) for row in rows], int(total), wal, None)

    def __init__(self, names: Names) -> None:
        text_ids = (names.id_type or "uuid").lower() in ("text", "uuid")
        super().__init__(names, loader.queries(POSTGRES, names), RowReader(text_ids=text_ids))

    def _list(self, values: Iterable[object]) -> str:
        return array(values)

    # Starting

    def insert_chain(self, session: Session, item: Item, channel: str | None = None) -> datetime:
        made_at: datetime = session.run(self.queries["start_chain"], {**item, "channel": channel})[0][0]
        return made_at

    def insert_chains(self, session: Session, items: Sequence[Item], channel: str | None = None) -> datetime:
        types = array({item["type_name"]: None for item in items})
        made_at: datetime = self._run(session, "start_chains", items=dumps(items), types=types, channel=channel)[0][0]
        return made_at

    def insert_named_chains(
        self, session: Session, items: Sequence[Item], channel: str | None = None
    ) -> tuple[datetime, set[str]]:
        types = array({item["type_name"]: None for item in items})
        rows = self._run(session, "start_named_chains", items=dumps(items), types=types, channel=channel)
        return rows[0][0], {str(row[2]) for row in rows if row[2] is not None}

    def missing_blocker(self, error: Exception) -> str | None:
        if getattr(error, "sqlstate", None) != FOREIGN_KEY_VIOLATION:
            return None
        named = re.search(r"\)=\((.+?)\)", str(error))  # the key is named as "(blocked_by_chain_id)=(...)"
        return named[1] if named else "named as a blocker"

    # Claiming

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
        types = [] if levels else [{"name": name, "lease": lease} for name, lease in leases.items()]
        known = [
            {"type_name": name, "priority": priority, "since": iso(since), "lease": leases[name]}
            for name, priority, since in levels
            if name in leases
        ]
        params = {"worker": worker, "token": token, "suspect": suspect, "held": array(held), "limit": limit}
        candidates = round(limit * window) + len(held)
        while True:
            rows = self._run(session, "claim_jobs", **params, types=dumps(types), levels=dumps(known), window=candidates)
            found = [row[2:] for row in rows if row[2] is not None]  # one row tells only how many candidates there were
            # Every candidate was locked by somebody else while more may be due behind them: look further.
            more = rows[0][0] >= candidates
            if found or not more or candidates >= WIDEST_WINDOW:
                return Claim(found, worker, token, suspect, more or len(found) >= limit)
            candidates *= WIDER

    def claim_head(
        self, session: Session, *, worker: str, token: int, type_name: str, lease: float, limit: int, held: Sequence[str] = ()
    ) -> Claim:
        params = {"worker": worker, "token": token, "type": type_name, "lease": lease, "held": array(held), "limit": limit}
        rows = self._run(session, "claim_head", **params, window=round(limit * CLAIM_WINDOW))
        return Claim(rows, worker, token, suspect=False, more=len(rows) >= limit)

    def claimed_with(self, session: Session, worker: str, token: int, *, suspect: bool = False) -> Claim:
        rows = self._run(session, "claimed_with", worker=worker, token=token)
        return Claim(rows, worker, token, suspect, more=True)

    # Leases

    signs_in_one_statement = True

    def renew_and_sign(
        self, session: Session, worker: str, items: Sequence[Item], sign: Item, rates: Sequence[Item]
    ) -> set[str]:
        params = {"items": dumps(items), "sign": json.dumps(sign), "rates": dumps(rates)}
        return {str(row[0]) for row in self._run(session, "renew_and_sign", worker=worker, **params)}

    def lock_limit_keys(self, session: Session, items: Sequence[Item]) -> None:
        if not items:
            return
        encoded = dumps(items)
        if len(self._run(session, "lock_limit_keys", items=encoded)) < len(items):
            self._run(session, "make_limit_keys", items=encoded)
            self._run(session, "lock_limit_keys", items=encoded)

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
        lists = {"levels": dumps(levels), "heads": dumps(heads), "held": array(held)}
        rows = self._run(session, "claim_limited", worker=worker, token=token, limit=limit, suspect=suspect, **lists)
        return Claim(rows, worker, token, suspect, more=True)

    # Completing

    def encode_completions(self, worker: str | None, items: Sequence[Item]) -> _Encoded:
        closing, continuing = _rows_to_lock(items)
        plain = [{name: value for name, value in item.items() if name != "output"} for item in items]
        return _Encoded(dumps(plain), array([item["output"] for item in items]), array(closing), array(continuing))

    def complete_jobs(
        self,
        session: Session,
        worker: str | None,
        items: Sequence[Item],
        *,
        wait: bool = True,
        encoded: _Encoded | None = None,
        snapshot_checked: bool = False,
    ) -> Completed:
        if len(items) == 1 and wait:
            return self._complete_one(session, worker, items[0], snapshot_checked)
        encoded = encoded or self.encode_completions(worker, items)
        params = {"worker": worker, "wait": wait, "checked": snapshot_checked, **encoded._asdict()}
        rows = session.run(self.queries["complete_jobs"], params)
        return _completed([str(item["id"]) for item in items], rows)

    def _complete_one(self, session: Session, worker: str | None, item: Item, snapshot_checked: bool) -> Completed:
        rows = session.run(self._query_for(item), {**_COMPLETION, **item, "worker": worker, "checked": snapshot_checked})
        return _completed([str(item["id"])], rows)

    def _query_for(self, item: Item) -> Query:
        return self.queries["continue_job" if "next_id" in item else "complete_job"]

    def complete_and_commit(self, block: Block, worker: str, item: Item) -> tuple[Completed, Commit | None] | None:
        params = {**_COMPLETION, **item, "worker": worker, "strict": True}
        sent = block.run_and_commit(self._query_for(item), params)
        if sent is None:
            return None
        rows, commit = sent
        return _completed([str(item["id"])] if commit else [], rows), commit

    def release_closed(self, session: Session, ids: Sequence[str]) -> Released:
        rows = self._run(session, "release_closed", ids=array(ids))
        return Released([freed(row[1:]) for row in rows if row[1] is not None], rows[0][0])

    def reopen_blockers(self, session: Session, ids: Sequence[str]) -> bool:
        return bool(self._run(session, "reopen_blockers", ids=array(ids))[0][0])

    def recount_blockers(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        return [freed(row) for row in self._run(session, "recount_blockers", ids=array(ids))]

    # Locking. Always in id order; what closes a chain before what only changes.

    def lock_closing(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        return self._lock(session, ids, (), wait=wait)

    def lock_jobs(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        return self._lock(session, (), ids, wait=wait)

    def lock_completions(self, session: Session, items: Sequence[Item], *, wait: bool) -> set[str]:
        locked = self._lock(session, *_rows_to_lock(items), wait=wait)
        return {str(item["id"]) for item in items if not {item["id"], item["chain_id"]} <= locked}

    def _lock(self, session: Session, closing: Iterable[str], changing: Iterable[str], *, wait: bool) -> set[str]:
        rows = self._run(session, "lock_rows", closing=array(closing), changing=array(changing), wait=wait)
        return {str(row[0]) for row in rows}

    def lock_tail(self, session: Session, chain_id: str) -> Job | None:
        self.lock_closing(session, [chain_id])
        tail = self.get_tails(session, [chain_id]).get(chain_id)
        if tail is None:
            return None
        # A claim or a reschedule may have come between: it locks the job alone.
        self.lock_closing(session, [tail.id])
        return self.get_jobs(session, [tail.id])[tail.id]


def _rows_to_lock(items: Sequence[Item]) -> tuple[list[str], list[str]]:
    """The jobs and first jobs that close their chains, and those whose chains go on."""
    closing = {name for item in items if item.get("next_id") is None for name in (item["id"], item["chain_id"])}
    going_on = {name for item in items if item.get("next_id") is not None for name in (item["id"], item["chain_id"])}
    return sorted(closing), sorted(going_on - closing)


def _completed(ids: Sequence[str], rows: Iterable[Row]) -> Completed:
    """What happened, from the rows that tell what was out of the ordinary."""
    told: dict[str, list[Row]] = {}
    for row in rows:
        told.setdefault(row[0], []).append(row)
    if "snapshot" in told:
        return Completed(set(), fixed_snapshot=True)
    locked = frozenset(str(row[1]) for row in told.get("locked", ()))
    lost = {str(row[1]) for row in told.get("lost", ())}
    return Completed(
        {identity for identity in ids if identity not in locked and identity not in lost},
        [freed(row[1:]) for row in told.get("freed", ())],
        locked,
    )

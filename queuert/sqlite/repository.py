"""What the repository does its own way on SQLite: one writer, so no row locks; lists as JSON; several statements for one act.

The first statement of each act is a write, and from then on nobody else can come between.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from queuert.model import Job, Status
from queuert.sqlite.dialect import SQLITE
from queuert.storage import loader
from queuert.storage.names import CLAIMED_COLUMNS, TABLES, Names
from queuert.storage.protocol import Row, Session
from queuert.storage.records import Claim, Completed, EndedAttempt, Freed, Level, Released, RowReader, freed, parse_iso
from queuert.storage.repository import CLAIM_WINDOW, Item, Repository, dumps
from queuert.storage.sizes import Sizes, TableSize

_CLAIMED_ID: Final = CLAIMED_COLUMNS.index("id")
# Their order in the lists that the queries of complete.sql take.
_COMPLETED: Final = ("id", "worker", "token", "output", "outcome", "holder", "waited")
_CONTINUED: Final = (
    *("next_id", "next_type", "next_input", "next_priority", "next_at", "next_after", "next_max_attempts", "next_blockers"),
    *("next_trace", "next_until", "next_on_failed", "next_limit_name", "next_limit_key", "next_limit_strict"),
)
_ONE: Final = dict.fromkeys(("outcome", "holder", "waited", "next_id"))


class SqliteRepository(Repository):
    """The operations on the tables in a SQLite database."""

    completes_in_one_statement = False
    _no_limit = -1

    def sizes(self, session: Session) -> Sizes:
        ((pages, free, size, path),) = self._run(session, "file_pages")
        found: dict[str, list[int]] = {}
        with suppress(sqlite3.OperationalError):  # a library without `dbstat`
            named = self._list(f"{self.names.prefix}{table}" for table in TABLES)
            for name, is_table, taken in self._run(session, "tree_sizes", tables=named):
                found.setdefault(name, [0, 0])[0 if is_table else 1] += taken
        wal = f"{path}-wal"
        return Sizes(
            [TableSize(name, own, indexes, None, None) for name, (own, indexes) in found.items()],
            pages * size,
            os.path.getsize(wal) if path and os.path.exists(wal) else 0,
            free * size,
        )

    def __init__(self, names: Names) -> None:
        id_type = (names.id_type or "text").lower()
        rows = RowReader(text_ids=id_type in ("text", "uuid"), parse_time=parse_iso)
        super().__init__(names, loader.queries(SQLITE, names), rows)
        self._lowest_id: object = -(2**63) if "int" in id_type else ""

    def _list(self, values: Iterable[object]) -> str:
        return dumps(values)

    # Starting

    def insert_chain(self, session: Session, item: Item, channel: str | None = None) -> datetime:
        made_at: datetime = self._rows.time(session.run(self.queries["insert_chain"], item)[0][0])
        return made_at

    def insert_chains(self, session: Session, items: Sequence[Item], channel: str | None = None) -> datetime:
        made_at: datetime = self._rows.time(self._run(session, "insert_chains", items=dumps(items))[0][0])
        return made_at

    def insert_named_chains(
        self, session: Session, items: Sequence[Item], channel: str | None = None
    ) -> tuple[datetime, set[str]]:
        ids = [str(item["id"]) for item in items]
        taken = self._ids(session, "take_write_lock", ids)  # from here on nobody else can take one
        if taken:
            return self.clock(session), set(ids).difference(taken)
        return self.insert_chains(session, items), set(ids)

    def missing_blocker(self, error: Exception) -> str | None:
        return None  # nobody can delete one meanwhile

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
        types = dumps([{"name": name, "lease": lease} for name, lease in leases.items()])
        found = self._run(session, "find_due", types=types, suspect=suspect, held=dumps(held), limit=limit)
        won, now, jobs, number = found[0]
        if not number:  # a claim that finds nothing writes nothing
            return Claim(("[]", None), worker, token, suspect, more=False)
        taken = session.change(self.queries["take_due"], {"worker": worker, "token": token, "won": won, "now": now})
        only = None
        if taken < number:  # another process was there between the two
            only = {row[0] for row in self._run(session, "taken_ids", worker=worker, token=token, won=won)}
        return Claim((jobs, only), worker, token, suspect, number >= limit)

    def claimed_jobs(self, claim: Claim) -> list[Job]:
        text, only = claim.rows
        rows = json.loads(text)
        if only is not None:
            rows = [row for row in rows if row[_CLAIMED_ID] in only]
        return self._rows.claimed(rows, claim)

    # Leases

    def renew_and_sign(
        self, session: Session, worker: str, items: Sequence[Item], sign: Item, rates: Sequence[Item]
    ) -> set[str]:
        self._run(session, "sign_of_life", worker=worker, sign=json.dumps(sign), rates=dumps(rates))
        return self.renew_leases(session, worker, items) if items else set()

    def no_claim(self, worker: str, token: int, suspect: bool) -> Claim:
        return Claim(("[]", None), worker, token, suspect, more=False)

    def lock_limit_keys(self, session: Session, items: Sequence[Item]) -> None:
        self._run(session, "make_limit_keys", items=dumps(items))

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
        lists = {"levels": dumps(levels), "heads": dumps(heads), "held": dumps(held)}
        params = {"worker": worker, "token": token, "limit": limit, "suspect": suspect, **lists}
        if not session.change(self.queries["claim_limited"], params):
            return self.no_claim(worker, token, suspect)
        jobs = self._run(session, "claimed_now", worker=worker, token=token)[0][0]
        return Claim((jobs, None), worker, token, suspect, more=True)

    # Completing

    def encode_completions(self, worker: str | None, items: Sequence[Item]) -> str:
        names = (*_COMPLETED, *_CONTINUED) if any("next_id" in item for item in items) else _COMPLETED
        return dumps([[worker if name == "worker" else item.get(name) for name in names] for item in items])

    def complete_jobs(
        self,
        session: Session,
        worker: str | None,
        items: Sequence[Item],
        *,
        wait: bool = True,
        encoded: str | None = None,
        snapshot_checked: bool = True,
    ) -> Completed:
        if len(items) == 1:
            return self._complete_one(session, worker, items[0])
        encoded = self.encode_completions(worker, items) if encoded is None else encoded
        number = session.change(self.queries["mark_completed"], {"items": encoded})
        if number < len(items):
            done = {row[0] for row in self._run(session, "completed_ids", items=encoded)} if number else set()
            items = [item for item in items if item["id"] in done]
            encoded = self.encode_completions(worker, items)
        if not items:
            return Completed(set())
        if any(item.get("outcome") for item in items):
            self._run(session, "insert_attempts", items=encoded)
        if any("next_id" in item for item in items):
            self._run(session, "insert_continuations", items=encoded)
        awaited = self._run(session, "awaited_chains", items=encoded)[0][0]
        return Completed({str(item["id"]) for item in items}, self._release(session, awaited) if awaited != "[]" else ())

    def _complete_one(self, session: Session, worker: str | None, item: Item) -> Completed:
        """In statements without JSON: jobs with `complete()` gain an eighth by it."""
        params = {**_ONE, **item, "worker": worker}
        if not session.change(self.queries["mark_one_completed"], params):
            return Completed(set())
        if params["outcome"] is not None:
            session.run(self.queries["insert_attempt"], params)
        ids = {str(item["id"])}
        if params["next_id"] is not None:
            self._run(session, "insert_continuations", items=self.encode_completions(worker, [item]))
            return Completed(ids)
        awaited = session.run(self.queries["is_awaited"], params)[0][0]
        return Completed(ids, self._release(session, dumps([item["chain_id"]])) if awaited else ())

    def _release(self, session: Session, chain_ids: str, *, completed: bool = True) -> list[Freed]:
        rows = self._run(session, "release_dependants", chain_ids=chain_ids, completed=completed)
        found = [freed(row[:3]) for row in rows if row[3] == "completed"]
        last = [str(row[0]) for row in rows if row[3] == "closed" and row[2] == "blocked" and row[4] <= 0]
        recounted = self.recount_blockers(session, last) if last else []
        return self._unblocked(session, found) + recounted

    def _unblocked(self, session: Session, found: Iterable[Freed]) -> list[Freed]:
        pending = [job for job in found if job.status is Status.PENDING]
        if pending:
            self.add_events(session, [{"job_id": job.id, "event": "UNBLOCKED", "detail": "{}"} for job in pending])
        return pending

    def release_closed(self, session: Session, ids: Sequence[str]) -> Released:
        return Released(self._release(session, dumps(ids), completed=False))

    def reopen_blockers(self, session: Session, ids: Sequence[str]) -> bool:
        self._run(session, "reopen_blockers", ids=dumps(ids))
        return False

    def recount_blockers(self, session: Session, ids: Sequence[str]) -> list[Freed]:
        return self._unblocked(session, [freed(row) for row in self._run(session, "recount_blockers", ids=dumps(ids))])

    def end_attempts(self, session: Session, items: Sequence[Item]) -> list[EndedAttempt]:
        encoded = dumps(items)
        rows = self._run(session, "end_attempts", items=encoded)
        if rows:
            ids = dumps([row[0] for row in rows])
            self._run(session, "insert_ended_attempts", items=encoded, ids=ids, now=rows[0][5])
        return [self._ended(row) for row in rows]

    # Locking. The first write takes the lock of the whole file.

    def lock_closing(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        return set(self._ids(session, "take_write_lock", ids))

    def lock_jobs(self, session: Session, ids: Sequence[str], *, wait: bool = True) -> set[str]:
        return set(self._ids(session, "take_write_lock", ids))

    def lock_completions(self, session: Session, items: Sequence[Item], *, wait: bool) -> set[str]:
        return set()

    def lock_tail(self, session: Session, chain_id: str) -> Job | None:
        self.lock_closing(session, [chain_id])
        return self.get_tails(session, [chain_id]).get(chain_id)

    # Listing

    def _list_by_age(self, session: Session, name: str, order: str, filters: dict[str, Any]) -> list[Row]:
        """Without a cursor SQLite would walk to the span's edge from the end of the index: make the edge the cursor."""
        edge = filters["since" if order == "asc" else "until"]
        if "job_ids" not in filters and filters["at"] is None and edge is not None:
            filters = {**filters, "at": edge, "id": self._lowest_id}
        return super()._list_by_age(session, name, order, filters)

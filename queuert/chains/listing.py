"""Listings: pages of jobs and chains by age.

What an index serves is read through it. The rest (what is stranded, whose it was, what an input holds) is looked for among the
rows that the other filters choose, no further than a limit for each page: the page says how many it looked at, and its cursor
goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from queuert.chains.new_chain import chain_id
from queuert.chains.pages import (
    ALL_STATUSES,
    UNCOMPLETED,
    PageRequest,
    checked_codes,
    checked_names,
    checked_statuses,
    checked_time,
    listed,
)
from queuert.chains.read import require_chain
from queuert.context import Context
from queuert.model import Chain, Job, Page, Status
from queuert.options import storable
from queuert.storage.listing import Position
from queuert.storage.protocol import Session

LOOKED_AT: Final = 2_000
"""Rows that one page looks at."""
MOST_KEYED: Final = 1_000
"""Chains of one deduplication key that are listed through the index; where there are more, it is looked for."""

Named = tuple[list[str] | None, list[str] | None]


@dataclass(frozen=True)
class Wanted:
    """What no index knows."""

    stranded: bool = False
    worker: str | None = None
    key: str | None = None
    fields: tuple[dict[str, Any], ...] = ()

    @property
    def anything(self) -> bool:
        return self != Wanted()


def checked_wanted(
    *,
    statuses: list[str] | None,
    worker: object = None,
    key: object = None,
    stranded: object = False,
    input: Mapping[str, Any] | None = None,
) -> tuple[Wanted, list[str] | None]:
    """What is wanted, and the states that it can be in."""
    for name, value in (("worker", worker), ("key", key)):
        if value is not None and not (isinstance(value, str) and value):
            raise TypeError(f"{name} must be a string that is not empty, not {value!r}.")
        if isinstance(value, str):
            storable(value, name)
    if not isinstance(stranded, bool):
        raise TypeError(f"stranded must be True or False, not {stranded!r}.")
    if stranded:  # nothing but a blocked job can be
        blocked = Status.BLOCKED.value
        statuses = [blocked] if statuses is None or blocked in statuses else []
    return Wanted(stranded, worker, key, tuple(_fields(input, ()))), statuses  # type: ignore[arg-type]  # checked above


def _fields(values: object, path: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    if values is None and not path:
        return
    if not isinstance(values, Mapping) or not values:
        raise TypeError(f"input must be a dict of fields and their values, such as {{'order_id': 7}}, not {values!r}.")
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"input must have names of fields as keys, not {name!r}.")
        inner = (*path, storable(name, "input"))
        if isinstance(value, Mapping):
            yield from _fields(value, inner)
        elif value is None or isinstance(value, (bool, int, float)):
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError(f"input: {value!r} is no JSON number.")
            yield {"path": inner, "value": value}
        elif isinstance(value, str):
            yield {"path": inner, "value": storable(value, "input")}
        else:
            raise TypeError(f"input: {name!r} is compared with a string, a number, True, False or None, not {value!r}.")


class Lister:
    """Lists the chains and jobs of one app."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    def list_jobs(
        self,
        *,
        types: Iterable[object] | None,
        chain_types: Iterable[object] | None,
        statuses: Iterable[object] | None,
        error_codes: Iterable[str] | None,
        job_ids: Iterable[object] | None,
        chain_ids: Iterable[object] | None,
        since: datetime | None,
        until: datetime | None,
        order: str,
        cursor: str | None,
        limit: int,
        conn: object | None,
        **choice: Any,
    ) -> Page[Job]:
        page = PageRequest("jobs", order, cursor, limit, self._context)
        filters: dict[str, Any] = {
            **page.params(),
            "chain_types": checked_names(chain_types, "chain_types"),
            "error_codes": checked_codes(error_codes),
            "since": checked_time(since, "since"),
            "until": checked_time(until, "until"),
        }
        wanted, states = checked_wanted(**choice, statuses=checked_statuses(statuses))
        filters |= {"types": checked_names(types, "types"), "statuses": states}
        named = self._ids(job_ids, chain_ids)
        if [] in filters.values() or (named is not None and [] in named):
            return Page([], None)  # an empty list as a filter lets nothing through

        def work(session: Session) -> Page[Job]:
            asked, left = self._by_key(session, wanted, named, filters["chain_types"])
            chosen = self._chosen(session, "jobs", filters, asked)
            if chosen is None:
                return Page([], None)
            if not left.anything:
                jobs = self._repository.list_jobs(session, order, **chosen)
                return page.of(jobs, lambda job: (job.created_at, job.id))
            found, next_cursor, looked_at = self._look(session, "jobs", page, order, chosen, left)
            records = self._repository.get_jobs(session, [position.id for position in found])
            return Page([records[each.id] for each in found if each.id in records], next_cursor, looked_at)

        read = self._context.read(conn, work)
        return Page([self._context.payloads.decode_job(job) for job in read.items], read.next_cursor, read.looked_at)

    def list_chains(
        self,
        *,
        types: Iterable[object] | None,
        statuses: Iterable[object] | None,
        error_codes: Iterable[str] | None,
        chain_ids: Iterable[object] | None,
        job_ids: Iterable[object] | None,
        root_only: bool,
        since: datetime | None,
        until: datetime | None,
        order: str,
        cursor: str | None,
        limit: int,
        conn: object | None,
        **choice: Any,
    ) -> Page[Chain]:
        page = PageRequest("chains", order, cursor, limit, self._context)
        filters: dict[str, Any] = {
            **page.params(),
            "root_only": bool(root_only),
            "error_codes": checked_codes(error_codes),
            "since": checked_time(since, "since"),
            "until": checked_time(until, "until"),
        }
        wanted, states = checked_wanted(**choice, statuses=checked_statuses(statuses))
        filters |= {"types": checked_names(types, "types"), "statuses": states}
        named = self._ids(job_ids, chain_ids)
        if [] in filters.values() or (named is not None and [] in named):
            return Page([], None)

        def work(session: Session) -> Page[Chain]:
            asked, left = self._by_key(session, wanted, named, filters["types"])
            chosen = self._chosen(session, "chains", filters, asked)
            if chosen is None:
                return Page([], None)
            if not left.anything:
                chains = self._repository.list_chains(session, order, **chosen)
                return page.of(chains, lambda chain: (chain.created_at, chain.id))
            found, next_cursor, looked_at = self._look(session, "chains", page, order, chosen, left)
            records = self._repository.get_chains(session, [position.id for position in found])
            return Page([records[each.id] for each in found if each.id in records], next_cursor, looked_at)

        read = self._context.read(conn, work)
        return Page([self._context.payloads.decode_chain(chain) for chain in read.items], read.next_cursor, read.looked_at)

    def _chosen(self, session: Session, what: str, filters: dict[str, Any], named: Named | None) -> dict[str, Any] | None:
        """The filters as the repository takes them; None if nothing can fit."""
        if named is not None:
            jobs, chains = named
            if jobs is not None and chains is not None:
                both = self._named_in_both(session, jobs, chains)
                jobs, chains = [job.id for job in both], None
                if not jobs:
                    return None
            return {**filters, "job_ids": jobs or [], "chain_ids": chains or []}
        possible = ALL_STATUSES if filters["error_codes"] is None else UNCOMPLETED  # a success clears the error
        types = filters["types"]
        if types is None:
            types = self._repository.job_types(session) if what == "jobs" else self._repository.chain_types(session)
        return {**filters, "types": types, "statuses": filters["statuses"] or list(possible)}

    def _by_key(
        self, session: Session, wanted: Wanted, named: Named | None, types: list[str] | None
    ) -> tuple[Named | None, Wanted]:
        """Chains with a deduplication key are known by name; what is then left to look for."""
        if wanted.key is None or named is not None:
            return named, wanted
        known = self._repository.chain_types(session) if types is None else types
        found = self._repository.keyed_chains(session, known, wanted.key, MOST_KEYED + 1)
        return ((None, found), replace(wanted, key=None)) if 0 < len(found) <= MOST_KEYED else (None, wanted)

    def _look(
        self, session: Session, what: str, page: PageRequest, order: str, chosen: dict[str, Any], wanted: Wanted
    ) -> tuple[list[Position], str | None, int]:
        """What fits among the next rows, the cursor that goes on behind the last one looked at, and how many these were."""
        rows = self._repository.scan(session, what, order, **{**chosen, "limit": LOOKED_AT})
        fits = self._fitting(session, rows, wanted)
        found: list[Position] = []
        looked_at = 0
        for row in rows:
            if len(found) == page.limit:
                break
            looked_at += 1
            if row.id in fits:
                found.append(row)
        more = looked_at < len(rows) or len(rows) == LOOKED_AT
        return found, page.cursor(rows[looked_at - 1].at, rows[looked_at - 1].id) if more else None, looked_at

    def _fitting(self, session: Session, rows: list[Position], wanted: Wanted) -> set[str]:
        """Of a chain, the input is that of its first job, and all else that of its newest."""
        by_tail = {row.tail_id: row.id for row in rows}
        fit = partial(self._repository.fitting_jobs, session)
        if any(tail != identity for tail, identity in by_tail.items()) and wanted.fields:
            first = fit(list(by_tail.values()), fields=wanted.fields)
            rest = replace(wanted, fields=())
            by_tail = {tail: identity for tail, identity in by_tail.items() if identity in first}
            if not rest.anything:
                return set(by_tail.values())
            wanted = rest
        kept = fit(list(by_tail), stranded=wanted.stranded, worker=wanted.worker, key=wanted.key, fields=wanted.fields)
        return {by_tail[tail] for tail in kept}

    def list_chain_jobs(self, ref: object, order: str, cursor: str | None, limit: int, conn: object | None) -> Page[Job]:
        identity = self._context.ids.check(chain_id(ref))
        page = PageRequest("chain-jobs", order, cursor, limit, self._context)
        after = page.index()

        def work(session: Session) -> list[Job]:
            require_chain(self._repository, session, identity)
            return self._repository.list_chain_jobs(session, order, chain_id=identity, index=after, limit=page.limit + 1)

        jobs = [self._context.payloads.decode_job(job) for job in self._context.read(conn, work)]
        return page.of(jobs, lambda job: (job.chain_index, job.id))

    def list_blocked_jobs(self, ref: object, order: str, cursor: str | None, limit: int, conn: object | None) -> Page[Job]:
        identity = self._context.ids.check(chain_id(ref))
        page = PageRequest("blocked-jobs", order, cursor, limit, self._context)

        def work(session: Session) -> list[Job]:
            require_chain(self._repository, session, identity)
            return self._repository.list_blocked_jobs(session, order, chain_id=identity, **page.params())

        jobs = [self._context.payloads.decode_job(job) for job in self._context.read(conn, work)]
        return page.of(jobs, lambda job: (job.created_at, job.id))

    def _ids(
        self, job_ids: Iterable[object] | None, chain_ids: Iterable[object] | None
    ) -> tuple[list[str] | None, list[str] | None] | None:
        if job_ids is None and chain_ids is None:
            return None
        check = self._context.ids.check
        return (
            None if job_ids is None else [check(getattr(ref, "id", ref)) for ref in listed(job_ids, "job_ids")],
            None if chain_ids is None else [check(chain_id(ref)) for ref in listed(chain_ids, "chain_ids")],
        )

    def _named_in_both(self, session: Session, job_ids: list[str], chain_ids: list[str]) -> list[Job]:
        """The named jobs that belong to the named chains."""
        found, wanted = self._repository.get_jobs(session, job_ids), set(chain_ids)
        return [job for job in found.values() if job.chain_id in wanted]

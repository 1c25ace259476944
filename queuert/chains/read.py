"""Reading chains and jobs: single records, pages, and waiting for a chain to close.

A cursor names the last row of a page by time and id, so pages stay stable while rows come and go, also where times are equal.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from queuert.chains.new_chain import chain_id
from queuert.context import Context
from queuert.errors import (
    ChainCancelledError,
    ChainFailedError,
    ChainNotFoundError,
    InvalidCursorError,
    JobNotFoundError,
    WaitTimeoutError,
)
from queuert.job_types import JobType, JobTypeOrName, check_type
from queuert.model import Chain, Job, Page, Status
from queuert.notify.protocol import Channel, Notice
from queuert.options import Duration, instant, seconds, storable
from queuert.storage.protocol import Session
from queuert.storage.records import iso

T = TypeVar("T", Job, Chain)

MAX_LIMIT: Final = 1_000
MAX_DEPTH: Final = 20  # chains that wait for chains: how far a wait that timed out looks for the one that holds it up
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
ALL_STATUSES: Final = tuple(status.value for status in Status)
UNCOMPLETED: Final = tuple(status.value for status in Status if status is not Status.COMPLETED)


class Reader:
    """Reads chains and jobs of one app."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    # Single records

    def job(self, id: object, type_name: JobTypeOrName | None, conn: object | None) -> Job | None:
        identity = self._context.ids.check(id)
        found = self._context.read(conn, lambda session: self._repository.get_jobs(session, [identity])).get(identity)
        if found is None:
            return None
        check_type(identity, type_name, found.type_name)
        return self._context.payloads.decode_job(found)

    def chain(self, ref: object, type_name: JobTypeOrName | None, conn: object | None) -> Chain | None:
        identity = self._context.ids.check(chain_id(ref))
        found = self._context.read(conn, lambda session: self._repository.get_chains(session, [identity])).get(identity)
        if found is None:
            return None
        check_type(identity, type_name, found.type_name)
        return self._context.payloads.decode_chain(found)

    def job_blockers(self, id: object, conn: object | None) -> list[Chain]:
        identity = self._context.ids.check(id)

        def work(session: Session) -> list[Chain]:
            found = self._repository.get_blockers(session, [identity]).get(identity)
            if found is None and not self._repository.get_jobs(session, [identity]):
                raise JobNotFoundError(identity)
            return [self._context.payloads.decode_chain(chain) for chain in found or []]

        return self._context.read(conn, work)

    def connected(self, ref: object, conn: object | None) -> list[Chain]:
        identity = self._context.ids.check(chain_id(ref))

        def work(session: Session) -> list[Chain]:
            self._require_chain(session, identity)
            ids = [other for other in self._repository.connected_chains(session, [identity]) if other != identity]
            found = self._repository.get_chains(session, ids) if ids else {}
            chains = sorted(found.values(), key=lambda chain: (chain.created_at, chain.id))
            return [self._context.payloads.decode_chain(chain) for chain in chains]

        return self._context.read(conn, work)

    def _require_chain(self, session: Session, identity: str) -> None:
        if identity not in self._repository.get_chains(session, [identity]):
            raise ChainNotFoundError(identity)

    # Pages

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
    ) -> Page[Job]:
        page = _Page("jobs", order, cursor, limit, self._context)
        named = self._ids(job_ids, chain_ids)
        filters = {
            **page.params(),
            "chain_types": _names(chain_types, "chain_types"),
            "error_codes": _codes(error_codes),
            "since": _time(since, "since"),
            "until": _time(until, "until"),
        }
        wanted, states = _names(types, "types"), _statuses(statuses)
        possible = ALL_STATUSES if error_codes is None else UNCOMPLETED  # a success clears the error

        def work(session: Session) -> list[Job]:
            if named is not None:
                jobs, chains = named
                if jobs is not None and chains is not None:
                    both = self._named_in_both(session, jobs, chains)
                    jobs, chains = [job.id for job in both], None
                ids = {"job_ids": jobs or [], "chain_ids": chains or []}
                return self._repository.list_jobs(session, order, **filters, **ids, types=wanted, statuses=states)
            known = self._repository.job_types(session) if wanted is None else wanted
            return self._repository.list_jobs(session, order, **filters, types=known, statuses=states or possible)

        if _nothing(wanted, states, named) or [] in (filters["chain_types"], filters["error_codes"]):
            return Page([], None)
        jobs = self._context.read(conn, work)
        return page.of([self._context.payloads.decode_job(job) for job in jobs], lambda job: (job.created_at, job.id))

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
    ) -> Page[Chain]:
        page = _Page("chains", order, cursor, limit, self._context)
        named = self._ids(job_ids, chain_ids)
        filters = {
            **page.params(),
            "root_only": bool(root_only),
            "error_codes": _codes(error_codes),
            "since": _time(since, "since"),
            "until": _time(until, "until"),
        }
        wanted, states = _names(types, "types"), _statuses(statuses)
        possible = ALL_STATUSES if error_codes is None else UNCOMPLETED  # a success clears the error

        def work(session: Session) -> list[Chain]:
            if named is not None:
                jobs, chains = named
                if jobs is not None and chains is not None:
                    both = self._named_in_both(session, jobs, chains)
                    jobs, chains = None, [job.chain_id for job in both]
                ids = {"job_ids": jobs or [], "chain_ids": chains or []}
                return self._repository.list_chains(session, order, **filters, **ids, types=wanted, statuses=states)
            known = self._repository.chain_types(session) if wanted is None else wanted
            return self._repository.list_chains(session, order, **filters, types=known, statuses=states or possible)

        if _nothing(wanted, states, named) or filters["error_codes"] == []:
            return Page([], None)
        chains = self._context.read(conn, work)
        return page.of([self._context.payloads.decode_chain(chain) for chain in chains], lambda c: (c.created_at, c.id))

    def list_chain_jobs(self, ref: object, order: str, cursor: str | None, limit: int, conn: object | None) -> Page[Job]:
        identity = self._context.ids.check(chain_id(ref))
        page = _Page("chain-jobs", order, cursor, limit, self._context)
        after = page.index()

        def work(session: Session) -> list[Job]:
            self._require_chain(session, identity)
            return self._repository.list_chain_jobs(session, order, chain_id=identity, index=after, limit=page.limit + 1)

        jobs = [self._context.payloads.decode_job(job) for job in self._context.read(conn, work)]
        return page.of(jobs, lambda job: (job.chain_index, job.id))

    def list_blocked_jobs(self, ref: object, order: str, cursor: str | None, limit: int, conn: object | None) -> Page[Job]:
        identity = self._context.ids.check(chain_id(ref))
        page = _Page("blocked-jobs", order, cursor, limit, self._context)

        def work(session: Session) -> list[Job]:
            self._require_chain(session, identity)
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
            None if job_ids is None else [check(getattr(ref, "id", ref)) for ref in _listed(job_ids, "job_ids")],
            None if chain_ids is None else [check(chain_id(ref)) for ref in _listed(chain_ids, "chain_ids")],
        )

    def _named_in_both(self, session: Session, job_ids: list[str], chain_ids: list[str]) -> list[Job]:
        """The named jobs that belong to the named chains."""
        found, wanted = self._repository.get_jobs(session, job_ids), set(chain_ids)
        return [job for job in found.values() if job.chain_id in wanted]

    # Waiting

    def wait_for(self, ref: object, *, timeout: Duration | None, poll_interval: Duration, raise_on_failure: bool) -> Chain:
        identity = self._context.ids.check(chain_id(ref))
        limit = None if timeout is None else seconds(timeout, "timeout")
        poll = seconds(poll_interval, "poll_interval", positive=True)
        deadline = None if limit is None else time.monotonic() + limit
        changed = threading.Event()

        def look_again(notice: Notice) -> None:
            if notice.payload in ("", identity):
                changed.set()

        with self._context.notifier.subscribe(look_again, channels={Channel.CHAIN_CLOSED}):
            while True:
                changed.clear()
                chain = self.chain(identity, None, None)
                if chain is None:
                    raise ChainNotFoundError(identity)
                if chain.status.closed:
                    return _closed(chain, raise_on_failure)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeoutError(identity, limit or 0.0, chain.status.value, self._waits_in_vain_for(chain))
                changed.wait(poll if left is None else min(poll, left))

    def _waits_in_vain_for(self, chain: Chain) -> dict[str, str]:
        """The chains that a blocked one waits for, itself or through others, and that did not complete: how each ended."""
        if chain.status is not Status.BLOCKED:
            return {}

        def work(session: Session) -> dict[str, str]:
            ended: dict[str, str] = {}
            seen, tails = {chain.id}, [chain.tail_id]
            for _ in range(MAX_DEPTH):
                blockers = [each for found in self._repository.get_blockers(session, tails).values() for each in found]
                ended |= {each.id: each.status.value for each in blockers if each.status in (Status.FAILED, Status.CANCELLED)}
                tails = [each.tail_id for each in blockers if each.status is Status.BLOCKED and each.id not in seen]
                seen |= {each.id for each in blockers}
                if not tails:
                    break
            return ended

        return self._context.read(None, work)


def _closed(chain: Chain, raise_on_failure: bool) -> Chain:
    if raise_on_failure and chain.status is Status.FAILED:
        raise ChainFailedError(
            f"Chain {chain.id} failed with {chain.error_code or 'no error code'}: app.timeline({chain.tail_id!r}) tells how.",
            chain,
        )
    if raise_on_failure and chain.status is Status.CANCELLED:
        raise ChainCancelledError(f"Chain {chain.id} was cancelled.", chain)
    return chain


class _Page:
    """The limits of one page, and the cursor to the next."""

    def __init__(self, listing: str, order: str, cursor: str | None, limit: int, context: Context) -> None:
        if order not in ("asc", "desc"):
            raise ValueError(f"order must be 'asc' or 'desc', not {order!r}.")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be a whole number, not {limit!r}.")
        if not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit must be from 1 to {MAX_LIMIT}, not {limit}.")
        self.limit = limit
        self._listing = f"{listing}-{order}"
        self._position = None if cursor is None else self._read(cursor, context)

    def params(self) -> dict[str, object]:
        at, identity = self._position or (None, None)
        if self._position is not None and not (isinstance(at, str) and _TIME.fullmatch(at)):
            raise InvalidCursorError()
        return {"at": at, "id": identity, "limit": self.limit + 1}

    def index(self) -> int | None:
        if self._position is None:
            return None
        index = self._position[0]
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31:
            raise InvalidCursorError()
        return index

    def of(self, records: Sequence[T], position: Any) -> Page[T]:
        """The page, of one record more than it shows if there is a next one."""
        shown = list(records[: self.limit])
        if len(records) <= self.limit:
            return Page(shown, None)
        at, identity = position(shown[-1])
        value = [self._listing, iso(at) if isinstance(at, datetime) else at, identity]
        text = json.dumps(value, separators=(",", ":"))
        return Page(shown, base64.urlsafe_b64encode(text.encode()).decode().rstrip("="))

    def _read(self, cursor: object, context: Context) -> tuple[Any, str]:
        if not isinstance(cursor, str):
            raise TypeError(f"cursor must be a string, not {type(cursor).__name__}.")
        try:
            text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            listing, at, identity = json.loads(text)
            if listing != self._listing:
                raise InvalidCursorError("The cursor belongs to another listing or order: start that one again without it.")
            if isinstance(at, str):
                datetime.fromisoformat(at[:-1])
            return at, context.ids.check(identity)
        except InvalidCursorError:
            raise
        except (ValueError, TypeError, binascii.Error, RecursionError) as error:
            raise InvalidCursorError() from error
        except Exception as error:  # a malformed id in it
            raise InvalidCursorError() from error


def _listed(values: Iterable[object], name: str) -> list[object]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}.")
    return list(values)  # once: it may be a generator


def _names(types: Iterable[object] | None, name: str) -> list[str] | None:
    if types is None:
        return None
    names = [t.name if isinstance(t, JobType) else t for t in _listed(types, name)]
    for entry in names:
        if not isinstance(entry, str):
            raise TypeError(f"{name} must hold job types or their names, not {entry!r}.")
    return sorted({storable(str(entry), name) for entry in names})


def _statuses(statuses: Iterable[object] | None) -> list[str] | None:
    if statuses is None:
        return None
    try:
        return sorted({Status(status).value for status in _listed(statuses, "statuses")})
    except ValueError as error:
        raise ValueError(f"{error}; a status is one of {', '.join(ALL_STATUSES)}.") from None


def _codes(codes: Iterable[str] | None) -> list[str] | None:
    if codes is None:
        return None
    listed = _listed(codes, "error_codes")
    for code in listed:
        if not isinstance(code, str):
            raise TypeError(
                f"error_codes must hold codes such as 'TIMEOUT:GATEWAY', or 'TIMEOUT:' for all of them, not {code!r}."
            )
    return sorted({storable(str(code), "error_codes") for code in listed})


def _time(value: datetime | None, name: str) -> str | None:
    return None if value is None else iso(instant(value, name))


def _nothing(
    types: list[str] | None, statuses: list[str] | None, named: tuple[list[str] | None, list[str] | None] | None
) -> bool:
    """An empty list as a filter lets nothing through."""
    return types == [] or statuses == [] or (named is not None and [] in named)

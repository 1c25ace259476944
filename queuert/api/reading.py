"""Looking at jobs and chains: one, pages of them, their history, how things stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from queuert.chains.finding import find_id
from queuert.chains.history import History, Stats
from queuert.chains.limits import Limits, LimitStatus
from queuert.chains.listing import Lister
from queuert.chains.new_chain import ChainRef
from queuert.chains.progress import progress
from queuert.chains.read import Reader
from queuert.chains.why import Explainer, Why
from queuert.context import Context
from queuert.ids import Id
from queuert.job_types import JobTypeOrName
from queuert.model import Attempt, Chain, Job, Page, Progress, Status, TimelineEntry, WorkerInfo
from queuert.options import Duration

OutputT = TypeVar("OutputT")


class Reads:
    """Read, list, wait."""

    _context: Context
    _reader: Reader
    _lister: Lister
    _history: History
    _explainer: Explainer
    _limits: Limits

    def get_job(self, id: Id, *, type_name: JobTypeOrName | None = None, conn: Any = None) -> Job | None:
        """A job, or None; JobTypeMismatchError if its type is another than asked for."""
        return self._reader.job(id, type_name, conn)

    def get_chain(self, id: ChainRef, *, type_name: JobTypeOrName | None = None, conn: Any = None) -> Chain | None:
        """A chain, or None; JobTypeMismatchError if its type is another than asked for."""
        return self._reader.chain(id, type_name, conn)

    def find_id(self, text: Id, *, conn: Any = None) -> str:
        """The id of the job that is meant by a part of it: any beginning or end of at least 6 characters that only one job has.

        JobNotFoundError if there is none, AmbiguousIdError if there are several. A chain's id is that of its first job. An end
        is looked for among the million newest jobs.
        """
        return find_id(self._context, text, conn)

    def get_job_blockers(self, job_id: Id, *, conn: Any = None) -> list[Chain]:
        """The chains that a job was given as blockers, in order."""
        return self._reader.job_blockers(job_id, conn)

    def connected_chains(self, chain_id: ChainRef, *, conn: Any = None) -> list[Chain]:
        """All chains linked to this one by blockers, directly or through others, in either direction."""
        return self._reader.connected(chain_id, conn)

    def list_jobs(
        self,
        *,
        types: Iterable[JobTypeOrName] | None = None,
        chain_types: Iterable[JobTypeOrName] | None = None,
        statuses: Iterable[Status | str] | None = None,
        error_codes: Iterable[str] | None = None,
        job_ids: Iterable[Job | ChainRef] | None = None,
        chain_ids: Iterable[ChainRef] | None = None,
        worker: str | None = None,
        key: str | None = None,
        stranded: bool = False,
        input: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["asc", "desc"] = "desc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Job]:
        """A page of jobs by creation. Of `error_codes`, one that ends in a colon stands for its whole category.

        `worker`, an id or a name, has them in hand or has tried them; `key` is a deduplication key, or else a limit's; what is
        `stranded` waits for a chain that failed or was cancelled; `input` names fields with their values, as {"order_id": 7} or
        {"customer": {"name": "Ann"}}. These are looked for, 2,000 rows a page: see `Page.looked_at`.
        """
        return self._lister.list_jobs(
            types=types,
            chain_types=chain_types,
            statuses=statuses,
            error_codes=error_codes,
            job_ids=job_ids,
            chain_ids=chain_ids,
            worker=worker,
            key=key,
            stranded=stranded,
            input=input,
            since=since,
            until=until,
            order=order,
            cursor=cursor,
            limit=limit,
            conn=conn,
        )

    def list_chains(
        self,
        *,
        types: Iterable[JobTypeOrName] | None = None,
        statuses: Iterable[Status | str] | None = None,
        error_codes: Iterable[str] | None = None,
        chain_ids: Iterable[ChainRef] | None = None,
        job_ids: Iterable[Job | ChainRef] | None = None,
        root_only: bool = False,
        worker: str | None = None,
        key: str | None = None,
        stranded: bool = False,
        input: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["asc", "desc"] = "desc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Chain]:
        """A page of chains by creation, with the filters of `list_jobs`: `input` is the chain's, all else its newest job's."""
        return self._lister.list_chains(
            types=types,
            statuses=statuses,
            error_codes=error_codes,
            chain_ids=chain_ids,
            job_ids=job_ids,
            root_only=root_only,
            worker=worker,
            key=key,
            stranded=stranded,
            input=input,
            since=since,
            until=until,
            order=order,
            cursor=cursor,
            limit=limit,
            conn=conn,
        )

    def list_chain_jobs(
        self,
        chain_id: ChainRef,
        *,
        order: Literal["asc", "desc"] = "asc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Job]:
        """A page of the jobs of a chain, in the order of the chain."""
        return self._lister.list_chain_jobs(chain_id, order, cursor, limit, conn)

    def list_blocked_jobs(
        self,
        chain_id: ChainRef,
        *,
        order: Literal["asc", "desc"] = "desc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Job]:
        """A page of the jobs that a chain blocks now."""
        return self._lister.list_blocked_jobs(chain_id, order, cursor, limit, conn)

    @overload
    def wait_for(
        self,
        chain: Chain[OutputT],
        *,
        timeout: Duration | None = None,
        poll_interval: Duration = 1.0,
        raise_on_failure: bool = True,
    ) -> Chain[OutputT]: ...

    @overload
    def wait_for(
        self,
        chain: Id,
        *,
        timeout: Duration | None = None,
        poll_interval: Duration = 1.0,
        raise_on_failure: bool = True,
    ) -> Chain[Any]: ...

    def wait_for(
        self,
        chain: ChainRef,
        *,
        timeout: Duration | None = None,
        poll_interval: Duration = 1.0,
        raise_on_failure: bool = True,
    ) -> Chain[Any]:
        """Wait until a chain has closed."""
        return self._reader.wait_for(chain, timeout=timeout, poll_interval=poll_interval, raise_on_failure=raise_on_failure)

    @overload
    def result(self, chain: Chain[OutputT], *, timeout: Duration | None = None) -> OutputT: ...

    @overload
    def result(self, chain: Id, *, timeout: Duration | None = None) -> Any: ...

    def result(self, chain: ChainRef, *, timeout: Duration | None = None) -> Any:
        """The output of a chain, once it is completed; ChainFailedError or ChainCancelledError if it ends otherwise."""
        return self.wait_for(chain, timeout=timeout).output

    def progress(self, chain: ChainRef, *, conn: Any = None) -> Progress:
        """How far a chain is: by its blockers while it waits for them, then by what its handler tells (`job.progress`).

        1.0 when it is completed; ChainNotFoundError if there is none.
        """
        return progress(self._context, chain, conn)

    # History

    def attempts(self, job_id: Id, *, limit: int | None = None, before: int | None = None, conn: Any = None) -> list[Attempt]:
        """The finished attempts of a job, oldest first: all, or the last `limit` of those `before` an attempt's number."""
        return self._history.attempts(job_id, conn, limit=limit, before=before)

    def timeline(
        self, job_id: Id, *, limit: int | None = None, before: int | None = None, conn: Any = None
    ) -> list[TimelineEntry]:
        """What happened to a job, in order: with a `limit`, by its last attempts, of those `before` an attempt's number."""
        return self._history.timeline(job_id, conn, limit=limit, before=before)

    def why(self, job_id: Id, *, conn: Any = None) -> Why:
        """Why a job does not run, and until when: a sentence for each reason; JobNotFoundError if there is none."""
        return self._explainer.why(job_id, conn)

    def workers(self, *, conn: Any = None) -> list[WorkerInfo]:
        """Who is there, of every process: a sign of life comes at most every 5 seconds, and is `lost` after three that did not.

        A worker that was stopped is gone at once; workers of version 0.1.0 are not here.
        """
        return self._history.workers(conn)

    def stats(
        self, *, types: Iterable[JobTypeOrName] | None = None, count_limit: int | None = 10_000, conn: Any = None
    ) -> Stats:
        """How things stand: counts, the oldest, retries, errors, what is stranded."""
        return self._history.stats(types, count_limit, conn)

    def limits(self, *, conn: Any = None) -> list[LimitStatus]:
        """The limits that are in use, with each key: what runs, what waits, when the next may start."""
        return self._limits.list(conn)

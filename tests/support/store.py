"""A database with everything around it that the storage tests need: to start, claim, end and look at jobs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from queuert.chains.attempts import end_attempts, release_claims
from queuert.chains.complete import Completion, complete
from queuert.chains.continuing import NextJob, next_job
from queuert.chains.history import History
from queuert.chains.listing import Lister
from queuert.chains.new_chain import NewChain
from queuert.chains.operate import Operator
from queuert.chains.outside import complete_from_outside
from queuert.chains.read import Reader
from queuert.chains.retention import Cleaner
from queuert.chains.start import Starter
from queuert.context import Context, Settings
from queuert.ids import Ids
from queuert.job_types import JobTypes
from queuert.model import Chain, Job
from queuert.notify.in_process import InProcessNotifier
from queuert.options import Retention
from queuert.sqlite.database import SqliteDatabase
from queuert.storage.loader import Query
from queuert.storage.migrations import migrate
from queuert.storage.names import TABLES, Names
from queuert.storage.protocol import Database, Session
from queuert.storage.records import Completed

T = TypeVar("T")

TYPES = ("a", "b", "c")
PAST = "2000-01-01T00:00:00.000000Z"
CONTENT = [table for table in TABLES if table != "migration"]


def open_database(url: str, **options: Any) -> Database:
    if url.startswith("sqlite"):
        return SqliteDatabase(url.removeprefix("sqlite:///"), synchronous="normal", **options)
    from queuert.postgres.database import PostgresDatabase

    return PostgresDatabase(url, **options)


class Chains(Operator):
    """What the domain does to chains, on one context."""

    def complete(self, *args: Any, **options: Any) -> Completed:
        return complete(self._context, *args, **options)

    def next_job(self, *args: Any, **options: Any) -> NextJob:
        return next_job(self._context, *args, **options)

    def end_attempts(self, *args: Any) -> set[str]:
        return end_attempts(self._context, *args)

    def release_claims(self, *args: Any) -> set[str]:
        return release_claims(self._context, *args)

    def complete_from_outside(self, *args: Any) -> Any:
        return complete_from_outside(self._context, *args)


class Store:
    """One migrated database, and the layers that work on it."""

    def __init__(
        self, url: str, *, types: Iterable[str] = TYPES, history: str = "all", database: Database | None = None, **options: Any
    ) -> None:
        self.url = url
        self.names = Names()
        self._lent = database is not None
        self.database: Any = database or open_database(url, **options)
        self.dialect = self.database.dialect.name
        registry = JobTypes()
        for name in types:
            registry.declare(name)
        self.type_names = tuple(types)
        self.context = Context(self.database, self.names, registry, InProcessNotifier(), Ids(), Settings(history=history))
        self.repository = self.context.repository
        self.starter = Starter(self.context)
        self.chains = Chains(self.context)
        self.reader = Reader(self.context)
        self.lister = Lister(self.context)
        self.history = History(self.context)
        self.cleaner = Cleaner(self.context, Retention())
        self._tokens = itertools.count(1)

    def __repr__(self) -> str:
        return f"Store({self.dialect})"

    def migrate(self) -> None:
        migrate(self.database, self.names)

    def close(self) -> None:
        self.context.notifier.close()
        if not self._lent:
            self.database.close()

    # Sessions

    def write(self, work: Callable[[Session], T]) -> T:
        result: T = self.database.run(work)
        return result

    def read(self, work: Callable[[Session], T]) -> T:
        with self.database.read() as session:
            return work(session)

    def sql(self, text: str, session: Session | None = None, **params: object) -> list[tuple[Any, ...]]:
        """Run a statement of the test's own, written like those of the library."""
        query = self.query(text)
        if session is not None:
            return session.run(query, params)
        return self.write(lambda own: own.run(query, params))

    def query(self, text: str) -> Query:
        text = re.sub(r"\{(\w+)\}", lambda token: self.database.dialect.tokens(self.names)[token[1]], text)
        if self.dialect != "postgres":
            return Query("test", (re.sub(r"::\w+", "", text),))
        params = tuple(dict.fromkeys(re.findall(r"(?<!:):([a-z_]\w*)", text)))
        text = re.sub(r"(?<!:):([a-z_]\w*)", lambda match: f"${params.index(match[1]) + 1}", text)
        return Query("test", (text,), params)

    def tables(self, session: Session | None = None) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table."""

        def look(own: Session) -> dict[str, list[tuple[Any, ...]]]:
            return {
                table: sorted(self.sql(f"SELECT * FROM {{{table}}}", own), key=lambda row: tuple(map(str, row)))
                for table in CONTENT
            }

        return look(session) if session is not None else self.read(look)

    def empty(self) -> None:
        def work(session: Session) -> None:
            for table in (
                "job_blocker",
                "job_attempt",
                "job_event",
                "job_key",
                "singleton",
                "worker",
                "worker_rate",
                "pause",
                "job",
            ):
                self.sql(f"DELETE FROM {{{table}}}", session)

        self.write(work)

    # Starting

    def start(self, type_name: str = "a", input: object = None, *, conn: object = None, **options: Any) -> Chain:
        return self.starter.start([NewChain(type_name, input, **options)], conn)[0]

    def start_many(self, number: int, type_name: str = "a", **options: Any) -> list[Chain]:
        return self.starter.start([NewChain(type_name, n, **options) for n in range(number)], None)

    # Working

    def claim(
        self,
        limit: int = 10,
        types: Sequence[str] = TYPES,
        *,
        worker: str = "w1",
        token: int | None = None,
        lease: float = 60,
        session: Session | None = None,
        **options: Any,
    ) -> list[Job]:
        leases = dict.fromkeys(types, lease)
        token = next(self._tokens) if token is None else token

        def work(own: Session) -> list[Job]:
            return self.repository.claim_jobs(own, worker=worker, token=token, leases=leases, limit=limit, **options)

        return work(session) if session is not None else self.write(work)

    def claim_head(self, limit: int = 10, type_name: str = "a", *, session: Session | None = None, **options: Any) -> list[Job]:
        """What an idle worker claims when it hears of a job, on PostgreSQL."""
        options = {"worker": "w1", "token": next(self._tokens), "lease": 60.0, **options}

        def work(own: Session) -> list[Job]:
            claim = self.repository.claim_head(own, type_name=type_name, limit=limit, **options)
            return self.repository.claimed_jobs(claim)

        return work(session) if session is not None else self.write(work)

    def complete(
        self,
        *jobs: Job,
        output: str = "null",
        then: NextJob | None = None,
        worker: str | None = None,
        wait: bool = True,
        session: Session | None = None,
    ) -> Completed:
        completions = [Completion(job, None if then else output, job.lease_token, then, 0.0) for job in jobs]
        holder = worker or (jobs[0].leased_by if jobs else "w1")

        def work(own: Session) -> Completed:
            return self.chains.complete(own, holder, completions, wait=wait)

        return work(session) if session is not None else self.write(work)

    def finish(self, chain: Chain | str, output: object = None, *, conn: object = None) -> None:
        """Complete a chain from outside."""
        identity = chain if isinstance(chain, str) else chain.id
        with self.chains.complete_from_outside(identity, conn, None) as tail:
            tail.finish(output)

    def proceed(self, job: Job, type_name: str = "b", **options: Any) -> Job:
        """Complete a claimed job with a continuation; the continuation."""
        following = self.chains.next_job(job, type_name, **options)
        assert self.complete(job, then=following).ids == {job.id}
        return self.job(following.columns["next_id"])

    def end(self, job: Job, session: Session | None = None, **values: Any) -> set[str]:
        item = {
            "id": job.id,
            "worker": job.leased_by,
            "token": job.lease_token,
            "status": "pending",
            "forgive": 0,
            "outcome": "failed",
            "code": "TEST:FAILED",
            "detail": "it failed",
            "error": "Traceback ...",
            "at": None,
            "after": None,
            "waited": None,
            **values,
        }
        if session is not None:
            return self.chains.end_attempts(session, [item])
        return self.write(lambda own: self.chains.end_attempts(own, [item]))

    def fail(self, job: Job, **values: Any) -> set[str]:
        return self.end(job, status="failed", **values)

    def renew(self, *jobs: Job, worker: str | None = None, lease: float = 60) -> set[str]:
        items = [{"id": job.id, "token": job.lease_token, "lease": lease} for job in jobs]
        holder = worker or jobs[0].leased_by or ""
        return self.write(lambda session: self.repository.renew_leases(session, holder, items))

    def release(self, *jobs: Job) -> set[str]:
        items = [{"id": job.id, "token": job.lease_token} for job in jobs]
        return self.write(lambda session: self.chains.release_claims(session, jobs[0].leased_by or "", items))

    def expire(self, *jobs: Job | str) -> None:
        """Let the leases of these jobs have ended long ago."""
        for job in jobs:
            identity = job if isinstance(job, str) else job.id
            self.sql("UPDATE {job} SET leased_until = :past WHERE id = :id", past=PAST, id=identity)

    def expired(self, limit: int = 100, session: Session | None = None) -> list[Job]:
        def work(own: Session) -> list[Job]:
            return self.repository.lock_expired(own, self.repository.clock(own), limit)

        return work(session) if session is not None else self.write(work)

    def reap(self, limit: int = 100) -> set[str]:
        """What the reaper does: end the attempts whose leases have ended, in one transaction."""

        def work(session: Session) -> set[str]:
            ended: set[str] = set()
            for job in self.expired(limit, session):
                over = job.max_attempts is not None and job.attempts_used >= job.max_attempts
                ended |= self.end(
                    job, session, status="failed" if over else "pending", outcome="lost", code="WORKER:LOST", after=0
                )
            return ended

        return self.write(work)

    # Looking

    def job(self, ref: Job | Chain | str) -> Job:
        identity = ref if isinstance(ref, str) else ref.id
        return self.read(lambda session: self.repository.get_jobs(session, [identity]))[identity]

    def chain(self, ref: Chain | Job | str) -> Chain:
        identity = ref if isinstance(ref, str) else ref.id
        return self.read(lambda session: self.repository.get_chains(session, [identity]))[identity]

    def attempts(self, ref: Job | Chain | str) -> list[Any]:
        return self.history.attempts(ref if isinstance(ref, str) else ref.id, None)

    def events(self, ref: Job | Chain | str) -> list[str]:
        identity = ref if isinstance(ref, str) else ref.id
        rows = self.read(lambda session: self.repository.list_events(session, identity))
        return [event for event, *_ in rows]

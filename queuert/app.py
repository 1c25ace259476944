"""`Queuert`: what users hold. Short methods that check who is asked and pass the question on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from queuert.chains.acts import Chains, ChainTail, checked_actor, ids_of
from queuert.chains.history import History, Stats
from queuert.chains.periodic import Missed, PeriodicStatus, Ticker
from queuert.chains.read import Reader
from queuert.chains.retention import Cleaner, Progress
from queuert.chains.start import ChainOptions, ChainRef, NewChain, Starter
from queuert.context import Engine, Settings
from queuert.error_codes import ErrorCodes, checked
from queuert.hooks import Hooks
from queuert.ids import Id, Ids
from queuert.job_types import BackoffOption, DefinesJobTypes, InputOf, JobType, JobTypeOrName, JobTypes
from queuert.model import Attempt, Chain, Job, Page, Status, TimelineEntry
from queuert.notify.in_process import InProcessNotifier
from queuert.notify.protocol import Notifier
from queuert.options import UNSET, Dedup, Duration, Lease, Retention, _Unset, seconds
from queuert.sqlite.database import SqliteDatabase
from queuert.storage import migrations
from queuert.storage.migrations import MigrationStatus
from queuert.storage.protocol import Database, Provider
from queuert.storage.repository import Repository
from queuert.storage.sqlfiles import TABLES, Names
from queuert.storage.urls import parse_target
from queuert.worker.drain import drain
from queuert.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.postgres.database import PostgresDatabase

InputT = TypeVar("InputT")

JobTypeT = TypeVar("JobTypeT", bound=JobType[Any, Any])
IdFunction = Callable[[], Id]
IdCheck = Callable[[str], bool]


class Queuert(DefinesJobTypes):
    """Job chains in a database, started inside your transactions and run by workers.

        app = Queuert("sqlite:///shop.db")

    Constructing it connects to nothing.
    """

    def __init__(
        self,
        target: object,
        *,
        table_prefix: str = "queuert_",
        schema: str = "public",
        id_type: str | None = None,
        id_default: str | None = None,
        generate_id: IdFunction | None = None,
        validate_id: IdCheck | None = None,
        notify: Literal["auto", "none"] | Notifier | None = "auto",
        retention: Retention | None = None,
        history: Literal["all", "failures"] = "all",
        max_payload_bytes: int = 1_048_576,
        synchronous: Literal["off", "normal", "full", "extra"] = "full",
        busy_timeout: Duration = 10,
        check_foreign_keys: bool = True,
        pool_size: int | None = None,
        prepared_statements: bool = True,
        listen_url: str | None = None,
        error_codes: ErrorCodes | None = None,
    ) -> None:
        if history not in ("all", "failures"):
            raise ValueError(f"history must be 'all' or 'failures', not {history!r}.")
        if isinstance(max_payload_bytes, bool) or not isinstance(max_payload_bytes, int) or max_payload_bytes < 1:
            raise ValueError(f"max_payload_bytes must be a whole number of at least 1, not {max_payload_bytes!r}.")
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention must be a Retention, not {type(retention).__name__}.")
        self._names = Names(table_prefix, schema, id_type, id_default)
        self._types = JobTypes()
        self._database = _database(
            target,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            check_foreign_keys=check_foreign_keys,
            pool_size=pool_size,
            prepared_statements=prepared_statements,
            listen_url=listen_url,
        )
        prefix = table_prefix.rstrip("_") or table_prefix
        notifier, tells_others = _notifier(self._database, notify, prefix)
        self._engine = Engine(
            self._database,
            Repository(self._database.dialect, self._names),
            self._types,
            notifier,
            Ids(id_type, generate_id, validate_id),
            Settings(max_payload_bytes, history, prefix if tells_others else None, checked(error_codes)),
        )
        self._starter = Starter(self._engine)
        self._chains = Chains(self._engine)
        self._reader = Reader(self._engine)
        self._ticker = Ticker(self._engine, self._starter)
        self._history = History(self._engine)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._cleaner = Cleaner(self._engine, Retention() if retention is None else retention)

    def __repr__(self) -> str:
        return f"Queuert({self._database!r})"

    @property
    def types(self) -> JobTypes:
        """The job types this app knows."""
        return self._types

    @property
    def dialect(self) -> str:
        """The kind of database: `sqlite` or `postgres`."""
        return self._database.dialect

    @property
    def retention(self) -> Retention:
        """How long closed chains are kept."""
        return self._cleaner.retention

    @property
    def _job_types(self) -> JobTypes:
        return self._types

    # The database

    def migrate(self) -> MigrationStatus:
        """Bring the schema to the newest version; safe to call again, and from many processes at once."""
        return migrations.migrate(self._database, self._names)

    def migration_status(self) -> MigrationStatus:
        """The migrations that are applied and those that are pending."""
        return migrations.migration_status(self._database, self._names)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction on a connection of the app's own: commits, or rolls back on an exception."""
        with self._database.block() as session, self._database.lend(session) as conn:
            yield conn

    def hooks(self) -> AbstractContextManager[Hooks]:
        """For a transaction that you manage yourself: effects run after a clean exit, and are dropped on an exception."""
        return self._engine.hooks()

    def configure_connection(self, conn: Any) -> None:
        """Set on your own SQLite connection what the library needs: foreign keys, busy timeout, WAL."""
        self._database.configure(conn)

    def vacuum(self, *, full: bool = False) -> None:
        """Give back the space of deleted rows. `full` rewrites the tables, and keeps others out while it does."""
        if isinstance(self._database, SqliteDatabase):
            self._database.vacuum(full=full)
            return
        tables = [f"{self._names.prefix}{table}" for table in TABLES if table != "migration"]
        cast("PostgresDatabase", self._database).vacuum(tables, schema=self._names.schema, full=full)

    def cleanup(
        self,
        retention: Retention | None = None,
        *,
        max_seconds: Duration | None = None,
        progress: Progress | None = None,
    ) -> dict[str, int]:
        """Delete the closed chains that the policy lets go, in small batches; how many of each state."""
        deleted = self._cleaner.clean(retention, max_seconds=max_seconds, progress=progress)
        if any(deleted.values()):
            self._cleaner.tidy()
        return deleted

    def close(self) -> None:
        """Stop the workers, and close the connections and threads that are the app's own; a later call opens new ones."""
        for worker in list(self._workers):
            if worker.running:
                worker.stop()
        self._engine.notifier.close()
        self._database.close()

    def __enter__(self) -> Queuert:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Writing

    @overload
    def start_chain(
        self,
        job_type: JobType[InputT, Any],
        input: InputOf[InputT],
        *,
        conn: Any = None,
        **options: Unpack[ChainOptions],
    ) -> Chain: ...

    @overload
    def start_chain(
        self, job_type: JobType[None, Any], input: None = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain: ...

    @overload
    def start_chain(
        self, job_type: str, input: object = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain: ...

    def start_chain(
        self,
        job_type: JobType[Any, Any] | str,
        input: object = None,
        *,
        conn: Any = None,
        id: Id | None = None,
        at: datetime | None = None,
        after: Duration | None = None,
        priority: int | None = None,
        max_attempts: int | _Unset | None = UNSET,
        dedup: Dedup | None = None,
        blockers: Sequence[ChainRef] | None = None,
    ) -> Chain:
        """Start a chain: with `conn` in your own transaction, without it in one of its own.

        It may start `at` a time or `after` a number of seconds; `dedup` gives back the chain that has the key already;
        `blockers` are chains that must complete before.
        """
        plain = id is None and at is None and after is None and priority is None and dedup is None and blockers is None
        if plain and max_attempts is UNSET:
            return self._starter.start_plain(job_type, input, conn)
        new = NewChain(
            job_type,  # type: ignore[arg-type, unused-ignore]  # the overloads have related it to the input
            input,
            id=id,
            at=at,
            after=after,
            priority=priority,
            max_attempts=max_attempts,
            dedup=dedup,
            blockers=blockers,
        )
        return self._starter.start([new], conn)[0]

    def start_chains(self, chains: Iterable[NewChain], *, conn: Any = None) -> list[Chain]:
        """Start many chains at once; all or none."""
        batch = list(chains)
        for entry in batch:
            if not isinstance(entry, NewChain):
                raise TypeError(f"start_chains takes NewChain objects, not {type(entry).__name__}.")
        return self._starter.start(batch, conn)

    @contextmanager
    def complete_chain(
        self, chain_id: ChainRef, *, conn: Any = None, type_name: JobTypeOrName | None = None
    ) -> Iterator[ChainTail]:
        """Lock a chain's tail, to read it, or to complete it without a worker by `finish` or `continue_with`."""
        (identity,) = ids_of(self._engine, [chain_id])
        with self._chains.complete_from_outside(identity, conn, type_name) as tail:
            yield tail

    # Acts of an operator: `actor` says who, for the timeline and the log.

    def cancel_chain(self, chain_id: ChainRef, *, conn: Any = None, cascade: bool = False, actor: str | None = None) -> Chain:
        """Cancel an open chain; with `cascade` also what waits for it. A running handler is signalled."""
        return self.cancel_chains([chain_id], conn=conn, cascade=cascade, actor=actor)[0]

    def cancel_chains(
        self, chain_ids: Iterable[ChainRef], *, conn: Any = None, cascade: bool = False, actor: str | None = None
    ) -> list[Chain]:
        """Cancel many chains; all or none."""
        ids, by = ids_of(self._engine, chain_ids), checked_actor(actor)
        return self._chains.cancel(ids, conn, cascade=cascade, actor=by) if ids else []

    def retry_chain(self, chain_id: ChainRef, *, conn: Any = None, actor: str | None = None) -> Chain:
        """Give a failed or cancelled chain fresh attempts."""
        return self.retry_chains([chain_id], conn=conn, actor=actor)[0]

    def retry_chains(self, chain_ids: Iterable[ChainRef], *, conn: Any = None, actor: str | None = None) -> list[Chain]:
        """Retry many chains; all or none."""
        ids, by = ids_of(self._engine, chain_ids), checked_actor(actor)
        return self._chains.retry(ids, conn, actor=by) if ids else []

    def trigger_job(self, job_id: ChainRef, *, conn: Any = None, actor: str | None = None) -> Job:
        """Run a scheduled job now."""
        return self.trigger_jobs([job_id], conn=conn, actor=actor)[0]

    def trigger_jobs(self, job_ids: Iterable[ChainRef], *, conn: Any = None, actor: str | None = None) -> list[Job]:
        """Run many scheduled jobs now; all or none."""
        ids, by = ids_of(self._engine, job_ids), checked_actor(actor)
        return self._chains.trigger(ids, conn, actor=by) if ids else []

    def delete_chain(
        self, chain_id: ChainRef, *, conn: Any = None, cascade: bool = False, actor: str | None = None
    ) -> Chain | None:
        """Delete a chain, with `cascade` also those it waited for; the deleted chain, or None if there is none."""
        ids, by = ids_of(self._engine, [chain_id]), checked_actor(actor)
        return next((c for c in self._chains.delete(ids, conn, cascade=cascade, actor=by) if c.id == ids[0]), None)

    def delete_chains(
        self, chain_ids: Iterable[ChainRef], *, conn: Any = None, cascade: bool = False, actor: str | None = None
    ) -> list[Chain]:
        """Delete many chains; all or none. What was deleted."""
        ids, by = ids_of(self._engine, chain_ids), checked_actor(actor)
        return self._chains.delete(ids, conn, cascade=cascade, actor=by) if ids else []

    # Reading

    def get_job(self, id: Id, *, type_name: JobTypeOrName | None = None, conn: Any = None) -> Job | None:
        """A job, or None; JobTypeMismatchError if its type is another than asked for."""
        return self._reader.job(id, type_name, conn)

    def get_chain(self, id: ChainRef, *, type_name: JobTypeOrName | None = None, conn: Any = None) -> Chain | None:
        """A chain, or None; JobTypeMismatchError if its type is another than asked for."""
        return self._reader.chain(id, type_name, conn)

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
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["asc", "desc"] = "desc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Job]:
        """A page of jobs by creation. Of `error_codes`, one that ends in a colon stands for its whole category."""
        return self._reader.list_jobs(
            types=types,
            chain_types=chain_types,
            statuses=statuses,
            error_codes=error_codes,
            job_ids=job_ids,
            chain_ids=chain_ids,
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
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["asc", "desc"] = "desc",
        cursor: str | None = None,
        limit: int = 50,
        conn: Any = None,
    ) -> Page[Chain]:
        """A page of chains by creation. `error_codes` are those of their newest jobs."""
        return self._reader.list_chains(
            types=types,
            statuses=statuses,
            error_codes=error_codes,
            chain_ids=chain_ids,
            job_ids=job_ids,
            root_only=root_only,
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
        return self._reader.list_chain_jobs(chain_id, order, cursor, limit, conn)

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
        return self._reader.list_blocked_jobs(chain_id, order, cursor, limit, conn)

    def wait_for(
        self,
        chain: ChainRef,
        *,
        timeout: Duration | None = None,
        poll_interval: Duration = 1.0,
        raise_on_failure: bool = True,
    ) -> Chain:
        """Wait until a chain has closed."""
        return self._reader.wait_for(chain, timeout=timeout, poll_interval=poll_interval, raise_on_failure=raise_on_failure)

    # History

    def attempts(self, job_id: Id, *, conn: Any = None) -> list[Attempt]:
        """The finished attempts of a job, oldest first."""
        return self._history.attempts(job_id, conn)

    def timeline(self, job_id: Id, *, conn: Any = None) -> list[TimelineEntry]:
        """What happened to a job, in order."""
        return self._history.timeline(job_id, conn)

    def stats(
        self, *, types: Iterable[JobTypeOrName] | None = None, count_limit: int | None = 10_000, conn: Any = None
    ) -> Stats:
        """How things stand: counts, the oldest, retries, errors, what is stranded."""
        return self._history.stats(types, count_limit, conn)

    # Recurring work

    def periodic(
        self,
        schedule: str | Duration,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        input: object = None,
        missed: Missed = "once",
    ) -> Callable[[JobTypeT], JobTypeT]:
        """Start a chain of a job type at every tick of a schedule: put it above `@app.job`.

        `schedule` is a cron expression, read in the time zone `tz`, or a number of seconds. However many workers run, there
        is one chain a tick. `missed` says what becomes of the ticks that nobody was there for: `once` makes up for them
        with one chain, `all` with one each, `skip` with none.
        """

        def decorate(job_type: JobTypeT) -> JobTypeT:
            self._ticker.add(job_type, schedule, tz=tz, name=name, input=input, missed=missed)
            return job_type

        return decorate

    def periodics(self, *, noted: bool = False) -> list[PeriodicStatus]:
        """What recurs, with its last and next run; with `noted` what workers have noted, whichever app defines it."""
        return self._ticker.noted() if noted else self._ticker.status()

    # Working

    def worker(
        self,
        *,
        concurrency: int = 1,
        types: Iterable[JobTypeOrName] | None = None,
        name: str | None = None,
        poll_interval: Duration | None = None,
        reap_interval: Duration | None = None,
        lease: Lease | None = None,
        backoff: BackoffOption | None = None,
        middleware: Sequence[object] = (),
    ) -> Worker:
        """A pool of threads that runs jobs; use it as a context manager, or call `run()` in a process of its own."""
        intervals = {"poll_interval": poll_interval, "reap_interval": reap_interval}
        worker = Worker(
            self._engine,
            self._chains,
            concurrency=concurrency,
            types=types,
            name=name,
            lease=lease,
            backoff=backoff,
            middleware=middleware,
            housekeeping=(self._cleaner.run_if_due, self._ticker.run_if_due),
            **{key: value for key, value in intervals.items() if value is not None},
        )
        self._workers.add(worker)
        return worker

    def drain(self, *, timeout: Duration = 10, types: Iterable[JobTypeOrName] | None = None) -> int:
        """Run everything due, in this thread, until nothing is; the number of attempts run."""
        with self._engine.explained():
            return drain(self._engine, self._chains, timeout=timeout, types=types)


def engine_of(app: Queuert) -> Engine:
    """What an app is built on: for the parts of this library that are built on an app, not for users."""
    return app._engine


def _database(target: object, *, synchronous: Any, busy_timeout: Any, check_foreign_keys: bool, **postgres: Any) -> Database:
    if isinstance(target, Database):
        return target
    if isinstance(target, Provider):
        return target.database(busy_timeout=seconds(busy_timeout, "busy_timeout"), check_foreign_keys=check_foreign_keys)
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
        parsed = parse_target(f"sqlite:///{target}") if isinstance(target, str) else parse_target(target)
    else:
        parsed = parse_target(target)
    if parsed.dialect == "sqlite":
        assert parsed.path is not None
        return SqliteDatabase(
            parsed.path, synchronous=synchronous, busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys
        )
    from queuert.postgres.database import PostgresDatabase  # psycopg is an extra

    return PostgresDatabase(parsed, **postgres)


def _notifier(database: Database, notify: object, prefix: str) -> tuple[Notifier, bool]:
    """What wakes workers, and whether the database itself carries notices to other processes."""
    if isinstance(notify, Notifier):
        return notify, False
    if notify not in ("auto", "none", None):
        raise ValueError(f"notify must be 'auto', 'none' or a Notifier, not {notify!r}.")
    if notify == "auto" and database.dialect == "postgres":
        from queuert.postgres.listener import PostgresNotifier  # psycopg is an extra

        connect = cast("PostgresDatabase", database).open_listener
        return PostgresNotifier(connect, prefix, sends=lambda: database.tells_other_processes), True
    if notify == "auto" and isinstance(database, SqliteDatabase) and not database.in_memory:
        from queuert.sqlite.watcher import SqliteFileNotifier

        return SqliteFileNotifier(database.open_watcher, watches=lambda: not database.in_memory), False
    return InProcessNotifier(), False

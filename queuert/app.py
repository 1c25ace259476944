"""`Queuert`: what users hold. Short methods that check who is asked and pass the question on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from queuert.api.operating import Operates
from queuert.api.reading import Reads
from queuert.chains.failing import Mender
from queuert.chains.history import History
from queuert.chains.limits import Limits
from queuert.chains.listing import Lister
from queuert.chains.new_chain import ChainOptions, ChainRef, NewChain, ids_of
from queuert.chains.operate import Operator
from queuert.chains.outside import ChainTail, complete_from_outside
from queuert.chains.pauses import Pauses
from queuert.chains.periodic import PeriodicStatus, Ticker
from queuert.chains.read import Reader
from queuert.chains.retention import Cleaner, Progress
from queuert.chains.start import Starter
from queuert.chains.stranded import Releaser
from queuert.chains.why import Explainer
from queuert.context import Context, Settings
from queuert.error_codes import ErrorCodes, checked
from queuert.hooks import Hooks
from queuert.ids import Id, Ids
from queuert.job_types import BackoffOption, DefinesJobTypes, InputOf, JobType, JobTypeOrName, JobTypes
from queuert.model import Chain
from queuert.notify.protocol import Notifier
from queuert.options import UNSET, BlockersUntil, Dedup, Duration, Lease, Retention, _Unset
from queuert.storage import migrations
from queuert.storage.migrations import MigrationStatus
from queuert.storage.names import Names
from queuert.storage.sizes import Sizes
from queuert.targets import choose_notifier, open_database
from queuert.worker.drain import drain
from queuert.worker.threads import leave_all
from queuert.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.running_job import Continuation

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
IdFunction = Callable[[], Id]
IdCheck = Callable[[str], bool]


class Queuert(Operates, Reads, DefinesJobTypes):
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
        log_finished: bool = False,
    ) -> None:
        if history not in ("all", "failures"):
            raise ValueError(f"history must be 'all' or 'failures', not {history!r}.")
        if isinstance(max_payload_bytes, bool) or not isinstance(max_payload_bytes, int) or max_payload_bytes < 1:
            raise ValueError(f"max_payload_bytes must be a whole number of at least 1, not {max_payload_bytes!r}.")
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention must be a Retention, not {type(retention).__name__}.")
        self._names = Names(table_prefix, schema, id_type, id_default)
        self._types = JobTypes()
        self._types.belongs_to = weakref.ref(self)
        self._database = open_database(
            target,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            check_foreign_keys=check_foreign_keys,
            pool_size=pool_size,
            prepared_statements=prepared_statements,
            listen_url=listen_url,
        )
        notifier, channel_prefix = choose_notifier(self._database, self._names, notify)
        self._context = Context(
            self._database,
            self._names,
            self._types,
            notifier,
            Ids(id_type, generate_id, validate_id),
            Settings(max_payload_bytes, history, channel_prefix, checked(error_codes), bool(log_finished)),
        )
        self._starter = Starter(self._context)
        self._operator = Operator(self._context)
        self._pauses = Pauses(self._context)
        self._reader = Reader(self._context)
        self._lister = Lister(self._context)
        self._ticker = Ticker(self._context, self._starter)
        self._history = History(self._context)
        self._explainer = Explainer(self._context)
        self._mender = Mender(self._context)
        self._limits = Limits(self._context)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._releaser = Releaser(self._context)
        self._cleaner = Cleaner(self._context, Retention() if retention is None else retention)

    def __repr__(self) -> str:
        return f"Queuert({self._database!r})"

    @property
    def types(self) -> JobTypes:
        """The job types this app knows."""
        return self._types

    @property
    def dialect(self) -> str:
        """The kind of database: `sqlite` or `postgres`."""
        return self._database.dialect.name

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
        return self._context.hooks()

    def configure_connection(self, conn: Any) -> None:
        """Set on your own SQLite connection what the library needs: foreign keys, busy timeout, WAL."""
        self._database.configure(conn)

    def vacuum(self, *, full: bool = False) -> None:
        """Give back the space of deleted rows. `full` rewrites the tables, and keeps others out while it does."""
        self._database.vacuum(self._names, full=full)

    def sizes(self) -> Sizes:
        """How much room the tables, their indexes, the file and its WAL take. On SQLite it reads the whole file."""
        return self._context.read(None, self._context.repository.sizes)

    def cleanup(
        self,
        retention: Retention | None = None,
        *,
        max_seconds: Duration | None = None,
        progress: Progress | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Delete the closed chains that the policy lets go, in small batches; how many of each state.

        `dry_run` deletes nothing, and says how many would go.
        """
        if dry_run:
            return self._cleaner.count(retention)
        deleted = self._cleaner.clean(retention, max_seconds=max_seconds, progress=progress)
        if any(deleted.values()):
            self._cleaner.tidy()
        return deleted

    def close(self) -> None:
        """Stop the workers, and close the connections and threads that are the app's own; a later call opens new ones."""
        for worker in list(self._workers):
            if worker.running:
                worker.stop()
        leave_all(self._context)
        self._context.failures.flush(everything=True)
        self._context.notifier.close()
        self._database.close()

    def __enter__(self) -> Queuert:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Writing

    # A job that continues does not say what its chain gives in the end.
    @overload
    def start_chain(
        self,
        job_type: JobType[InputT, Continuation],
        input: InputOf[InputT],
        *,
        conn: Any = None,
        **options: Unpack[ChainOptions],
    ) -> Chain[Any]: ...

    @overload
    def start_chain(
        self,
        job_type: JobType[InputT, OutputT],
        input: InputOf[InputT],
        *,
        conn: Any = None,
        **options: Unpack[ChainOptions],
    ) -> Chain[OutputT]: ...

    @overload
    def start_chain(
        self,
        job_type: JobType[None, Continuation],
        input: None = None,
        *,
        conn: Any = None,
        **options: Unpack[ChainOptions],
    ) -> Chain[Any]: ...

    @overload
    def start_chain(
        self, job_type: JobType[None, OutputT], input: None = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[OutputT]: ...

    @overload
    def start_chain(
        self, job_type: str, input: object = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[Any]: ...

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
        blockers_until: BlockersUntil = "completed",
        limit_key: object = None,
    ) -> Chain:
        """Start a chain: with `conn` in your own transaction, without it in one of its own.

        It may start `at` a time or `after` a number of seconds; `dedup` gives back the chain that has the key already;
        `blockers` are chains that must complete before, or only close with `blockers_until="closed"`.
        """
        plain = id is None and at is None and after is None and priority is None and dedup is None and blockers is None
        if plain and max_attempts is UNSET and blockers_until == "completed" and limit_key is None:
            return self._starter.start_one(job_type, input, conn)
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
            blockers_until=blockers_until,
            limit_key=limit_key,
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
        (identity,) = ids_of(self._context.ids, [chain_id])
        with complete_from_outside(self._context, identity, conn, type_name) as tail:
            yield tail

    # Recurring work

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
            self._context,
            concurrency=concurrency,
            types=types,
            name=name,
            lease=lease,
            backoff=backoff,
            middleware=middleware,
            housekeeping=(
                self._cleaner.run_if_due,
                self._releaser.run_if_due,
                self._ticker.run_if_due,
                self._mender.run_if_due,
            ),
            **{key: value for key, value in intervals.items() if value is not None},
        )
        self._workers.add(worker)
        return worker

    def drain(self, *, timeout: Duration | None = None, types: Iterable[JobTypeOrName] | None = None) -> int:
        """Run everything due, in this thread, until nothing is or the time is up; the number of attempts run."""
        with self._context.explained():
            return drain(self._context, timeout=timeout, types=types)


def context_of(app: Queuert) -> Context:
    """What an app is built on: for the parts of this library that are built on an app, not for users."""
    return app._context

"""The life of chains after their start: complete, continue, fail, cancel, retry, trigger, delete.

Locks, on PostgreSQL. Whoever changes the shape of a chain locks its first job before anything else of it: with FOR UPDATE
when the chain closes, so that nobody can name it as a blocker at that moment (naming one takes a key-share lock through
the foreign key), and FOR NO KEY UPDATE when it goes on. The statement after that sees every dependant that was committed
before. Several rows are locked in id order. A claim, a renewal and the reaper lock only the job itself and skip what is locked,
so they never wait. Where two of our transactions meet in opposite order all the same, the database picks a victim and it is run
again.

On SQLite there is one writer, and each of these calls starts with a write.

The fence is in the SQL: a job is completed, failed or given back only where `(leased_by, lease_token)` is still the pair that
the caller was given with the claim. What comes back from the statement is what happened; notices and counts follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from queuert import observing
from queuert.chains.start import ChainRef, NextOptions, blocker_types, chain_id, check_blocker_ids, connect_blockers
from queuert.context import Engine, closed, lost, pending_types, schedule, scheduled
from queuert.errors import (
    BlockerReference,
    BlockerReferenceError,
    ChainNotFoundError,
    DuplicateJobIdError,
    JobAlreadyCompletedError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobStateError,
    JobTypeValidationError,
    StaleSnapshotError,
)
from queuert.ids import Id
from queuert.job_types import InputOf, JobType, JobTypeOrName, check_blockers, check_continuation, check_type
from queuert.model import Chain, Job, Status
from queuert.notify.protocol import Notice
from queuert.options import UNSET, Duration, _Unset, check_max_attempts, check_priority
from queuert.storage.protocol import ABOVE_READ_COMMITTED, Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

NextT = TypeVar("NextT")

MAX_ACTOR: Final = 200


@dataclass(frozen=True)
class NextJob:
    """A checked continuation: the columns of its row, and its blockers."""

    job_type: JobType[Any, Any]
    columns: dict[str, Any]
    blockers: tuple[str, ...] = ()
    explicit_id: bool = False
    produced: observing.Produced | None = None


class Completion:
    """A job that is to be completed: with its lease's token by a worker, without by somebody from outside."""

    __slots__ = ("job", "next", "output", "token", "waited")

    def __init__(
        self, job: Job, output: str | None, token: int | None, next: NextJob | None = None, waited: float | None = None
    ) -> None:
        self.job = job
        self.output = output
        self.token = token
        self.next = next
        self.waited = waited
        """Seconds between the claim and the handler's start."""


@dataclass(frozen=True)
class CompletionPlan:
    """Completions as the repository takes them."""

    completions: Sequence[Completion]
    items: list[dict[str, Any]]
    encoded: str | None


@dataclass
class Completed:
    """What a batch of completions did."""

    ids: set[str] = field(default_factory=set)
    unlocked: set[str] = field(default_factory=set)
    """Not tried: somebody else has locked their rows."""


def is_simple(completion: Completion) -> bool:
    """Whether it is written by one statement: there is nothing to check under the lock before, nor to write after."""
    return completion.next is None or not (completion.next.explicit_id or completion.next.blockers)


class Chains:
    """What can be done to chains that exist."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._repository = engine.repository

    # Completing

    def next_job(
        self,
        current: Job,
        job_type: JobType[Any, Any] | str,
        input: object = None,
        *,
        id: object = None,
        at: datetime | None = None,
        after: Duration | None = None,
        priority: int | None = None,
        max_attempts: int | _Unset | None = UNSET,
        blockers: Sequence[ChainRef] | None = None,
        told: bool = True,
    ) -> NextJob:
        """Check a continuation of `current`; nothing is written. `told` says whether we are told of its commit."""
        engine = self._engine
        target = engine.types.get(job_type)
        known = engine.types.find(current.type_name)
        if known is not None:
            check_continuation(known, target.name)
        due_at, due_after = schedule(at, after)
        named = check_blocker_ids(engine, blockers, target.name)
        if not named:
            check_blockers(target, [])
        if current.chain_id in named:
            raise JobTypeValidationError(
                "invalid_blockers",
                f"A job of chain {current.chain_id} cannot wait for its own chain.",
                type_name=target.name,
            )
        text = engine.encode_input(target, input)
        produced = observing.producing(engine, "continue", [target.name], told=told)
        return NextJob(
            job_type=target,
            columns={
                "next_id": engine.ids.new() if id is None else engine.ids.check(id),
                "next_type": target.name,
                "next_input": text,
                "next_priority": None if priority is None else check_priority(priority),
                "next_at": due_at,
                "next_after": due_after,
                "next_max_attempts": check_max_attempts(
                    target.max_attempts if isinstance(max_attempts, _Unset) else max_attempts
                ),
                "next_blockers": len(named),
                "next_trace": produced.trace if produced is not None else None,
            },
            blockers=named,
            explicit_id=id is not None,
            produced=produced,
        )

    def plan(self, completions: Sequence[Completion]) -> CompletionPlan:
        """What can be made ready before the transaction begins."""
        succeeded = "succeeded" if self._engine.settings.history == "all" else None
        items = []
        for c in completions:
            item = {"id": c.job.id, "chain_id": c.job.chain_id, "token": c.token, "output": c.output, "waited": c.waited}
            if c.token is not None:
                item["outcome"] = succeeded
            elif c.job.leased_by:
                item["outcome"], item["holder"] = "cancelled", c.job.leased_by
            if c.next is not None:
                item |= c.next.columns
            items.append(item)
        encoded = self._repository.encode_completions(items) if len(items) > 1 else None
        return CompletionPlan(completions, items, encoded)

    def complete(
        self, session: Session, worker: str | None, completions: Sequence[Completion], *, wait: bool = True
    ) -> Completed:
        return self.carry_out(session, worker, self.plan(completions), wait=wait)

    def carry_out(self, session: Session, worker: str | None, plan: CompletionPlan, *, wait: bool = True) -> Completed:
        """Complete jobs, insert their continuations, release what waited for their chains.

        A job whose lease was lost is left out of the result's `ids`, and nothing is written for it. With `wait=False` rows
        that others have locked are left for later instead of waited for.
        """
        # Most calls complete one job and continue nothing: steps that are not for it are not taken.
        result = Completed()
        completions = plan.completions
        closing: set[str] = set()
        going_on: set[str] = set()
        continuing = [c for c in completions if c.next is not None]
        if session.dialect == "postgres" and (continuing or len(completions) > 1 or not wait):  # what is one locks by itself
            for c in completions:
                (closing if c.next is None else going_on).update((c.job.id, c.job.chain_id))
            going_on -= closing
        if continuing:
            if session.dialect == "postgres" and not all(map(is_simple, continuing)):
                completions = self._lock(session, completions, result, closing, going_on, wait=wait)
                closing, going_on, wait = set(), set(), True
                plan = self.plan(completions) if len(completions) < len(plan.completions) else plan
            self._check_next_ids(session, completions)
            self._check_next_blockers(session, completions)
        if not completions:
            return result
        ids, freed, locked, fixed_snapshot = self._repository.complete_jobs(
            session,
            worker,
            plan.items,
            closing=sorted(closing),
            going_on=sorted(going_on),
            wait=wait,
            encoded=plan.encoded,
        )
        result.ids = ids
        result.unlocked |= locked

        def ended() -> list[str]:
            return [c.job.chain_id for c in completions if c.next is None and c.job.id in ids]

        if fixed_snapshot:
            self._check_snapshot(session, ended())
        notices = pending_types(freed) if freed else []
        if continuing:
            notices += self._continued(session, [c.next for c in continuing if c.next is not None and c.job.id in result.ids])
        outside = [c for c in completions if c.token is None and c.job.id in result.ids]
        if outside:
            notices += lost(c.job.id for c in outside if c.job.leased_by)
            nexts = [(c.next.produced, str(c.next.columns["next_id"])) if c.next else (None, None) for c in outside]
            observing.completed_outside(self._engine, session, [(c.job, *n) for c, n in zip(outside, nexts, strict=True)])
        self._engine.announce(session, notices, ended)
        return result

    def _continued(self, session: Session, jobs: Sequence[NextJob]) -> list[Notice]:
        """Continuations were inserted: connect those that have blockers."""
        notices = scheduled(job.job_type.name for job in jobs if not job.blockers)
        waiting = {job.columns["next_id"]: job.blockers for job in jobs if job.blockers}
        if waiting:
            traces = {job.columns["next_id"]: job.columns["next_trace"] for job in jobs}
            connect_blockers(self._engine, session, waiting, traces)
            notices += pending_types(self._repository.settle_blockers(session, list(waiting)))
        return notices

    def _lock(
        self,
        session: Session,
        completions: Sequence[Completion],
        result: Completed,
        closing: set[str],
        going_on: set[str],
        *,
        wait: bool,
    ) -> Sequence[Completion]:
        """Lock before the completion does, to check under the locks."""
        locked: set[str] = set()
        if closing:
            locked = self._repository.lock_closing(session, sorted(closing), wait=wait)
        if going_on:
            locked |= self._repository.lock_jobs(session, sorted(going_on), wait=wait)
        if wait:
            return completions
        result.unlocked = {c.job.id for c in completions if not {c.job.id, c.job.chain_id} <= locked}
        return [c for c in completions if c.job.id not in result.unlocked]

    def _check_snapshot(self, session: Session, finished: Sequence[str]) -> None:
        """Above READ COMMITTED a transaction may be older than a job that waits for these chains, and would strand it.

        Their first jobs are locked by now, so what another connection sees is all there is.
        """
        if not finished:
            return
        repository, database = self._repository, self._engine.database
        if database.in_block:  # ours begin READ COMMITTED: somebody has raised it, and no other connection may be used
            raise StaleSnapshotError(ABOVE_READ_COMMITTED)
        with database.inside_users_block(False), database.read() as other:
            waiting = repository.waiting_jobs(other, finished)
        unseen = waiting - repository.waiting_jobs(session, finished)
        if unseen:
            raise StaleSnapshotError(
                f"Job {min(unseen)} was made to wait for this chain after this transaction began, which cannot see it: "
                "roll back and try again, or complete chains under READ COMMITTED."
            )

    def _check_next_ids(self, session: Session, completions: Sequence[Completion]) -> None:
        named = [c.next.columns["next_id"] for c in completions if c.next is not None and c.next.explicit_id]
        for taken in self._repository.get_jobs(session, named) if named else ():
            raise DuplicateJobIdError(taken)

    def _check_next_blockers(self, session: Session, completions: Sequence[Completion]) -> None:
        for completion in completions:
            following = completion.next
            if following is None or not following.blockers:
                continue
            types = blocker_types(self._engine, session, following.blockers)
            check_blockers(following.job_type, [types[blocker] for blocker in following.blockers])
            if completion.job.chain_id in self._repository.waits_for(session, following.blockers):
                raise JobTypeValidationError(
                    "invalid_blockers",
                    f"Chain {completion.job.chain_id} would wait for itself, through its blockers.",
                    type_name=following.job_type.name,
                )

    @contextmanager
    def complete_from_outside(self, identity: str, conn: object | None, type_name: JobTypeOrName | None) -> Iterator[ChainTail]:
        """Lock the tail of a chain and hand it out to be finished or continued without a worker."""
        with self._engine.explained():
            if conn is not None:
                session = self._engine.join(conn)
                with self._engine.database.inside_users_block():
                    yield self._locked_tail(session, identity, type_name)
                return
            with self._engine.database.block() as session:
                yield self._locked_tail(session, identity, type_name)

    def _locked_tail(self, session: Session, identity: str, type_name: JobTypeOrName | None) -> ChainTail:
        repository = self._repository
        repository.lock_closing(session, [identity])
        tail = repository.get_tails(session, [identity]).get(identity)
        if tail is None:
            raise ChainNotFoundError(identity)
        check_type(identity, type_name, tail.chain_type_name)
        # A claim or a reschedule may have come between: it locks the job alone.
        if session.dialect == "postgres":
            repository.lock_closing(session, [tail.id])
            tail = repository.get_jobs(session, [tail.id])[tail.id]
        return ChainTail._of(self, self._engine, session, tail)

    # Ending attempts that did not complete

    def end_attempts(self, session: Session, items: Sequence[dict[str, Any]]) -> set[str]:
        """Fail, reschedule or reap; the ids that were still held by the lease each item names."""
        ended = self._repository.end_attempts(session, items)
        notices = pending_types(ended) + closed(e.chain_id for e in ended if e.status is Status.FAILED)
        notices += lost(item["id"] for item in items if item["outcome"] == "lost")
        self._engine.announce(session, notices)
        return {e.id for e in ended}

    def release_claims(self, session: Session, worker: str, items: Sequence[dict[str, Any]]) -> set[str]:
        freed = self._repository.release_claims(session, worker, items)
        self._engine.announce(session, pending_types(freed))
        return {f.id for f in freed}

    # Acts of an operator

    def cancel(
        self, ids: Sequence[str], conn: object | None, *, cascade: bool = False, actor: str | None = None
    ) -> list[Chain]:
        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_closing(session, sorted(set(ids)))
            self._existing(session, ids)
            affected = sorted(set(repository.waiting_chains(session, ids) if cascade else ids))
            if cascade:
                repository.lock_closing(session, affected)
            tails = repository.get_tails(session, affected)
            running = {tail.id for tail in tails.values() if tail.leased_by}
            cancelled = repository.cancel_tails(session, sorted(tail.id for tail in tails.values()), actor)
            notices = closed(chain for _, chain in cancelled) + lost(job for job, _ in cancelled if job in running)
            self._engine.announce(session, notices)
            observing.act(session, "cancelled", [chain for _, chain in cancelled], actor)
            return self._existing(session, ids)

        return self._engine.write(conn, work)

    def retry(self, ids: Sequence[str], conn: object | None, *, actor: str | None = None) -> list[Chain]:
        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_closing(session, sorted(set(ids)))
            self._existing(session, ids)
            tails = repository.get_tails(session, ids)
            repository.lock_jobs(session, sorted(tail.id for tail in tails.values()))
            tails = repository.get_tails(session, ids)
            for identity in ids:
                tail = tails[identity]
                if tail.status not in (Status.FAILED, Status.CANCELLED):
                    raise JobStateError(
                        f"Chain {identity} is {tail.status}; only a failed or cancelled chain can be retried.",
                        job_id=tail.id,
                        status=tail.status.value,
                    )
            missing = repository.missing_blockers(session, [tail.id for tail in tails.values()])
            for tail in tails.values():
                if tail.id in missing:
                    raise JobStateError(
                        f"Chain {tail.chain_id} cannot be retried: a chain that job {tail.id} waited for has been deleted.",
                        job_id=tail.id,
                        status=tail.status.value,
                    )
            freed = repository.retry_tails(session, [tail.id for tail in tails.values()], actor)
            self._engine.announce(session, pending_types(freed))
            observing.act(session, "retried", ids, actor)
            return self._existing(session, ids)

        return self._engine.write(conn, work)

    def trigger(self, ids: Sequence[str], conn: object | None, *, actor: str | None = None) -> list[Job]:
        def work(session: Session) -> list[Job]:
            repository = self._repository
            repository.lock_jobs(session, sorted(set(ids)))
            jobs = repository.get_jobs(session, ids)
            for identity in ids:
                if identity not in jobs:
                    raise JobNotFoundError(identity)
                if jobs[identity].status is not Status.PENDING:
                    raise JobNotTriggerableError(identity, jobs[identity].status.value)
            self._engine.announce(session, pending_types(repository.trigger_jobs(session, list(jobs), actor)))
            observing.act(session, "triggered", ids, actor)
            jobs = repository.get_jobs(session, ids)
            return [self._engine.decode_job(Job(**jobs[identity].__dict__)) for identity in ids]

        return self._engine.write(conn, work)

    def delete(
        self, ids: Sequence[str], conn: object | None, *, cascade: bool = False, actor: str | None = None
    ) -> list[Chain]:
        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_chains(session, sorted(set(ids)))
            affected = sorted(set(repository.blocker_chains(session, ids) if cascade else ids))
            locked = repository.lock_chains(session, affected)
            references = repository.blocker_references(session, affected)
            if references:
                raise BlockerReferenceError([BlockerReference(*reference) for reference in references])
            chains = repository.get_chains(session, affected)
            running = [job.id for job in repository.get_jobs(session, list(locked)).values() if job.leased_by]
            repository.delete_chains(session, list(chains))
            self._engine.announce(session, lost(running) + closed(chains))
            observing.act(session, "deleted", list(chains), actor)
            ordered = [*dict.fromkeys(ids), *(identity for identity in affected if identity not in set(ids))]
            return [self._engine.decode_chain(chains[identity]) for identity in ordered if identity in chains]

        return self._engine.write(conn, work)

    def _existing(self, session: Session, ids: Sequence[str]) -> list[Chain]:
        """The chains in the order asked for; all must exist."""
        found = self._repository.get_chains(session, ids)
        for identity in ids:
            if identity not in found:
                raise ChainNotFoundError(identity)
        return [self._engine.decode_chain(Chain(**found[identity].__dict__)) for identity in ids]


class ChainTail(Job):
    """The tail of a chain, locked: every attribute of `Job` as it was found, and `finish` or `continue_with` to complete it."""

    _chains: Chains
    _engine: Engine
    _session: Session
    _raw: Job
    _finished: bool

    @classmethod
    def _of(cls, chains: Chains, engine: Engine, session: Session, job: Job) -> ChainTail:
        tail = object.__new__(cls)
        decoded = engine.decode_job(Job(**job.__dict__))
        tail.__dict__.update(decoded.__dict__, _chains=chains, _engine=engine, _session=session, _raw=job, _finished=False)
        return tail

    @property
    def conn(self) -> Any:
        """The connection of the transaction that holds the lock."""
        return self._session.raw

    def finish(self, output: object = None) -> None:
        """Complete the job and close the chain."""
        self._check()
        text = self._engine.encode_output(self._raw.type_name, output)
        self._complete(Completion(self._raw, text, None))

    @overload
    def continue_with(self, job_type: JobType[NextT, Any], input: InputOf[NextT], **options: Unpack[NextOptions]) -> None: ...

    @overload
    def continue_with(self, job_type: JobType[None, Any], input: None = None, **options: Unpack[NextOptions]) -> None: ...

    @overload
    def continue_with(self, job_type: str, input: object = None, **options: Unpack[NextOptions]) -> None: ...

    def continue_with(
        self,
        job_type: JobType[Any, Any] | str,
        input: object = None,
        *,
        id: Id | None = None,
        at: datetime | None = None,
        after: Duration | None = None,
        priority: int | None = None,
        max_attempts: int | _Unset | None = UNSET,
        blockers: Sequence[ChainRef] | None = None,
    ) -> None:
        """Complete the job and go on with the next one."""
        self._check()
        following = self._chains.next_job(
            self._raw,
            job_type,
            input,
            id=id,
            at=at,
            after=after,
            priority=priority,
            max_attempts=max_attempts,
            blockers=blockers,
            told=self._session.hooks is not None,
        )
        self._complete(Completion(self._raw, None, None, following))

    def _check(self) -> None:
        if self._finished or self._raw.status is Status.COMPLETED:
            raise JobAlreadyCompletedError(self._raw.id)
        if self._raw.status not in (Status.PENDING, Status.RUNNING):
            raise JobStateError(
                f"Job {self._raw.id} is {self._raw.status}; only a pending or running job can be completed.",
                job_id=self._raw.id,
                status=self._raw.status.value,
            )

    def _complete(self, completion: Completion) -> None:
        with self._session.savepoint():
            self._chains.complete(self._session, None, [completion])
        self.__dict__["_finished"] = True


def ids_of(engine: Engine, refs: Iterable[object]) -> list[str]:
    return [engine.ids.check(chain_id(ref)) for ref in refs]


def checked_actor(actor: object) -> str | None:
    """Who does something, as an event can store it."""
    if actor is None:
        return None
    if not isinstance(actor, str):
        raise TypeError(f"actor must be a string, not {type(actor).__name__}.")
    if not actor or len(actor) > MAX_ACTOR or "\0" in actor:
        raise ValueError(f"actor must be a name of 1 to {MAX_ACTOR} characters, none of them NUL, not {actor!r}.")
    return actor

"""Acts of an operator: cancel, retry, trigger, delete. Each is all or nothing, and says who did it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from queuert import observing
from queuert.chains.closing import release_closed, reopen
from queuert.chains.limits import types_of
from queuert.context import Context
from queuert.errors import (
    BlockerReference,
    BlockerReferenceError,
    ChainNotFoundError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobStateError,
)
from queuert.model import Chain, Job, Status
from queuert.options import storable
from queuert.storage.protocol import Session

MAX_ACTOR: Final = 200
MAX_REASON: Final = 500


class Operator:
    """What can be done to chains that exist."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    def cancel(
        self,
        ids: Sequence[str],
        conn: object | None,
        *,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> list[Chain]:
        """Cancel the tails that are open; with `cascade` those of the chains that wait for them too."""

        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_closing(session, sorted(set(ids)))
            self._existing(session, ids)
            affected = sorted(set(repository.waiting_chains(session, ids) if cascade else ids))
            if cascade:
                repository.lock_closing(session, affected)
            tails = repository.get_tails(session, affected)
            running = {tail.id for tail in tails.values() if tail.leased_by}
            cancelled = repository.cancel_tails(session, sorted(tail.id for tail in tails.values()), actor, reason)
            chains = [chain for _, chain in cancelled]
            freed = release_closed(self._context, session, chains) if chains else []
            lost = [job for job, _ in cancelled if job in running]
            freed += self._places(tails.values())
            self._context.announce(session, ready=freed, closed=chains, lost=lost)
            observing.act(session, "cancelled", chains, actor, reason)
            return self._existing(session, ids)

        return self._context.write(conn, work)

    def retry(
        self, ids: Sequence[str], conn: object | None, *, actor: str | None = None, reason: str | None = None
    ) -> list[Chain]:
        """Give failed and cancelled tails fresh attempts."""

        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_closing(session, sorted(set(ids)))
            self._existing(session, ids)
            tails = repository.get_tails(session, ids)
            repository.lock_jobs(session, sorted(tail.id for tail in tails.values()))
            tails = repository.get_tails(session, ids)
            missing = repository.missing_blockers(session, [tail.id for tail in tails.values()])
            for identity in ids:
                tail = tails[identity]
                problem = ""
                if tail.status not in (Status.FAILED, Status.CANCELLED):
                    problem = f"Chain {identity} is {tail.status}; only a failed or cancelled chain can be retried."
                elif tail.id in missing:
                    problem = f"Chain {identity} cannot be retried: a chain that job {tail.id} waited for has been deleted."
                if problem:
                    raise JobStateError(problem, job_id=tail.id, status=tail.status.value)
            reopen(self._context, session, sorted(set(ids)))
            freed = repository.retry_tails(session, [tail.id for tail in tails.values()], actor, reason)
            self._context.announce(session, ready=[job.type_name for job in freed if job.status is Status.PENDING])
            observing.act(session, "retried", ids, actor, reason)
            return self._existing(session, ids)

        return self._context.write(conn, work)

    def trigger(
        self, ids: Sequence[str], conn: object | None, *, actor: str | None = None, reason: str | None = None
    ) -> list[Job]:
        """Make pending jobs due now."""

        def work(session: Session) -> list[Job]:
            repository = self._repository
            repository.lock_jobs(session, sorted(set(ids)))
            jobs = repository.get_jobs(session, ids)
            for identity in ids:
                if identity not in jobs:
                    raise JobNotFoundError(identity)
                if jobs[identity].status is not Status.PENDING:
                    raise JobNotTriggerableError(identity, jobs[identity].status.value)
            freed = repository.trigger_jobs(session, list(jobs), actor, reason)
            self._context.announce(session, ready=[job.type_name for job in freed])
            observing.act(session, "triggered", ids, actor, reason)
            jobs = repository.get_jobs(session, ids)
            return [self._context.payloads.decode_job(Job(**jobs[identity].__dict__)) for identity in ids]

        return self._context.write(conn, work)

    def delete(
        self,
        ids: Sequence[str],
        conn: object | None,
        *,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> list[Chain]:
        """Delete chains, unless others wait for them; with `cascade` also what they waited for."""

        def work(session: Session) -> list[Chain]:
            repository = self._repository
            repository.lock_chains(session, sorted(set(ids)))
            affected = sorted(set(repository.blocker_chains(session, ids) if cascade else ids))
            locked = repository.lock_chains(session, affected)
            references = repository.blocker_references(session, affected)
            if references:
                raise BlockerReferenceError([BlockerReference(*reference) for reference in references])
            chains = repository.get_chains(session, affected)
            jobs = repository.get_jobs(session, list(locked)).values()
            running, places = [job.id for job in jobs if job.leased_by], self._places(jobs)
            repository.delete_chains(session, list(chains))
            self._context.announce(session, ready=places, closed=list(chains), lost=running)
            observing.act(session, "deleted", list(chains), actor, reason)
            ordered = [*dict.fromkeys(ids), *(identity for identity in affected if identity not in set(ids))]
            return [self._context.payloads.decode_chain(chains[identity]) for identity in ordered if identity in chains]

        return self._context.write(conn, work)

    def _places(self, jobs: Iterable[Job]) -> list[str]:
        """The types that may start when these jobs are gone."""
        limits = {job.limit_name for job in jobs if job.limit_name is not None}
        return types_of(self._context.types, limits) if limits else []

    def _existing(self, session: Session, ids: Sequence[str]) -> list[Chain]:
        """The chains in the order asked for; all must exist."""
        found = self._repository.get_chains(session, ids)
        for identity in ids:
            if identity not in found:
                raise ChainNotFoundError(identity)
        return [self._context.payloads.decode_chain(Chain(**found[identity].__dict__)) for identity in ids]


def checked_actor(actor: object) -> str | None:
    """Who does something, as an event can store it."""
    if actor is None:
        return None
    if not isinstance(actor, str):
        raise TypeError(f"actor must be a string, not {type(actor).__name__}.")
    if not actor or len(actor) > MAX_ACTOR:
        raise ValueError(f"actor must be a name of 1 to {MAX_ACTOR} characters, not {actor!r}.")
    return storable(actor, "actor")


def checked_reason(reason: object) -> str | None:
    """Why somebody does something, as an event can store it."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, not {type(reason).__name__}.")
    if not reason or len(reason) > MAX_REASON:
        raise ValueError(f"reason must have 1 to {MAX_REASON} characters, not {reason!r}.")
    return storable(reason, "reason")

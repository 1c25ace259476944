"""Writes how attempts ended, many in one transaction.

A group shares one commit, so one that the database refuses would take the others down with it: the group is halved until
the offender stands alone, and that one becomes a failed attempt with the error's code.

A group must not wait for a stranger's transaction either. Rows that somebody has locked are left out, and come back to the
caller for another time.

An error that passes (the database restarts, or is busy) is raised; what was written before it is marked, and calling again
writes the rest. It may be that COMMIT succeeded and only its answer was lost: a completed job that carries our worker and
our token says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from queuert.chains.acts import Chains, Completed, is_simple
from queuert.context import Engine
from queuert.error_codes import error_code
from queuert.model import Job, Status
from queuert.notify.protocol import ANYTHING
from queuert.observing import facts
from queuert.storage.protocol import Session
from queuert.worker.attempt import Outcome
from queuert.worker.leases import Held

logger = logging.getLogger("queuert.worker")


class Ending:
    """A job in hand whose attempt has ended, with what is to be written about it."""

    __slots__ = ("done", "held", "outcome", "tries", "unsure")

    def __init__(self, held: Held, outcome: Outcome) -> None:
        self.held = held
        self.outcome = outcome
        self.done = False
        self.tries = 0
        """How often its rows were found locked."""
        self.unsure = False
        """Whether an earlier try may have been committed without our knowing."""


class OutcomeWriter:
    """Writes endings for one worker."""

    def __init__(self, engine: Engine, chains: Chains, worker_id: str) -> None:
        self._engine = engine
        self._chains = chains
        self._worker_id = worker_id

    def write(self, endings: Sequence[Ending], *, wait: bool) -> list[Ending]:
        """Write endings and mark them as done; those whose rows are locked by others come back, unless it may `wait`."""
        for ending in endings:
            if ending.outcome.commit is not None:
                self._settle(ending)
        open_ = [ending for ending in endings if not ending.done]
        if not open_:
            return []
        try:
            return self._commit(open_, wait=wait)
        except Exception as error:
            if self._engine.database.is_transient(error):
                for ending in open_:
                    ending.unsure = True
                raise
            if len(open_) > 1:
                middle = len(open_) // 2
                return self.write(open_[:middle], wait=wait) + self.write(open_[middle:], wait=wait)
            return self._refused(open_[0], error, wait=wait)

    def _settle(self, ending: Ending) -> None:
        """The handler has written it itself, and left it to us to wait for the disk."""
        attempt = ending.held.attempt
        assert attempt is not None
        outcome = attempt.settle(ending.outcome)
        ending.done = outcome.committed
        ending.outcome = attempt.broken_off() if outcome.lost else outcome

    def _refused(self, ending: Ending, error: Exception, *, wait: bool) -> list[Ending]:
        attempt = ending.held.attempt
        if ending.outcome.completion is not None and attempt is not None:
            # Without the error's text, which may quote the result.
            logger.warning(
                "The result of %s cannot be stored: %s.",
                ending.held,
                error_code(error),
                extra={"event": "result_refused", **facts(ending.held.job, self._worker_id)},
            )
            ending.outcome = attempt.failed(error)
            return self.write([ending], wait=wait)
        ended = ending.outcome.ended
        if ended is not None and (ended["detail"] or ended["error"]):
            ending.outcome = Outcome(ended={**ended, "detail": None, "error": None})
            return self.write([ending], wait=wait)
        logger.error(
            "The end of %s cannot be recorded (%s); its lease runs out.",
            ending.held,
            error_code(error),
            extra={"event": "end_refused", **facts(ending.held.job, self._worker_id)},
        )
        ending.done = True
        return []

    def _commit(self, endings: Sequence[Ending], *, wait: bool) -> list[Ending]:
        group = _Group(self._engine, self._chains, self._worker_id, endings, wait=wait)
        written = self._engine.database.run(group.work, recover=group.recover, single=group.single)
        if group.unsure or group.found:  # a try before may have written it, and did not live to tell anybody
            self._engine.notifier.publish(ANYTHING)
        locked = []
        for ending in endings:
            if ending.held.job.id in group.locked:
                locked.append(ending)
                continue
            ending.done = True
            if ending.held.attempt is not None:
                ending.held.attempt.over(ending.outcome, written=ending.held.job.id in written)
        return locked


class _Group:
    """One transaction's worth of endings. Its work can run more than once, so it starts from nothing each time."""

    def __init__(self, engine: Engine, chains: Chains, worker_id: str, endings: Sequence[Ending], *, wait: bool) -> None:
        self._repository = engine.repository
        self._chains = chains
        self._worker_id = worker_id
        self._wait = wait
        self._endings = endings
        self.unsure = [ending.held.job.id for ending in endings if ending.unsure]
        self._completions = [c for ending in endings if (c := ending.outcome.completion) is not None]
        self._ended = [e for ending in endings if (e := ending.outcome.ended) is not None]
        plain = not self._ended and not self.unsure and all(map(is_simple, self._completions))
        self.single = plain and engine.database.dialect == "postgres"
        """Whether one statement writes all of it. On SQLite it takes several."""
        self.locked: set[str] = set()
        """Left out: somebody else has locked their rows."""
        self.found = False
        """Whether `recover` found that it was written."""
        self._plan = chains.plan(self._completions)

    def work(self, session: Session) -> set[str]:
        """The ids of what was written."""
        self.locked = set()
        written = self._written_before(session)
        plan = self._plan
        if written:
            plan = self._chains.plan([c for c in self._completions if c.job.id not in written])
        if plan.completions:
            result: Completed = self._chains.carry_out(session, self._worker_id, plan, wait=self._wait)
            self.locked |= result.unlocked
            written |= result.ids
        ended = self._lockable(session, self._ended)
        if ended:
            written |= self._chains.end_attempts(session, ended)
        return written

    def _written_before(self, session: Session) -> set[str]:
        # SQLite does not lose answers, and its transactions must start with a write.
        if not self.unsure or session.dialect == "sqlite":
            return set()
        jobs, tokens = self._repository.get_jobs(session, self.unsure), self._tokens()
        return {job.id for job in jobs.values() if self._is_ours(job, tokens[job.id])}

    def _lockable(self, session: Session, ended: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        if not ended or self._wait or session.dialect == "sqlite":
            return ended
        free = self._repository.lock_jobs(session, sorted(str(item["id"]) for item in ended), wait=False)
        self.locked |= {str(item["id"]) for item in ended} - free
        return [item for item in ended if item["id"] in free]

    def recover(self, session: Session) -> set[str] | None:
        """The answer to COMMIT was lost. If it went through, none of the jobs is held by us any more."""
        tokens = self._tokens()
        jobs = self._repository.get_jobs(session, list(tokens))
        for job in jobs.values():
            ours = job.status is Status.RUNNING and job.leased_by == self._worker_id
            if ours and job.lease_token == tokens[job.id] and job.id not in self.locked:
                return None
        self.found = True
        return set(tokens) - self.locked

    def _tokens(self) -> dict[str, int | None]:
        return {ending.held.job.id: ending.held.job.lease_token for ending in self._endings}

    def _is_ours(self, job: Job, token: int | None) -> bool:
        """Completed by this very attempt."""
        return job.status is Status.COMPLETED and job.completed_by == self._worker_id and job.lease_token == token

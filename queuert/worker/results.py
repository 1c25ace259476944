"""Writes how attempts ended, many in one transaction.

A group shares one commit, so one that the database refuses would take the others down with it: the group is halved until
the offender stands alone, and that one becomes a failed attempt with the error's code.

A group must not wait for a stranger's transaction either. Rows that somebody has locked are left out, and come back to the
caller for another time.

An error that passes (the database restarts, its disk is full, it is busy) is raised, and so is one of a broken set-up; what
was written before it is marked, and calling again writes the rest. It may be that COMMIT succeeded and only its answer was
lost: a completed job that carries our worker and our token says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from queuert.chains.attempts import end_attempts, lock_failing
from queuert.chains.complete import batch, complete_batch
from queuert.context import Context
from queuert.error_codes import error_code
from queuert.model import Job, Status
from queuert.notify.protocol import ANYTHING
from queuert.observing import facts
from queuert.storage.protocol import Session
from queuert.storage.trouble import Trouble
from queuert.worker.held import Held
from queuert.worker.outcome import Outcome

logger = logging.getLogger("queuert.worker")


class Result:
    """A job in hand whose attempt has ended, with what is to be written about it."""

    __slots__ = ("done", "held", "outcome", "size", "tries", "unsure")

    def __init__(self, held: Held, outcome: Outcome) -> None:
        self.held = held
        self.outcome = outcome
        # Characters of what is to be stored, more or less.
        self.size = outcome.completion.size if outcome.completion is not None else 0
        self.done = False
        # How often its rows were found locked.
        self.tries = 0
        # Whether an earlier try may have been committed without our knowing.
        self.unsure = False


class ResultWriter:
    """Writes results for one worker."""

    def __init__(self, context: Context, worker_id: str) -> None:
        self._context = context
        self._worker_id = worker_id

    def write(self, results: Sequence[Result], *, wait: bool) -> list[Result]:
        """Write results and mark them as done; those whose rows are locked by others come back, unless it may `wait`."""
        for result in results:
            if result.outcome.commit is not None:
                self._settle(result)
        open_ = [result for result in results if not result.done]
        if not open_:
            return []
        try:
            return self._commit(open_, wait=wait)
        except Exception as error:
            if self._context.database.is_transient(error):
                for result in open_:
                    result.unsure = True
                raise
            if self._context.database.trouble(error) is Trouble.SET_UP:
                raise
            if len(open_) > 1:
                middle = len(open_) // 2
                return self.write(open_[:middle], wait=wait) + self.write(open_[middle:], wait=wait)
            return self._refused(open_[0], error, wait=wait)

    def _settle(self, result: Result) -> None:
        """The handler has written it itself, and left it to us to wait for the disk."""
        attempt = result.held.attempt
        assert attempt is not None
        outcome = attempt.settle(result.outcome)
        result.done = outcome.committed
        result.outcome = attempt.broken_off() if outcome.lost else outcome

    def _refused(self, result: Result, error: Exception, *, wait: bool) -> list[Result]:
        attempt = result.held.attempt
        if result.outcome.completion is not None and attempt is not None:
            # Without the error's text, which may quote the result.
            logger.warning(
                "The result of %s cannot be stored: %s.",
                result.held,
                error_code(error),
                extra={"event": "result_refused", **facts(result.held.job, self._worker_id)},
            )
            result.outcome = attempt.failed(error)
            return self.write([result], wait=wait)
        record = result.outcome.record
        if record is not None and (record["detail"] or record["error"]):
            result.outcome = Outcome(record={**record, "detail": None, "error": None})
            return self.write([result], wait=wait)
        logger.error(
            "The end of %s cannot be recorded (%s); its lease runs out.",
            result.held,
            error_code(error),
            extra={"event": "end_refused", **facts(result.held.job, self._worker_id)},
        )
        result.done = True
        return []

    def _commit(self, results: Sequence[Result], *, wait: bool) -> list[Result]:
        group = _Transaction(self._context, self._worker_id, results, wait=wait)
        written = self._context.database.run(group.work, recover=group.recover, single=group.single)
        if group.unsure or group.found:  # a try before may have written it, and did not live to tell anybody
            self._context.notifier.publish(ANYTHING)
        locked = []
        for result in results:
            if result.held.job.id in group.locked:
                locked.append(result)
                continue
            result.done = True
            if result.held.attempt is not None:
                result.held.attempt.over(result.outcome, written=result.held.job.id in written)
        return locked


class _Transaction:
    """One transaction's worth of results. Its work can run more than once, so it starts from nothing each time."""

    def __init__(self, context: Context, worker_id: str, results: Sequence[Result], *, wait: bool) -> None:
        self._context = context
        self._worker_id = worker_id
        self._wait = wait
        self._results = results
        # SQLite does not lose answers, and its transactions must start with a write.
        self.unsure = [r.held.job.id for r in results if r.unsure] if context.database.loses_answers else []
        self._completions = [c for result in results if (c := result.outcome.completion) is not None]
        self._records = [r.held.with_news(record) for r in results if (record := r.outcome.record) is not None]
        plain = not self._records and not self.unsure and all(completion.is_simple for completion in self._completions)
        # Whether one statement writes all of it.
        self.single = plain and context.repository.completes_in_one_statement
        # Left out: somebody else has locked their rows.
        self.locked: set[str] = set()
        # Whether `recover` found that it was written.
        self.found = False
        self._batch = batch(context, worker_id, self._completions)

    def work(self, session: Session) -> set[str]:
        """The ids of what was written."""
        self.locked = set()
        written = self._written_before(session)
        todo = self._batch
        if written:
            todo = batch(self._context, self._worker_id, [c for c in self._completions if c.job.id not in written])
        if todo.completions:
            completed = complete_batch(self._context, session, self._worker_id, todo, wait=self._wait)
            self.locked |= completed.locked
            written |= completed.ids
        records, locked = lock_failing(self._context, session, self._records, wait=self._wait) if self._records else ([], set())
        self.locked |= locked
        if records:
            written |= end_attempts(self._context, session, records)
        return written

    def _written_before(self, session: Session) -> set[str]:
        if not self.unsure:
            return set()
        jobs, tokens = self._context.repository.get_jobs(session, self.unsure), self._tokens()
        return {job.id for job in jobs.values() if self._is_ours(job, tokens[job.id])}

    def recover(self, session: Session) -> set[str] | None:
        """The answer to COMMIT was lost. If it went through, none of the jobs is held by us any more."""
        tokens = self._tokens()
        jobs = self._context.repository.get_jobs(session, list(tokens))
        for job in jobs.values():
            ours = job.status is Status.RUNNING and job.leased_by == self._worker_id
            if ours and job.lease_token == tokens[job.id] and job.id not in self.locked:
                return None
        self.found = True
        return set(tokens) - self.locked

    def _tokens(self) -> dict[str, int | None]:
        return {result.held.job.id: result.held.job.lease_token for result in self._results}

    def _is_ours(self, job: Job, token: int | None) -> bool:
        """Completed by this very attempt."""
        return job.status is Status.COMPLETED and job.completed_by == self._worker_id and job.lease_token == token

"""One try of one job: decode the input, call the handler inside its middlewares, and say how it ended (`outcome.py`).

The transaction of `complete()` stays open until the handler returns, so that whatever goes wrong up to then undoes all of it.
A handler that raises leaves the transaction rolled back, and the failure is recorded in another: SQL that failed in the
block poisons nothing.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn

from queuert import observing
from queuert.chains.complete import Completion, complete_and_commit
from queuert.chains.continuing import next_job
from queuert.chains.new_chain import schedule
from queuert.context import Context
from queuert.error_codes import MAX_CODE, MAX_DETAIL, MAX_ERROR, clean, error_code, error_detail
from queuert.errors import JobTakenByAnotherWorkerError, QueuertError, TransactionMisuseError, UnreadableRowError
from queuert.job_types import JobType
from queuert.model import Chain, Job, Status
from queuert.notify.protocol import ANYTHING
from queuert.options import BackoffFunction
from queuert.progress import Report
from queuert.running_job import Continuation, JobInterruptedError, Reason, RunningJob, Signal, running_here
from queuert.storage.protocol import Block, Commit, Session
from queuert.storage.trouble import Trouble
from queuert.worker.completing import CompletingBlock, completion_of
from queuert.worker.outcome import Outcome, Record, causes, failed, known_reason, lost_reason, record, rescheduled, undecodable

logger = logging.getLogger("queuert.worker")

TRANSIENT_PAUSE = 0.05
"""Seconds before an attempt that fell victim to a deadlock is run again; twice as many for each time that was for nothing."""
LONGEST_TRANSIENT_PAUSE = 60.0
MOST_EXCUSES = 10  # in a row: a job whose own SQL ends its connection, or never gets its lock, fails in the end


class _Decided(Exception):
    """Raised by `fail` and `reschedule`, to leave the handler; what was decided holds even if it is caught."""


class AttemptRun:
    """Runs one attempt. Used by one thread, except for its signal."""

    def __init__(
        self,
        context: Context,
        job: Job,
        job_type: JobType[Any, Any],
        *,
        worker_id: str,
        middleware: Sequence[object] = (),
        backoff: BackoffFunction | None = None,
        claimed: float | None = None,
        settles: bool = False,
    ) -> None:
        self.job = job
        self.job_type = job_type
        self.signal = Signal(job.id)
        self.report = Report()
        self._context = context
        self._worker_id = worker_id
        self._middleware = (*middleware, *job_type.middleware)
        self._backoff = backoff
        self._claimed = time.monotonic() if claimed is None else claimed
        self._settles = settles  # the caller calls `settle`, so that `run` need not wait for the disk
        self._waited: float | None = None
        self._running: RunningJob[Any] | None = None
        self._decision: Record | None = None
        self._blockers: list[Chain] | None = None
        self._continuations: list[Continuation] = []
        self._block: Block | None = None  # the transaction of `complete()`
        self._session: Session | None = None
        self._spoiled: BaseException | None = None
        self._failed_by_database = False  # a transaction was lost by what the database did, not the handler
        self._handler_done = False  # what goes wrong then is ours
        self._closed_by_handler = False
        self._observed: observing.Observed | None = None
        self._ran: float | None = None  # seconds from the handler's start to its end

    def run(self) -> Outcome:
        """Run the handler; never raises an `Exception`."""
        observing.attempt_started(self.job, self._worker_id)
        observer = self._context.observer
        try:
            if observer is None:
                return self._run_surrounded()
            with observer.attempt(self.job, self._worker_id) as self._observed:
                return self._run_surrounded()
        finally:
            self._running = None  # which knows the attempt: a circle for each job would keep the garbage collector busy

    def _run_surrounded(self) -> Outcome:
        outcome: Outcome | None = None
        try:
            with self._context.database.around_attempt():
                outcome = self._run()
        except Exception as error:
            if outcome is None:
                return self._ended(error)
            logger.exception("What is around the attempts of %s raised after it had ended.", self.job.type_name)
        return outcome

    def over(self, outcome: Outcome, *, written: bool = True) -> None:
        """What became of the attempt is committed; or nothing is, since its lease was lost."""
        if outcome.committed:
            return  # told already
        record, next_id = outcome.record if written else None, None
        name: observing.OutcomeName = "succeeded"
        if not written:
            name = "cancelled" if self.signal.reason in ("cancelled", "already_completed", "not_found") else "lost"
        elif record is not None:
            failure: observing.OutcomeName = "failed" if record["status"] == "failed" else "retried"
            name = failure if record["outcome"] == "failed" else "rescheduled"
        elif outcome.completion is not None and outcome.completion.next is not None:
            following = outcome.completion.next
            next_id = following.id
            if following.produced is not None:
                following.produced.committed([next_id])
        about = (self._context, self.job, self._worker_id, name)
        observing.attempt_over(*about, record=record, error=outcome.error, seconds=self._ran, continued_to=next_id)
        if self._observed is not None:
            self._observed.over(name, None if record is None else record["code"])

    def _run(self) -> Outcome:
        self._waited = time.monotonic() - self._claimed
        if self.job._unreadable is not None:
            error = UnreadableRowError(f"The row of this job cannot be read: {self.job._unreadable}.")
            return Outcome(record=self._failure(error, error.error_code, final=True))
        try:
            decoded = self.job_type.decode_input(self.job.input)
        except Exception as error:
            return Outcome(record=undecodable(self._failure(error, "INVALID_INPUT:SCHEMA_MISMATCH", final=True)))
        self._running = running = RunningJob._of(self, self.job, decoded, self.signal)
        if self.job_type.timeout is not None and self.job.last_attempt_at is not None:
            start = self.job.last_attempt_at + timedelta(seconds=self._waited)
            running.__dict__["deadline"] = start + timedelta(seconds=self.job_type.timeout)
        called = time.monotonic()
        try:
            try:
                result = self._call(running)
            finally:
                self._ran = time.monotonic() - called
            if self._spoiled is not None and self._decision is None:
                raise self._spoiled
        except Exception as error:
            self._roll_back(error)
            return self._ended(error)
        except BaseException as error:
            self._roll_back(error)
            if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
                raise
            return self._ended(error)  # sys.exit() in a handler ends the attempt, not the worker
        if self._decision is not None:
            self._roll_back(_Decided())
            return Outcome(record=self._decision)
        return self._finish(result)

    def _call(self, running: RunningJob[Any]) -> object:
        handler = self.job_type.handler
        if handler is None:
            raise QueuertError(f"The job type {self.job_type.name!r} has no handler here.")
        call: Callable[[], object] = functools.partial(handler, running)
        for layer in reversed(self._middleware):
            around = getattr(layer, "around_attempt", None)
            if around is not None:
                call = functools.partial(around, running, call)
        before = running_here.set(running)
        try:
            return call()
        finally:
            running_here.reset(before)

    # After the handler

    def _finish(self, result: object) -> Outcome:
        try:
            completion = completion_of(self._context, self.job, result, self._continuations, self._waited)
        except BaseException as error:
            self._roll_back(error)
            if not isinstance(error, Exception):
                raise
            return self._ended(error)
        if self._block is None:
            return Outcome(completion=completion)
        return self._commit(completion)

    def _commit(self, completion: Completion) -> Outcome:
        """Complete the job in the handler's own transaction, and commit it."""
        block, self._block = self._block, None
        assert block is not None
        self._failed_by_database = self._handler_done = True
        try:
            commit = self._complete_and_commit(block, completion)
            if self._settles and not commit.ended:
                return Outcome(completion=completion, commit=commit)
            commit.wait()
        except Exception as error:
            return self._not_committed(completion, error)
        return self._committed(completion)

    def _complete_and_commit(self, block: Block, completion: Completion) -> Commit:
        try:
            _, commit = complete_and_commit(self._context, block, self._worker_id, completion)
            if commit is None:
                reason = self._find_reason(block.session) or "taken_by_another_worker"
                raise JobTakenByAnotherWorkerError(self.job.id, reason)
        except BaseException as error:
            self._leave(block, error)
            raise
        return commit

    def settle(self, outcome: Outcome) -> Outcome:
        """Wait for the commit of an attempt that did not; how it ended after all."""
        assert outcome.commit is not None
        assert outcome.completion is not None
        try:
            outcome.commit.wait()
        except Exception as error:
            return self._not_committed(outcome.completion, error)
        return self._committed(outcome.completion)

    def _not_committed(self, completion: Completion, error: Exception) -> Outcome:
        if self._context.database.is_transient(error):
            committed = self._was_committed()
            self._context.notifier.publish(ANYTHING)  # if it was, its notices were lost with the answer
            if committed:
                return self._committed(completion)
        return self._ended(error)

    def _committed(self, completion: Completion) -> Outcome:
        self.over(Outcome(completion=completion))
        return Outcome(committed=True)

    def _was_committed(self) -> bool:
        """The answer to COMMIT may have been lost: our own token on a completed job says that it succeeded."""
        try:
            with self._context.database.read() as session:
                job = self._context.repository.get_jobs(session, [self.job.id]).get(self.job.id)
        except Exception:
            return False
        # A completion from outside leaves our token in the row, but not our name.
        return (
            job is not None
            and job.status is Status.COMPLETED
            and job.completed_by == self._worker_id
            and job.lease_token == self.job.lease_token
        )

    def _ended(self, error: BaseException) -> Outcome:
        if self._decision is not None:
            return Outcome(record=self._decision)
        if isinstance(error, JobTakenByAnotherWorkerError):
            self.signal.set(known_reason(error.reason))
            return Outcome()
        if isinstance(error, JobInterruptedError) and error.reason not in ("timeout", "stopping"):
            return Outcome()
        if isinstance(error, JobInterruptedError) and error.reason == "stopping":
            return Outcome(record=self._again(0.0, "The worker is stopping."))
        if self._closed_by_handler:
            error = TransactionMisuseError("The handler closed the connection of its transaction: nothing of it is saved.")
        # A deadlock's victim, or a lost connection: nobody's fault, so it costs no attempt. Unless it goes on like that.
        passes = self._failed_by_database and any(map(self._context.database.is_transient, causes(error)))
        if passes and self.job.excuses < MOST_EXCUSES:
            return Outcome(record=self._excused(error))
        if self._handler_done and self._context.database.trouble(error) is Trouble.SET_UP:
            return Outcome(record=self._again(0.0, error_detail(error)), fatal=error)
        record = self._failure(error, error_code(error, self._context.settings.error_codes))
        return Outcome(record=record, error=error if record["status"] == "failed" else None)

    def failed(self, error: BaseException) -> Outcome:  # outside of the handler
        return Outcome(record=self._failure(error, error_code(error, self._context.settings.error_codes)))

    def broken_off(self, detail: str = "The lease could not be renewed in time.") -> Outcome:
        """The handler did not come to its end for no fault of its own: the job goes back, and no attempt is used up."""
        return Outcome(record=self._again(0.0, detail))

    def _failure(self, error: BaseException, code: str, *, final: bool = False) -> Record:
        backoff = self.job_type.resolve_backoff(self._backoff)
        return failed(self.job, self._worker_id, error, code, backoff, self._waited, final=final)

    def _excused(self, error: BaseException) -> Record:
        # Not all at once: those that failed together might do so again.
        excuses = self.job.excuses
        pause = min(TRANSIENT_PAUSE * 2**excuses * random.uniform(0.5, 1.5), LONGEST_TRANSIENT_PAUSE)
        return rescheduled(self.job, self._worker_id, pause, error_detail(error), self._waited, excuses=excuses + 1)

    def _again(self, after: float, detail: str) -> Record:
        return rescheduled(self.job, self._worker_id, after, detail, self._waited)

    # What the handler calls

    def blockers(self) -> list[Chain]:
        if self._blockers is None:
            if not self.job.blocker_count:
                self._blockers = []
            else:
                self._blockers = self._read_blockers()
        return list(self._blockers)

    def _read_blockers(self) -> list[Chain]:
        repository, session = self._context.repository, self._session
        if session is not None and self._block is not None:
            found = repository.get_blockers(session, [self.job.id])
        else:
            with self._context.database.read() as reading:
                found = repository.get_blockers(reading, [self.job.id])
        return [self._context.payloads.decode_chain(chain) for chain in found.get(self.job.id, [])]

    @contextmanager
    def prepare(self) -> Iterator[Any]:
        if self._session is not None:
            raise QueuertError("prepare() must come before complete().")
        with self._watched(self._open_block()) as session:
            with ExitStack() as stack:
                yield self.enter(stack, "around_prepare", session)
            # The lease is checked under the row's lock, so that a worker that lost it cannot commit here either.
            self._context.repository.lock_jobs(session, [self.job.id])
            reason = self._find_reason(session)
            if reason is not None:
                raise JobTakenByAnotherWorkerError(self.job.id, reason)

    def _open_block(self) -> Block:
        # One that was undone before, maybe together with others, commits alone.
        return self._context.database.block(shared=not self.job.attempts_forgiven)

    @contextmanager
    def _watched(self, block: Block) -> Iterator[Session]:
        """Notices when it is the database that ends a transaction."""
        inside = False
        try:
            with block as session:
                inside = True
                try:
                    yield session
                except BaseException:
                    self._find_fault(session)
                    raise
                inside = False
        except BaseException:
            self._failed_by_database |= not inside
            raise

    def complete(self) -> AbstractContextManager[Any]:
        return CompletingBlock(self)

    def open_completion(self) -> Session:
        if self._session is not None:
            raise QueuertError("complete() can be used once in an attempt.")
        self.signal_if_lost()
        block = self._open_block()
        try:
            self._session = session = block.__enter__()
        except BaseException:
            self._failed_by_database = True
            raise
        self._block = block
        return session

    def spoil(self, error: BaseException) -> None:
        """The block of `complete()` was left with an error: whatever the handler does now, it is undone."""
        self._spoiled = error
        self._roll_back(error)

    def signal_if_lost(self) -> None:
        """A handler that was told that its job is gone need not begin to write."""
        reason = self.signal.reason
        if reason is not None and reason not in ("timeout", "stopping"):
            raise JobTakenByAnotherWorkerError(self.job.id, reason)

    def enter(self, stack: ExitStack, name: str, session: Session) -> Any:
        """Enter the middlewares around a block; the connection for the handler."""
        conn = stack.enter_context(self._context.database.lend(session))
        if not self._middleware:
            return conn
        for layer in self._middleware:
            around = getattr(layer, name, None)
            if around is not None:
                stack.enter_context(around(self._running, conn))
        return conn

    def continue_with(self, job_type: JobType[Any, Any] | str, input: object, **options: Any) -> Continuation:
        made = Continuation(self.job.id, next_job(self._context, self.job, job_type, input, **options))
        self._continuations.append(made)
        return made

    def reschedule(self, *, after: Any, at: datetime | None, error: str | None, hold: bool = False) -> NoReturn:
        if (after is None) == (at is None):
            raise ValueError("reschedule takes exactly one of `after` and `at`.")
        if error is not None and not isinstance(error, str):
            raise TypeError(f"reschedule's error must be a string, not {type(error).__name__}.")
        due_at, due_after = schedule(at, after)
        self._decision = record(
            self.job,
            self._worker_id,
            outcome="rescheduled",
            waited=self._waited,
            at=due_at,
            after=due_after,
            forgive=1,
            detail=None if error is None else clean(error, MAX_DETAIL),
            error=None if error is None else clean(error, MAX_ERROR),
            hold=due_after if hold else None,
        )
        raise _Decided(f"Job {self.job.id} is rescheduled.")

    def fail(self, code: str, detail: str | None) -> NoReturn:
        if not isinstance(code, str) or not code.strip():
            raise ValueError("fail takes a code such as 'PAYMENT:DECLINED'.")
        if detail is not None and not isinstance(detail, str):
            raise TypeError(f"fail's detail must be a string, not {type(detail).__name__}.")
        code = clean(code, MAX_CODE)
        text = detail or code
        texts = {"code": code, "detail": clean(text, MAX_DETAIL), "error": clean(text, MAX_ERROR)}
        self._decision = record(self.job, self._worker_id, outcome="failed", status="failed", waited=self._waited, **texts)
        raise _Decided(f"Job {self.job.id} failed for good: {code}.")

    # The lease

    def _find_reason(self, session: Session) -> Reason | None:
        state = self._context.repository.lease_states(session, [self.job.id]).get(self.job.id)
        return lost_reason(state, self._worker_id, self.job.lease_token)

    def _roll_back(self, error: BaseException) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._leave(block, error)

    def _leave(self, block: Block, error: BaseException) -> None:
        """Leave a transaction with an error: it is rolled back, and the error stays the caller's to raise."""
        if self._session is not None:
            self._find_fault(self._session)
        try:
            block.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                logger.debug("Rolling back raised another error.", exc_info=True)

    def _find_fault(self, session: Session) -> None:
        """An error is about to end a transaction. If it is still good, then the error came from elsewhere."""
        fault = session.fault()
        self._closed_by_handler |= fault == "closed"
        self._failed_by_database |= fault == "database"

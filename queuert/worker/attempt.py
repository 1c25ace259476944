"""One try of one job: decode the input, call the handler inside its middlewares, and say how it ended.

An attempt ends in one of four ways:

- the handler returned: a `Completion`, for the caller to commit, together with others if it likes;
- the handler used `complete()`: the attempt has committed it itself, in the handler's own transaction;
- it raised, was rescheduled or failed for good: an item for `end_attempts`, for the caller to record;
- the lease was lost: nothing, since nothing may be written any more.

The transaction of `complete()` stays open until the handler returns, so that whatever goes wrong up to then undoes all of it.
A handler that raises leaves the transaction rolled back, and the failure is recorded in another: SQL that failed in the
block poisons nothing.
"""

from __future__ import annotations

import functools
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn

from queuert import observing
from queuert.chains.acts import Chains, Completion, is_simple
from queuert.context import Engine, schedule
from queuert.error_codes import MAX_CODE, MAX_DETAIL, MAX_ERROR, clean, error_code, error_detail, error_text
from queuert.errors import JobTakenByAnotherWorkerError, JobTypeValidationError, QueuertError
from queuert.job_types import JobType
from queuert.model import Chain, Job, Status
from queuert.notify.protocol import ANYTHING
from queuert.options import Backoff, BackoffFunction, seconds
from queuert.running_job import Continuation, JobInterruptedError, Reason, RunningJob, Signal
from queuert.sqlite.guard import TransactionMisuseError
from queuert.storage.protocol import Commit, Session
from queuert.storage.repository import LeaseState

logger = logging.getLogger("queuert.worker")

TRANSIENT_PAUSE = 0.05
"""Seconds before an attempt that fell victim to a deadlock is run again; twice as many for each time that was for nothing."""
LONGEST_TRANSIENT_PAUSE = 60.0


@dataclass
class Outcome:
    """How an attempt ended, and what is left for the caller to write."""

    completion: Completion | None = None
    ended: dict[str, Any] | None = None
    committed: bool = False
    """`complete()` has written everything already."""
    commit: Commit | None = None
    """`complete()` has written the completion, which is on its way to the disk: see `settle`."""

    @property
    def lost(self) -> bool:
        return self.completion is None and self.ended is None and not self.committed


class _Decided(Exception):
    """Raised by `fail` and `reschedule`, to leave the handler; what was decided holds even if it is caught."""


class AttemptRun:
    """Runs one attempt. Used by one thread, except for its signal."""

    def __init__(
        self,
        engine: Engine,
        chains: Chains,
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
        self._engine = engine
        self._chains = chains
        self._worker_id = worker_id
        self._middleware = (*middleware, *job_type.middleware)
        self._backoff = backoff
        self._claimed = time.monotonic() if claimed is None else claimed
        self._settles = settles
        """Whether the caller calls `settle`, so that `run` need not wait for the disk."""
        self._waited: float | None = None
        self._running: RunningJob[Any] | None = None
        self._decision: dict[str, Any] | None = None
        self._blockers: list[Chain] | None = None
        # The transaction of `complete()`.
        self._block: AbstractContextManager[Session] | None = None
        self._session: Session | None = None
        self._spoiled: BaseException | None = None
        self._failed_by_database = False
        """A transaction was lost by what the database did, and not by what the handler did."""
        self._closed_by_handler = False
        self._observed: observing.Observed | None = None
        self._ran: float | None = None
        """Seconds from the handler's start to its end."""

    def run(self) -> Outcome:
        """Run the handler; never raises an `Exception`."""
        observing.attempt_started(self.job, self._worker_id)
        observer = self._engine.observer
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
            with self._engine.database.around_attempt():
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
        ended, next_id, code = outcome.ended, None, None
        ending: observing.Ending = "succeeded"
        if not written:
            ending = "cancelled" if self.signal.reason in ("cancelled", "already_completed", "not_found") else "lost"
        elif ended is not None:
            code = ended["code"]
            failed: observing.Ending = "failed" if ended["status"] == "failed" else "retried"
            ending = failed if ended["outcome"] == "failed" else "rescheduled"
        elif outcome.completion is not None and outcome.completion.next is not None:
            following = outcome.completion.next
            next_id = str(following.columns["next_id"])
            if following.produced is not None:
                following.produced.committed([next_id])
        observing.attempt_over(self.job, self._worker_id, ending, error_code=code, seconds=self._ran, continued_to=next_id)
        if self._observed is not None:
            self._observed.over(ending, code)

    def _run(self) -> Outcome:
        self._waited = time.monotonic() - self._claimed
        try:
            decoded = self.job_type.decode_input(self.job.input)
        except Exception as error:
            return Outcome(ended=self._failure(error, "INVALID_INPUT:SCHEMA_MISMATCH", final=True))
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
            return Outcome(ended=self._decision)
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
        return call()

    # After the handler

    def _finish(self, result: object) -> Outcome:
        try:
            completion = self._completion(result)
        except BaseException as error:
            self._roll_back(error)
            if not isinstance(error, Exception):
                raise
            return self._ended(error)
        if self._block is None:
            return Outcome(completion=completion)
        return self._commit(completion)

    def _completion(self, result: object) -> Completion:
        token = self.job.lease_token
        if isinstance(result, Continuation):
            if result.job_id != self.job.id:
                raise JobTypeValidationError(
                    "invalid_continuation",
                    "The handler returned the continuation of another job.",
                    type_name=self.job.type_name,
                )
            return Completion(self.job, None, token, result.next_job, self._waited)
        output = self._engine.encode_output(self.job.type_name, result)
        return Completion(self.job, output, token, None, self._waited)

    def _commit(self, completion: Completion) -> Outcome:
        """Complete the job in the handler's own transaction, and commit it."""
        session, block = self._session, self._block
        assert session is not None
        assert block is not None
        self._block = None
        self._failed_by_database = True  # if anything does: the handler's part is over
        try:
            try:
                if is_simple(completion):
                    session.ends_with_next()
                done = self._chains.complete(session, self._worker_id, [completion])
                if not done.ids:
                    raise JobTakenByAnotherWorkerError(self.job.id, self._find_reason(session) or "taken_by_another_worker")
            except BaseException as error:
                self._leave(block, error)
                raise
            leave = getattr(block, "leave", None) if self._settles else None
            if leave is None:
                block.__exit__(None, None, None)
            else:
                commit: Commit = leave()
                if not commit.ended:
                    return Outcome(completion=completion, commit=commit)
                commit.wait()
        except Exception as error:
            return self._not_committed(completion, error)
        return self._committed(completion)

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
        if self._engine.database.is_transient(error):
            committed = self._was_committed()
            self._engine.notifier.publish(ANYTHING)  # if it was, its notices were lost with the answer
            if committed:
                return self._committed(completion)
        return self._ended(error)

    def _committed(self, completion: Completion) -> Outcome:
        self.over(Outcome(completion=completion))
        return Outcome(committed=True)

    def _was_committed(self) -> bool:
        """The answer to COMMIT may have been lost: our own token on a completed job says that it succeeded."""
        try:
            with self._engine.database.read() as session:
                job = self._engine.repository.get_jobs(session, [self.job.id]).get(self.job.id)
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
            return Outcome(ended=self._decision)
        if isinstance(error, JobTakenByAnotherWorkerError):
            self.signal.set(_reason(error.reason))
            return Outcome()
        if isinstance(error, JobInterruptedError) and error.reason not in ("timeout", "stopping"):
            return Outcome()
        if isinstance(error, JobInterruptedError) and error.reason == "stopping":
            return Outcome(ended=self._again(0.0, "The worker is stopping."))
        if self._closed_by_handler:
            error = TransactionMisuseError("The handler closed the connection of its transaction: nothing of it is saved.")
        if self._failed_by_database and any(map(self._engine.database.is_transient, _causes(error))):
            # A deadlock's victim, or a lost connection: nobody's fault, so it costs no attempt.
            # Not all at once: those that failed together might do so again.
            pause = TRANSIENT_PAUSE * 2 ** min(self.job.attempts_forgiven, 20) * random.uniform(0.5, 1.5)
            return Outcome(ended=self._again(min(pause, LONGEST_TRANSIENT_PAUSE), error_detail(error)))
        return Outcome(ended=self._failure(error, error_code(error, self._engine.settings.error_codes)))

    def failed(self, error: BaseException) -> Outcome:
        """The attempt ended with this error, outside of the handler."""
        return Outcome(ended=self._failure(error, error_code(error, self._engine.settings.error_codes)))

    def broken_off(self, detail: str = "The lease could not be renewed in time.") -> Outcome:
        """The handler did not come to its end for no fault of its own: the job goes back, and no attempt is used up."""
        return Outcome(ended=self._again(0.0, detail))

    # What is recorded

    def _item(self, **values: Any) -> dict[str, Any]:
        return {
            "id": self.job.id,
            "worker": self._worker_id,
            "token": self.job.lease_token,
            "at": None,
            "after": None,
            "forgive": 0,
            "waited": self._waited,
            "code": None,
            "detail": None,
            "error": None,
            **values,
        }

    def _failure(self, error: BaseException, code: str, *, final: bool = False) -> dict[str, Any]:
        return self._item(
            outcome="failed",
            code=code,
            detail=error_detail(error),
            error=error_text(error),
            **retry_or_fail(self.job, self.job_type.resolve_backoff(self._backoff), final=final),
        )

    def _again(self, after: float, detail: str) -> dict[str, Any]:
        return self._item(outcome="rescheduled", status="pending", after=after, forgive=1, detail=detail, error=detail)

    # What the handler calls

    def blockers(self) -> list[Chain]:
        if self._blockers is None:
            if not self.job.blocker_count:
                self._blockers = []
            else:
                self._blockers = self._read_blockers()
        return list(self._blockers)

    def _read_blockers(self) -> list[Chain]:
        repository, session = self._engine.repository, self._session
        if session is not None and self._block is not None:
            found = repository.get_blockers(session, [self.job.id])
        else:
            with self._engine.database.read() as reading:
                found = repository.get_blockers(reading, [self.job.id])
        return [self._engine.decode_chain(chain) for chain in found.get(self.job.id, [])]

    @contextmanager
    def prepare(self) -> Iterator[Any]:
        if self._session is not None:
            raise QueuertError("prepare() must come before complete().")
        with self._watched(self._open_block()) as session:
            with ExitStack() as stack:
                yield self.enter(stack, "around_prepare", session)
            # The lease is checked under the row's lock, so that a worker that lost it cannot commit here either.
            self._engine.repository.lock_jobs(session, [self.job.id])
            reason = self._find_reason(session)
            if reason is not None:
                raise JobTakenByAnotherWorkerError(self.job.id, reason)

    def _open_block(self) -> AbstractContextManager[Session]:
        # One that was undone before, maybe together with others, commits alone.
        return self._engine.database.block(shared=not self.job.attempts_forgiven)

    @contextmanager
    def _watched(self, block: AbstractContextManager[Session]) -> Iterator[Session]:
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
        return _Completing(self)

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
        conn = stack.enter_context(self._engine.database.lend(session))
        if not self._middleware:
            return conn
        for layer in self._middleware:
            around = getattr(layer, name, None)
            if around is not None:
                stack.enter_context(around(self._running, conn))
        return conn

    def continue_with(self, job_type: JobType[Any, Any] | str, input: object, **options: Any) -> Continuation:
        return Continuation(self.job.id, self._chains.next_job(self.job, job_type, input, **options))

    def reschedule(self, *, after: Any, at: datetime | None, error: str | None) -> NoReturn:
        if (after is None) == (at is None):
            raise ValueError("reschedule takes exactly one of `after` and `at`.")
        if error is not None and not isinstance(error, str):
            raise TypeError(f"reschedule's error must be a string, not {type(error).__name__}.")
        due_at, due_after = schedule(at, after)
        self._decision = self._item(
            outcome="rescheduled",
            status="pending",
            at=due_at,
            after=due_after,
            forgive=1,
            detail=None if error is None else clean(error, MAX_DETAIL),
            error=None if error is None else clean(error, MAX_ERROR),
        )
        raise _Decided(f"Job {self.job.id} is rescheduled.")

    def fail(self, code: str, detail: str | None) -> NoReturn:
        if not isinstance(code, str) or not code.strip():
            raise ValueError("fail takes a code such as 'PAYMENT:DECLINED'.")
        if detail is not None and not isinstance(detail, str):
            raise TypeError(f"fail's detail must be a string, not {type(detail).__name__}.")
        code = clean(code, MAX_CODE)
        text = detail or code
        self._decision = self._item(
            outcome="failed", status="failed", code=code, detail=clean(text, MAX_DETAIL), error=clean(text, MAX_ERROR)
        )
        raise _Decided(f"Job {self.job.id} failed for good: {code}.")

    # The lease

    def _find_reason(self, session: Session) -> Reason | None:
        state = self._engine.repository.lease_states(session, [self.job.id]).get(self.job.id)
        return lost_reason(state, self._worker_id, self.job.lease_token)

    def _roll_back(self, error: BaseException) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._leave(block, error)

    def _leave(self, block: AbstractContextManager[Session], error: BaseException) -> None:
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
        conn = session.raw
        if session.dialect == "sqlite":
            self._failed_by_database |= not conn.in_transaction
        elif conn.closed and not conn.broken and not getattr(conn, "interrupted", False):  # one that was lost is broken
            self._closed_by_handler = True
        else:
            self._failed_by_database |= conn.closed or conn.info.transaction_status.name in ("INERROR", "UNKNOWN")


class _Completing:
    """The block of `complete()`. Not a generator, which costs twice as much: every job may come through here."""

    __slots__ = ("_attempt", "_stack")

    def __init__(self, attempt: AttemptRun) -> None:
        self._attempt = attempt
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        session = self._attempt.open_completion()
        try:
            return self._attempt.enter(self._stack, "around_complete", session)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        try:
            swallowed = bool(self._stack.__exit__(kind, error, traceback))
        except BaseException as raised:
            self._attempt.spoil(raised)
            raise
        if error is not None and not swallowed:
            self._attempt.spoil(error)
        return swallowed


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from: frameworks wrap those of the driver."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def retry_or_fail(job: Job, backoff: BackoffFunction | Backoff, *, final: bool = False) -> dict[str, Any]:
    """What becomes of a job whose attempt failed: another try after a wait, or the end."""
    used = job.attempts_used
    if final or (job.max_attempts is not None and used >= job.max_attempts):
        return {"status": "failed"}
    try:
        wait = seconds(backoff(used), "the backoff")
    except Exception:
        logger.exception("The backoff of %r gave no number of seconds; the default is used.", job.type_name)
        wait = Backoff()(used)
    return {"status": "pending", "after": wait}


def lost_reason(state: LeaseState | None, worker_id: str, token: int | None) -> Reason | None:
    """Why a worker holds a job no longer; None while it does."""
    if state is None:
        return "not_found"
    if state.status is Status.RUNNING and state.leased_by == worker_id and state.lease_token == token:
        return None
    if state.status is Status.COMPLETED:
        return "already_completed"
    if state.status is Status.CANCELLED:
        return "cancelled"
    return "taken_by_another_worker"


def _reason(text: str) -> Reason:
    known: dict[str, Reason] = {
        "not_found": "not_found",
        "already_completed": "already_completed",
        "cancelled": "cancelled",
    }
    return known.get(text, "taken_by_another_worker")

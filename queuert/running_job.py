"""What a handler sees: the running job, its signal, and the continuation it may return.

These classes hold no logic of their own; what they do is done by the attempt behind them (`worker/attempt.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NoReturn, TypeVar, overload

from queuert.errors import QueuertError
from queuert.model import Chain, Job
from queuert.options import UNSET, BlockersUntil, Duration, _Unset

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.chains.continuing import NextJob
    from queuert.chains.new_chain import ChainRef, NextOptions
    from queuert.ids import Id
    from queuert.job_types import InputOf, JobType
    from queuert.worker.attempt import AttemptRun

InputT = TypeVar("InputT", covariant=True)
NextT = TypeVar("NextT")

Reason = Literal["taken_by_another_worker", "not_found", "already_completed", "cancelled", "timeout", "stopping"]


class JobInterruptedError(QueuertError):
    """The handler was told to stop, and did."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"Job {job_id} was told to stop: {reason.replace('_', ' ')}.")
        self.job_id = job_id
        self.reason = reason

    @property
    def error_code(self) -> str:
        return "TIMEOUT:JOB" if self.reason == "timeout" else "INTERNAL:INTERRUPTED"


class Signal:
    """Tells a handler that going on is of no use, and why. It cannot be stopped by force: it has to look."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._reason: Reason | None = None
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        """Made for the first who waits: few handlers do, and it would be the dearest part of a short attempt."""

    @property
    def reason(self) -> Reason | None:
        return self._reason

    def is_set(self) -> bool:
        return self._reason is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep, but not longer than until the signal is set; whether it is."""
        with self._lock:
            if self._reason is not None:
                return True
            event = self._event = self._event or threading.Event()
        return event.wait(seconds)

    def raise_if_set(self) -> None:
        if self._reason is not None:
            raise JobInterruptedError(self._job_id, self._reason)

    def set(self, reason: Reason) -> None:
        """The first reason stays, except that losing the job outweighs being asked to end soon."""
        with self._lock:
            if self._reason is None or self._reason in ("timeout", "stopping"):
                self._reason = reason
            event = self._event
        if event is not None:
            event.set()


class Continuation:
    """Returned by a handler to go on with the next job; made by `job.continue_with(...)`."""

    __queuert_continuation__: ClassVar[bool] = True

    def __init__(self, job_id: str, next_job: NextJob) -> None:
        self.job_id = job_id
        self.next_job = next_job


class RunningJob(Job, Generic[InputT]):
    """A job in the hands of its handler: everything of `Job`, with `input` decoded, and what the handler can do."""

    input: InputT
    signal: Signal
    context: dict[str, Any]
    """For what middlewares pass on."""
    deadline: datetime | None
    _attempt: AttemptRun

    @classmethod
    def _of(cls, attempt: AttemptRun, job: Job, input: Any, signal: Signal) -> RunningJob[Any]:
        running = object.__new__(cls)
        running.__dict__.update(job.__dict__, input=input, signal=signal, context={}, deadline=None, _attempt=attempt)
        return running

    @property
    def blockers(self) -> list[Chain]:
        """The chains this job waited for, in the order given, with their outputs."""
        return self._attempt.blockers()

    def prepare(self) -> AbstractContextManager[Any]:
        """A transaction that commits on exit: to read or reserve before slow work."""
        return self._attempt.prepare()

    def complete(self) -> AbstractContextManager[Any]:
        """The connection of the completing transaction; it commits after the handler returns, with the completion."""
        return self._attempt.complete()

    @overload
    def continue_with(
        self, job_type: JobType[NextT, Any], input: InputOf[NextT], **options: Unpack[NextOptions]
    ) -> Continuation: ...

    @overload
    def continue_with(
        self, job_type: JobType[None, Any], input: None = None, **options: Unpack[NextOptions]
    ) -> Continuation: ...

    @overload
    def continue_with(self, job_type: str, input: object = None, **options: Unpack[NextOptions]) -> Continuation: ...

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
        blockers_until: BlockersUntil = "completed",
        limit_key: object = None,
    ) -> Continuation:
        """Return this to go on with the next job; it inherits the priority unless given another."""
        return self._attempt.continue_with(
            job_type,
            input,
            id=id,
            at=at,
            after=after,
            priority=priority,
            max_attempts=max_attempts,
            blockers=blockers,
            blockers_until=blockers_until,
            limit_key=limit_key,
        )

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Tell how far it is, from 0 to 1, for `app.progress`. Cheap to call often: others see it a second later or so."""
        self._attempt.report.note(fraction, message)

    def reschedule(self, *, after: Duration | None = None, at: datetime | None = None, error: str | None = None) -> NoReturn:
        """Try again exactly then; this try does not count against `max_attempts`."""
        self._attempt.reschedule(after=after, at=at, error=error)

    def throttle(self, seconds: Duration) -> NoReturn:
        """The other side wants a pause: nothing with this job's limit key starts before it is over. It costs no attempt."""
        self._attempt.reschedule(after=seconds, at=None, error="The other side wants a pause.", hold=True)

    def fail(self, code: str, detail: str | None = None) -> NoReturn:
        """Fail for good: no more attempts."""
        self._attempt.fail(code, detail)


running_here: Final[ContextVar[RunningJob[Any] | None]] = ContextVar("queuert_running_job", default=None)
"""The job whose handler runs here; set by the attempt."""


def current_job() -> RunningJob[Any] | None:
    """The job whose handler this code runs in, with all that a handler can do; None outside of one."""
    return running_here.get()

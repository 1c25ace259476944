"""How a handler completes its job: the block of `job.complete()`, and what it returns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from queuert.chains.complete import Completion
from queuert.context import Context
from queuert.errors import JobTypeValidationError
from queuert.model import Job
from queuert.running_job import Continuation

if TYPE_CHECKING:
    from queuert.worker.attempt import AttemptRun


class CompletingBlock:
    """Enters the middlewares, and marks the attempt if the block is left with an error. Not a generator, which costs twice as
    much: every job may come through here."""

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


def completion_of(context: Context, job: Job, result: object, made: Sequence[Continuation], waited: float | None) -> Completion:
    """What a handler returned, as a completion. Of the continuations that it has made it must have returned each one: a job
    that was asked for and is not there would be missed by nobody."""
    if isinstance(result, Continuation) and result.job_id != job.id:
        raise _refused(job, "The handler returned the continuation of another job.")
    if forgotten := next((each for each in made if each is not result), None):
        name = forgotten.next_job.job_type.name
        if isinstance(result, Continuation):
            raise _refused(job, f"A job continues with one other, but the handler made a second continuation, with {name!r}.")
        raise _refused(job, f"The handler called continue_with({name!r}, ...) and did not return what it gave: return it.")
    if isinstance(result, Continuation):
        return Completion(job, None, job.lease_token, result.next_job, waited)
    return Completion(job, context.payloads.encode_output(job.type_name, result), job.lease_token, None, waited)


def _refused(job: Job, message: str) -> JobTypeValidationError:
    return JobTypeValidationError("invalid_continuation", message, type_name=job.type_name)

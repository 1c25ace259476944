"""The block of `job.complete()`, as a handler sees it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

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

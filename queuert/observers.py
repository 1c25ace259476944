"""Several observers of one app: traces and metrics beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from queuert.model import Job
from queuert.observing import Observed, Observer, OutcomeName, Produced

if TYPE_CHECKING:
    from queuert.context import Context


def add(context: Context, observer: Observer) -> None:
    """Tell this one too of what happens."""
    context.observer = _one([*of(context), observer])


def remove(context: Context, observer: Observer) -> None:
    """Tell this one no more."""
    context.observer = _one([each for each in of(context) if each is not observer])


def of(context: Context) -> list[Observer]:
    """All that are told."""
    present = context.observer
    if present is None:
        return []
    return list(present.observers) if isinstance(present, _Several) else [present]


def _one(observers: list[Observer]) -> Observer | None:
    return (_Several(observers) if len(observers) > 1 else observers[0]) if observers else None


class _Several:
    """Passes on what it is told."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def produce(
        self, operation: Literal["start", "continue"], type_names: Sequence[str], *, learns_of_commit: bool
    ) -> Produced:
        return _AllProduced([each.produce(operation, type_names, learns_of_commit=learns_of_commit) for each in self.observers])

    @contextmanager
    def attempt(self, job: Job, worker_id: str) -> Iterator[Observed]:
        with ExitStack() as stack:
            yield _AllObserved([stack.enter_context(each.attempt(job, worker_id)) for each in self.observers])

    def lost(self, job: Job, *, final: bool) -> None:
        for each in self.observers:
            each.lost(job, final=final)

    def completed_outside(self, job: Job) -> None:
        for each in self.observers:
            each.completed_outside(job)


class _AllProduced:
    def __init__(self, produced: Sequence[Produced]) -> None:
        self._produced = produced
        self.trace = next((each.trace for each in produced if each.trace is not None), None)

    def committed(self, job_ids: Sequence[str]) -> None:
        for each in self._produced:
            each.committed(job_ids)


class _AllObserved:
    def __init__(self, observed: Sequence[Observed]) -> None:
        self._observed = observed

    def over(self, outcome: OutcomeName, error_code: str | None) -> None:
        for each in self._observed:
            each.over(outcome, error_code)

"""What there is to do and how fast it is done: ready, scheduled and backing off apart, rates, and how long the backlog takes.

Rates are what workers have counted and told with their signs of life, so that nobody reads what was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queuert.chains.pages import ALL_STATUSES
from queuert.model import WorkerInfo
from queuert.storage.attendance import AttendanceRepository
from queuert.storage.protocol import Session

MINUTE = 60.0
SPAN = 10.0
SPANS = 3


@dataclass(frozen=True)
class Rate:
    """What was done in a span of time: jobs that completed, and attempts that failed."""

    completed: int = 0
    failed: int = 0


@dataclass(frozen=True)
class TypeRates:
    """What was done of a type, and in how many seconds its ready jobs are done at the last minute's rate; None if they grow."""

    minute: Rate = field(default_factory=Rate)
    hour: Rate = field(default_factory=Rate)
    eta_seconds: float | None = None


@dataclass(frozen=True)
class Waiting:
    """The pending jobs of each type, by what they wait for."""

    ready: dict[str, int]
    scheduled: dict[str, int]
    retrying: dict[str, int]
    oldest: dict[str, float]
    # The types of which some of these counts stopped.
    capped: set[str]


def waiting(repository: AttendanceRepository, session: Session, types: Sequence[str], most: int | None) -> Waiting:
    """Count pending jobs up to a limit for each type."""
    found = Waiting({}, {}, {}, {}, set())
    if not types:
        return found
    beyond = None if most is None else most + 1
    retrying = repository.count_backing_off(session, types, beyond)
    for name, (due, later, oldest) in repository.count_due(session, types, beyond).items():
        again = retrying.get(name, 0)
        for numbers, number in ((found.ready, due), (found.retrying, again), (found.scheduled, max(0, later - again))):
            if number:
                numbers[name] = number if most is None else min(number, most)
            if most is not None and number > most:
                found.capped.add(name)
        if oldest is not None:
            found.oldest[name] = max(0.0, oldest)
    return found


def rates(
    repository: AttendanceRepository, session: Session, types: Sequence[str], ready: Mapping[str, int]
) -> tuple[dict[str, TypeRates], float | None]:
    """What was done of each type, and in how many seconds all that is ready is done."""
    told = repository.list_rates(session, types)
    completed = sum(numbers[0] for numbers in told.values())
    come: dict[str, list[int]] = {name: [0] * SPANS for name in types}
    if any(ready.values()) and completed:
        most = int(completed * SPAN / MINUTE) + 1  # more need not be counted to see that it is more
        for name, age, number in repository.count_arrivals(session, types, ALL_STATUSES, most):
            come[name][age] = number
    found = {}
    for name in types:
        numbers = told.get(name, (0, 0, 0, 0))
        minute = Rate(*numbers[:2])
        left = None if _grows(come[name], minute.completed) else eta(ready.get(name, 0), minute.completed)
        found[name] = TypeRates(minute, Rate(*numbers[2:]), left)
    in_all = [sum(numbers) for numbers in zip(*come.values(), strict=True)]
    return found, None if _grows(in_all, completed) else eta(sum(ready.values()), completed)


def _grows(come: Sequence[int], completed: int) -> bool:
    """Whether more came than were completed, at the rate of the last minute, all the time: in each span.

    A batch that was started at once is a backlog, but no growth.
    """
    return any(come) and min(come) > completed * SPAN / MINUTE


def eta(ready: int, completed: int) -> float | None:
    """In how many seconds so many are done, if so many were in the last minute; None if it would never be."""
    if not ready:
        return 0.0
    return ready * MINUTE / completed if completed else None


def claimed_ahead(
    order: Mapping[str, Sequence[tuple[str, str]]], workers: Sequence[WorkerInfo], types: Sequence[str]
) -> dict[str, int]:
    """By type, the running jobs that wait in their worker's line: it has fewer slots than jobs."""
    slots = {worker.id: max(0, worker.concurrency - worker.zombies) for worker in workers}
    found: dict[str, int] = {}
    for worker, jobs in order.items():
        for _, type_name in jobs[slots[worker] :] if worker in slots else ():
            if type_name in types:
                found[type_name] = found.get(type_name, 0) + 1
    return found

"""All parts, in the order in which they run, with the seconds that each takes in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.harness import Table
from benchmarks.suite import drain, enqueue
from benchmarks.suite.context import Context


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[Context], Iterator[Table]]
    seconds: float
    """In full; the progress bar goes by it."""


PARTS = [
    Part("enqueue", enqueue.enqueue, 60),
    Part("drain", drain.drain, 240),
]

"""All parts, in the order in which they run, with the seconds that each takes in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.harness import Table
from benchmarks.suite import chains, drain, enqueue, growth, idle, latency, memory, processes, snapshot
from benchmarks.suite.context import Context


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[Context], Iterator[Table]]
    seconds: float
    """In full; the progress bar goes by it."""


PARTS = [
    Part("enqueue", enqueue.enqueue, 50),
    Part("drain", drain.drain, 190),
    Part("chains", chains.chains, 70),
    Part("processes", processes.processes, 110),
    Part("latency", latency.latency, 120),
    Part("idle", idle.idle, 45),
    Part("growth", growth.growth, 190),
    Part("memory", memory.memory, 125),
    Part("snapshot", snapshot.snapshot, 190),
]

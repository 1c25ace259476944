"""What the measurements must show, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness import Table

NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite FULL"}


@dataclass(frozen=True)
class Line:
    """A bound. `most` turns it round: the smaller, the better."""

    dialect: str
    key: str
    text: str
    least: float | None
    aim: float | None = None
    most: bool = False
    unit: str = "×"

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        if self.aim is not None and self._holds(value, self.aim):
            return "reached, aim too"
        if self.least is None:
            return "aim missed"
        if not self._holds(value, self.least):
            return "MISSED"
        return "reached" if self.aim is None else "reached, aim missed"

    def _holds(self, value: float, bound: float) -> bool:
        return value <= bound if self.most else value >= bound

    def bound(self, bound: float | None) -> str:
        return "–" if bound is None else f"{'≤' if self.most else '≥'} {bound:g} {self.unit}"


def _both(
    key: str, text: str, least: float | None, aim: float | None = None, *, most: bool = False, unit: str = "×"
) -> Iterator[Line]:
    for dialect in NAMES:
        yield Line(dialect, key, text, least, aim, most, unit)


LINES: list[Line] = [
    Line("postgres", "drain/bare", "drain, plain handlers, vs the bare driver", 0.6, 0.8),
    Line("postgres", "drain/pgqueuer", "…vs pgqueuer, batches of 10", 2, 3),
    Line("postgres", "drain/pgqueuer, batch 25", "…vs pgqueuer, batches of 25", None, 2),
    Line("postgres", "drain/pgqueuer, batch 100", "…vs pgqueuer, batches of 100", None, 1),
    Line("postgres", "drain/procrastinate", "…vs procrastinate", 15, 30),
    Line("sqlite", "drain/bare", "drain, plain handlers, vs the bare driver", 0.5, 0.7),
    Line("sqlite", "drain/huey", "…vs huey at the same durability", 5, 8),
    Line("postgres", "writing/bare", "drain, a write inside complete(), vs the bare driver", 0.7, 0.9),
    Line("sqlite", "writing/bare", "drain, a write inside complete(), vs the bare driver", 1, 2),
    Line("postgres", "enqueue one/bare", "enqueue one, vs the bare driver", 0.7),
    Line("sqlite", "enqueue one/bare", "enqueue one, vs the bare driver", 0.6),
    *_both("enqueue one/peers", "…vs the fastest peer at the same durability", None, 1),
    *_both("enqueue 1,000/bare", "enqueue 1,000, vs the bare driver's quickest way", 0.6),
    Line("postgres", "enqueue 1,000/peers", "…vs the fastest peer", None, 1),
    Line("sqlite", "enqueue 1,000/huey", "…vs huey", None, 5),
    Line("postgres", "latency/bare", "commit to handler start, p99, vs a bare NOTIFY", 3, most=True),
    Line("postgres", "latency/peers", "…vs the quickest peer", 1, most=True),
    Line("sqlite", "latency/bare", "commit to handler start, p99, same process, vs two bare commits", 5, most=True),
    Line("sqlite", "latency across", "…across processes, p99", 30, most=True, unit="ms"),
    *_both("growth/work", "claim, complete, enqueue at 1M rows vs 10k: buffers or VM steps", 1.3, most=True),
    *_both("growth/time", "…time", 1.6, most=True),
    *_both("list_chains/time", "list_chains(statuses=...), first page, at 1M chains vs 10k", 2, most=True),
    *_both("list_chains/ms", "…at 1M chains", 20, most=True, unit="ms"),
    *_both("stats/time", "stats() at 1M chains vs 10k", 2, most=True),
    *_both("stats/ms", "…at 1M chains", 20, most=True, unit="ms"),
    Line("postgres", "snapshot", "a held snapshot at full load, last vs first half minute", 0.7),
    *_both("memory", "memory from job 100,000 to 1,000,000", 10, most=True, unit="MB"),
    *_both("idle", "idle worker with 10 slots", 1, most=True, unit="% of a core"),
    *_both("processes", "4 processes vs 1, same slots in all", 0.8),
]


class Findings:
    """The values found, by database and key."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], float] = {}

    def add(self, dialect: str, key: str, value: float) -> None:
        self._values[dialect, key] = value

    def table(self, *, whole: bool) -> Table:
        """A row for each line; unless the whole was measured, only for those of which something is known."""
        table = Table("What it must show", ("line", "database", "found", "at least", "aim", "verdict"))
        for line in sorted(LINES, key=lambda line: line.dialect):
            value = self._values.get((line.dialect, line.key))
            if value is None and not whole:
                continue
            bounds = line.bound(line.least), line.bound(line.aim)
            found = "–" if value is None else f"{value:.3g} {line.unit}" if value < 1000 else f"{value:,.0f} {line.unit}"
            table.add(line.text, NAMES[line.dialect], found, *bounds, line.verdict(value))
        return table

    def as_json(self) -> dict[str, float]:
        return {f"{dialect} {key}": value for (dialect, key), value in self._values.items()}

"""What every part of the suite is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks.harness import Options, Race, Stores, Table
from benchmarks.peers import load_peers
from benchmarks.peers.base import Peer
from benchmarks.suite.chart import Chart
from benchmarks.suite.lines import NAMES, Findings

OURS = "queuert"
"""The contender that the lines are about: with the history of all attempts, which the bare driver writes too."""
FAILURES = "queuert, history=failures"
COLUMNS = ("contender", "jobs/s", "lowest … highest", f"{OURS} ÷ it", "lowest … highest")


@dataclass
class Context:
    options: Options
    stores: Stores
    findings: Findings = field(default_factory=Findings)
    charts: list[Chart] = field(default_factory=list)
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """The rates of all rounds, by title and contender."""
    memory_in_full: bool = False

    def peers(self, dialect: str, variants: Sequence[str] = ()) -> tuple[list[type[Peer]], list[str]]:
        """With these kinds of variants; and why others are missing."""
        if not self.options.peers:
            return [], ["The peers were left out."]
        found, missing = load_peers(dialect)
        return [peer for peer in found if not peer.variant or peer.variant in variants], missing

    @contextmanager
    def open_peers(self, dialect: str, variants: Sequence[str] = ()) -> Iterator[tuple[list[Peer], list[str]]]:
        """Each in a database of its own; and for each of the others why it is missing."""
        classes, notes = self.peers(dialect, variants)
        opened = []
        with ExitStack() as stack:
            for peer in classes:
                url = stack.enter_context(self.stores.database(dialect))
                try:
                    opened.append(peer(url))
                except Exception as error:
                    notes.append(f"{peer.name} failed: {type(error).__name__}: {error}")
                else:
                    stack.callback(opened[-1].close)
            yield opened, notes

    def compare(self, title: str, dialect: str, race: Race, peers: Sequence[Peer], notes: Sequence[str]) -> Table:
        """The rates of all, and how many times as fast ours is."""
        title = f"{title}, {NAMES[dialect]}"
        table = Table(f"{title} (jobs a second)", COLUMNS)
        for name, rates in race.rates.items():
            ratios = race.ratios(OURS, name)
            spread = "" if name == OURS else f"{min(ratios):.2f} … {max(ratios):.2f}"
            ratio = "" if name == OURS else f"{race.ratio(OURS, name):.2f}"
            table.add(name, f"{race.rate(name):,.0f}", f"{min(rates):,.0f} … {max(rates):,.0f}", ratio, spread)
        for name, why in race.failures.items():
            table.add(name, "failed", "", "", "")
            table.notes.append(f"{name} failed: {why}")
        table.notes += notes
        table.notes += [f"{peer.name}: {peer.settings}." for peer in peers if peer.name in race.rates]
        self.rounds[title] = race.rates
        self.charts.append(Chart(title, "jobs a second", {name: race.rate(name) for name in race.rates}))
        return table

    def against(self, dialect: str, part: str, race: Race, names: Sequence[str]) -> None:
        """Findings against each of these that was measured."""
        for name in names:
            if name in race.rates:
                self.findings.add(dialect, f"{part}/{name}", race.ratio(OURS, name))

    def against_fastest(self, dialect: str, key: str, race: Race, names: Sequence[str]) -> None:
        """A finding against the fastest of these."""
        measured = [name for name in names if name in race.rates]
        if measured:
            self.findings.add(dialect, key, race.ratio(OURS, race.fastest(measured)))

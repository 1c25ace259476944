"""Large payloads: groups, queues and claims are bounded by bytes too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queuert import NewChain, Queuert, RunningJob
from queuert.worker.claimer import USUAL_BYTES, Claimer
from queuert.worker.completer import GROUP_SIZE
from queuert.worker.results import Result, ResultWriter

LARGE = 900_000


def test_results_are_written_in_groups_that_are_bounded_by_bytes(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    write = ResultWriter.write

    def noting(self: ResultWriter, results: Sequence[Result], **options: Any) -> Any:
        sizes.append((len(results), sum(result.size for result in results)))
        return write(self, results, **options)

    monkeypatch.setattr(ResultWriter, "write", noting)
    monkeypatch.setattr("queuert.worker.completer.GATHER", 0.2)
    monkeypatch.setattr("queuert.worker.completer.LONGEST_GATHER", 0.6)

    @app.job("large")
    def large(job: RunningJob[int]) -> str:
        return "x" * LARGE

    chains = app.start_chains([NewChain("large", number) for number in range(40)])
    with app.worker(concurrency=20):
        for chain in chains:
            assert len(app.wait_for(chain, timeout=60).output) == LARGE
    assert max(size for _, size in sizes) <= GROUP_SIZE
    assert max(number for number, _ in sizes) > 1, "they still share a commit"


def test_claims_of_large_inputs_are_small(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed: list[int] = []
    claim = Claimer.claim

    def noting(self: Claimer, *args: Any, **options: Any) -> Any:
        found = claim(self, *args, **options)
        claimed.append(sum(len(held.job.input) for held in found))
        return found

    monkeypatch.setattr(Claimer, "claim", noting)
    app.job("large")(lambda job: None)
    chains = app.start_chains([NewChain("large", "x" * LARGE) for _ in range(60)])
    with app.worker(concurrency=5):
        for chain in chains:
            app.wait_for(chain, timeout=60)
    assert max(claimed) <= USUAL_BYTES + LARGE


def test_a_group_that_meets_an_outage_again_and_again_is_halved(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the group itself is too much for the server, which ends the connection."""
    groups: list[int] = []
    write = ResultWriter.write

    def refusing(self: ResultWriter, results: Sequence[Result], **options: Any) -> Any:
        groups.append(len(results))
        if len(results) > 2:
            raise MemoryError
        return write(self, results, **options)

    monkeypatch.setattr(ResultWriter, "write", refusing)
    monkeypatch.setattr("queuert.worker.completer.GATHER", 0.2)
    monkeypatch.setattr("queuert.worker.completer.LONGEST_GATHER", 0.6)
    app.job("job", max_attempts=1)(lambda job: job.input)
    chains = app.start_chains([NewChain("job", number) for number in range(12)])
    with app.worker(concurrency=4):
        for number, chain in enumerate(chains):
            assert app.wait_for(chain, timeout=30).output == number
    assert max(groups) > 2

"""The measurement of a cleanup beside a worker runs, in the smallest size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1])])


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_claims_beside_a_cleanup_and_statistics_are_measured(
    dialect: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import cleanup
    from benchmarks.harness import Options, Stores

    small = {"FEW_CHAINS": 2_000, "COMPLETED": (100, 300, 300), "LIVE": 10, "TIMES": 3, "BACKLOG": 40_000}
    for name, value in {**small, "WITHOUT": 0.3, "WITH": 0.6}.items():
        monkeypatch.setattr(cleanup, name, value)
    options = Options(1, (dialect,), True, postgres_url, False)
    with Stores(options) as stores:
        claims, stats = cleanup.measure(options, stores)
    assert [row[0] for row in claims.rows] == ["in the worker's process", "in another process"]
    for _, without, during, *more, jobs, deleted, verdict in claims.rows:
        assert all(float(number) > 0 for number in (*without.split(), *during.split(), *more))
        assert all(int(rate.replace(",", "")) > 0 for rate in (*jobs.split(" / "), deleted))
        assert verdict.endswith("(< 2)")
    ((few, many, _, verdict),) = stats.rows
    assert 0 < float(few) < 1_000
    assert 0 < float(many) < 1_000
    assert verdict.endswith("(≤ 2)")

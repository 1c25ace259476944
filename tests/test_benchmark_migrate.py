"""The measurement of a migration beside claims runs, in the smallest size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1])])


def test_the_longest_gap_between_claims_is_measured(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import migrate
    from benchmarks.harness import Options, Stores

    monkeypatch.setattr(migrate, "BEFORE", 0.2)
    options = Options(1, ("sqlite", "postgres"), True, postgres_url, False, smoke=True)
    with Stores(options) as stores:
        tables = list(migrate.measure(options, stores))
    for table in tables:
        [(names, *figures, verdict)] = table.rows
        assert names.startswith("0002_open_keys")
        assert all(float(figure) > 0 for figure in figures)
    assert verdict.endswith("(≤ 1)")

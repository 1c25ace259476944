"""The measurement of the dashboard's pages runs, in the smallest size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_pages_are_measured_beside_few_and_many_jobs(dialect: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1])])
    from benchmarks import cleanup, dashboard
    from benchmarks.harness import Options, Stores

    monkeypatch.setattr(cleanup, "LIVE", 10)
    for name, value in {"COMPLETED": (100, 300, 300), "TIMES": 2, "FLUSHED": 0.0}.items():
        monkeypatch.setattr(dashboard, name, value)
    options = Options(1, (dialect,), True, postgres_url, False)
    with Stores(options) as stores:
        [table] = dashboard.measure(options, stores)
    assert len(table.rows) == len(dashboard.PAGES)

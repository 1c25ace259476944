"""The suite of measurements runs, in the smallest size, without other queues, and writes its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks` is not installed. Last in the path, so that the library itself still comes from where it is installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


def measure(*arguments: str) -> int:
    from benchmarks.__main__ import main

    return main([*arguments, "--smoke", "--no-peers"])


@pytest.mark.slow
def test_throughput_is_measured_on_both_databases(postgres_url: str, tmp_path: Path) -> None:
    assert measure("enqueue", "drain", "chains", "--postgres-url", postgres_url, "--out", str(tmp_path)) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["lines"].keys() == {
        f"{dialect} {key}/bare"
        for dialect in ("sqlite", "postgres")
        for key in ("enqueue one", "enqueue 1,000", "drain", "writing")
    }
    assert "Chains of 5, PostgreSQL" in results["rounds"]
    tables = (tmp_path / "results.md").read_text()
    assert "### What it must show" in tables
    assert "| bare |" in tables
    assert ElementTree.parse(tmp_path / "results.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_processes_of_their_own_are_measured(tmp_path: Path) -> None:
    assert measure("processes", "idle", "memory", "--database", "sqlite", "--out", str(tmp_path)) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["lines"].keys() == {"sqlite processes", "sqlite idle", "sqlite memory"}


def test_a_part_that_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import run
    from benchmarks.harness import Options
    from benchmarks.suite.parts import Part

    def fail(context: object) -> Any:
        raise RuntimeError("no such thing")

    options = Options(1, ("sqlite",), True, None, False)
    assert run([Part("broken", fail, 1)], options, tmp_path, False) == 1
    assert "Failed, or not measured to the end: broken." in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import load_peers

    monkeypatch.setitem(sys.modules, "benchmarks.peers.litequeue", None)
    monkeypatch.setitem(sys.modules, "benchmarks.peers.huey", None)
    found, missing = load_peers("sqlite")
    assert found == []
    assert [text.split(":")[0] for text in missing] == ["huey was not measured", "litequeue was not measured"]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.5, "MISSED"), (0.6, "reached, aim missed"), (0.8, "reached, aim too")],
)
def test_a_value_is_compared_with_both_bounds(value: float, verdict: str) -> None:
    from benchmarks.suite.lines import Line

    assert Line("postgres", "key", "text", 0.6, 0.8).verdict(value) == verdict

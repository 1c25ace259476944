"""Only tests that are named get another try, and each that needed one is told of."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from support.reruns import RERUNS

ROOT = Path(__file__).parents[1]
TESTS = """
tries = {"named": 0, "other": 0}

def fails_once(name):
    tries[name] += 1
    assert tries[name] > 1

def test_named():
    fails_once("named")

def test_other():
    fails_once("other")
"""
CONFTEST = """
from support import reruns
from support.reruns import pytest_collection_modifyitems, pytest_terminal_summary
reruns.RERUNS["test_it.py::test_named"] = "the dice"
"""


def test_a_named_test_has_another_try_and_is_listed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed, 1 rerun" in done.stdout, done.stdout
    assert "test_it.py::test_named: 1 more (the dice)" in done.stdout
    assert "test_it.py::test_other: " not in done.stdout


def test_every_named_test_is_there() -> None:
    for name, reason in RERUNS.items():
        path, _, function = name.partition("::")
        module = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}, name
        assert reason

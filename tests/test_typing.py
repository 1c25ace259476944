"""The public signatures under both type checkers: good snippets pass, bad ones fail on exactly the marked lines."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SNIPPETS = Path(__file__).parent / "typing"

Errors = dict[str, dict[int, str]]  # file name, line, message


def package_root() -> Path | None:
    """The directory that the package is imported from, unless checkers find it there anyway."""
    spec = importlib.util.find_spec("queuert")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parents[1]
    return None if root.name == "site-packages" else root


def run_mypy(directory: Path) -> Errors:
    pytest.importorskip("mypy")
    root = package_root()
    environment = {**os.environ, **({"MYPYPATH": str(root)} if root else {})}
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary", "--no-pretty"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *(str(path) for path in sorted(SNIPPETS.glob("*.py")))],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not result.stderr, result.stderr
    errors: Errors = {}
    for line in result.stdout.splitlines():
        found = re.match(r"(.+?):(\d+): error: (.*)", line)
        if found:
            errors.setdefault(Path(found[1]).name, {})[int(found[2])] = found[3]
    return errors


def run_pyright(directory: Path) -> Errors:
    pytest.importorskip("pyright")
    root = package_root()
    settings = {
        "extraPaths": [str(root)] if root else [],
        "typeCheckingMode": "standard",
    }
    shutil.copytree(SNIPPETS, directory / "snippets")  # it takes no files from outside its project
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "-p", str(directory), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(result.stdout)
    except ValueError:
        pytest.skip(f"pyright does not run here: {result.stdout}{result.stderr}")
    errors: Errors = {}
    assert report["summary"]["filesAnalyzed"] == len(list(SNIPPETS.glob("*.py")))
    for found in report["generalDiagnostics"]:
        if found["severity"] == "error":
            lines = errors.setdefault(Path(found["file"]).name, {})
            lines[found["range"]["start"]["line"] + 1] = found["message"]
    return errors


def expected_lines(name: str) -> set[int]:
    lines = (SNIPPETS / name).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_exactly_the_wrong_inputs_are_refused(check: Callable[[Path], Errors], tmp_path: Path) -> None:
    errors = check(tmp_path)
    assert errors.get("good.py", {}) == {}
    found = errors.get("bad.py", {})
    assert set(found) == expected_lines("bad.py"), found

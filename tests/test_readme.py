"""Every Python snippet of README.md and docs/*.md runs, as a reader would run it.

The snippets of a file run in order, in one namespace and one directory, with PostgreSQL in the place of
`postgresql://localhost/...`. A comment above a snippet changes that:

    <!-- snippet: fresh -->                                  a namespace of its own, and of those that follow
    <!-- snippet: these lines in the program above -->       the snippet before it, with these lines in the place of like ones
    <!-- setup: PYTHON -->                                   runs before the snippet, and is not shown
"""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from queuert import Queuert

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
ELSEWHERE = {"frameworks.md"}  # files of whole projects: contrib/test_frameworks_doc.py runs them
SNIPPET = re.compile(r"(?P<notes>(?:^<!--(?:(?!-->).)*-->\n+)*)^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
POSTGRES = re.compile(r"postgresql://localhost/\w+")


@dataclass
class Snippet:
    line: int
    code: str
    notes: list[str]


def snippets(path: Path) -> list[Snippet]:
    text = path.read_text()
    return [
        Snippet(
            line=text[: found.start("code")].count("\n") + 1,
            code=found["code"],
            notes=[note.strip() for note in re.findall(r"<!--(.*?)-->", found["notes"], re.DOTALL)],
        )
        for found in SNIPPET.finditer(text)
    ]


def with_lines(program: str, lines: str) -> str:
    """The program with these lines in the place of those that begin alike."""
    for line in filter(None, lines.splitlines()):
        start = line.split('"')[0]
        verb = line.split('"')[1].split(" ")[0] if start.endswith("execute(") else ""
        old = [each for each in program.splitlines() if each.strip().startswith(f'{start}"{verb}' if verb else start)]
        assert len(old) == 1, f"{line!r} stands for one line of the program above, not {len(old)}"
        indentation = old[0][: len(old[0]) - len(old[0].lstrip())]
        program = program.replace(old[0], indentation + line)
    return program


@contextmanager
def module(name: str) -> Iterator[dict[str, Any]]:
    """A namespace that annotations can be looked up in; apps made in it are closed."""
    made = sys.modules[name] = types.ModuleType(name)
    try:
        yield made.__dict__
    finally:
        for value in list(made.__dict__.values()):
            if isinstance(value, Queuert):
                value.close()
        del sys.modules[name]


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in ELSEWHERE], ids=lambda path: path.name)
def test_every_snippet_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    found = snippets(path)
    assert len(found) == path.read_text().count("```python")
    run_in_order(path, found, request)


def run_in_order(path: Path, found: list[Snippet], request: pytest.FixtureRequest) -> None:
    number = 0
    program = ""
    pending = list(found)
    while pending:
        number += 1
        with module(f"snippets_{path.stem.lower()}_{number}") as namespace:
            first = True
            while pending and (first or "snippet: fresh" not in pending[0].notes):
                snippet, first = pending.pop(0), False
                if "snippet: these lines in the program above" in snippet.notes:
                    with module(f"{namespace['__name__']}_changed") as other:
                        execute(path, snippet, with_lines(program, snippet.code), other, request)
                    continue
                for note in snippet.notes:
                    if note.startswith("setup:"):
                        execute(path, snippet, note.removeprefix("setup:"), namespace, request)
                program = snippet.code
                execute(path, snippet, program, namespace, request)


def execute(path: Path, snippet: Snippet, code: str, namespace: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if POSTGRES.search(code):
        code = POSTGRES.sub(request.getfixturevalue("pg_url"), code)
    # Numbered as in the document, so that a traceback leads there.
    exec(compile("\n" * (snippet.line - 1) + code, str(path), "exec"), namespace)


def test_the_first_snippet_of_the_readme_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with module("readme_first") as namespace:
        exec(compile(snippets(ROOT / "README.md")[0].code, "README.md", "exec"), namespace)
    assert capsys.readouterr().out == "{'shipped': 1}\n"


def test_the_command_for_the_tests_is_the_one_that_is_run_for_every_change() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("not in a copy without it")
    (command,) = [line for line in script.read_text().splitlines() if "bin/tox" in line]
    assert f"```sh\n{command}\n```" in (ROOT / "README.md").read_text()


def test_links_lead_somewhere() -> None:
    for path in FILES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_ten_lines_are_a_program_that_runs_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(snippets(ROOT / "docs" / "getting-started.md")[0].code)
    for _ in range(2):
        ran = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "a.png is 400 wide\n", "")
    start = "import shop; print(shop.resize.start('b.png').id)"
    subprocess.run([sys.executable, "-c", start], cwd=tmp_path, check=True)
    worker = [sys.executable, "-m", "queuert", "worker", "shop:app", "--until-empty"]
    subprocess.run(worker, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    with Queuert(f"sqlite:///{tmp_path}/shop.db") as app:
        assert {chain.output for chain in app.list_chains()} == {"a.png is 400 wide", "b.png is 100 wide"}

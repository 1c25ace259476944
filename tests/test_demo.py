"""`queuert demo`: everything it promises comes true, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

import queuert
from queuert import Queuert
from queuert.cli import demo, main, shop

STEPS = ("1. An order", "2. The same", "3. A worker runs", "4. One job waits", "5. A service is down", "6. A worker process")


@pytest.mark.conformance
def test_the_demo_comes_true_on_a_file_of_its_own(tmp_path: Path) -> None:
    source = str(Path(queuert.__file__).parents[1])
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "queuert", "demo"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for step in STEPS:
        assert step in done.stdout
    assert "All of it came true" in done.stdout
    assert "RECOVERED" in done.stdout
    assert time.monotonic() - began < 30  # it takes 4 seconds; a loaded machine may take more
    assert list(tmp_path.iterdir()) == []


def test_the_demo_comes_true_on_postgres_and_removes_its_schema(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def schemas() -> set[str]:
        with psycopg.connect(pg_url) as conn:
            return {row[0] for row in conn.execute("SELECT nspname FROM pg_namespace")}

    before = schemas()
    code = main(["demo", "--url", pg_url])
    assert code == 0, capsys.readouterr().out
    assert schemas() == before
    with Queuert(pg_url) as app:  # what was there already was left alone
        assert app.list_chains().items == []


def test_the_demo_on_a_file_that_was_named(sqlite_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{sqlite_path}"
    assert main(["demo", "--url", url]) == 0
    assert not sqlite_path.exists()  # it made it
    with Queuert(url) as app:
        app.migrate()
        app.declare("mail")
        app.start_chain("mail")
        assert main(["demo", "--url", url]) == 0
        with app.transaction() as tx:
            tables = {row[0] for row in tx.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()}
        assert not [name for name in tables if "demo" in name]
        assert len(app.list_chains().items) == 1


def test_the_demo_fails_when_a_promise_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shop.Orders, "state", lambda *_: "new")  # the order that was rolled back is there
    assert main(["demo"]) == 1
    assert "did not come true" in capsys.readouterr().out


def test_the_demo_fails_when_the_worker_process_cannot_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.sys, "executable", "/bin/false")
    before = set(Path(tempfile.gettempdir()).glob("queuert-demo-*"))
    assert main(["demo"]) == 1
    assert "ended by itself" in capsys.readouterr().out
    assert set(Path(tempfile.gettempdir()).glob("queuert-demo-*")) <= before

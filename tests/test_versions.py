"""A deploy changes the types of what is stored: versions of a program that do not know each other's fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import found

from queuert import JobTypeValidationError, Queuert, RunningJob
from queuert.cli import main


@dataclass
class Customer:
    name: str


@dataclass
class NewerCustomer:
    name: str
    email: str


@dataclass
class Receipt:
    number: int


def test_a_worker_of_the_previous_version_runs_what_a_newer_one_has_stored(target: str) -> None:
    with Queuert(target) as app:
        app.migrate()
        newer = app.declare("greet", input=NewerCustomer)
        app.declare("charge")
        chain = newer.start(NewerCustomer("Ann", "ann@example.com"))
        task = app.start_chain("charge", {"amount": 5, "currency": "EUR"})
        with Queuert(target) if target != "sqlite:///:memory:" else app as older:
            if older is app:
                older._types._all.clear()

            @older.job("greet")
            def greet(job: RunningJob[Customer]) -> str:
                assert job.input == Customer("Ann")
                return job.input.name

            @older.task
            def charge(amount: int) -> int:
                return amount

            older.drain()
            assert older.result(chain.id, timeout=0) == "Ann"
            assert older.result(task.id, timeout=0) == 5
            with pytest.raises(JobTypeValidationError, match="unknown 'email'"):
                older.start_chain("greet", {"name": "Ann", "email": "ann@example.com"})


def test_stored_outputs_are_read_without_what_is_not_known(app: Queuert) -> None:
    app.declare("receipt", output=Receipt)
    chain = app.start_chain("receipt")
    with app.complete_chain(chain) as tail:
        tail.finish(Receipt(7))
    with app.transaction() as tx:
        tx.execute("""UPDATE queuert_job SET output = '{"number": 7, "currency": "EUR"}'""")
    assert found(app.get_chain(chain)).output == Receipt(7)


def test_input_that_does_not_decode_fails_with_what_to_do(app: Queuert) -> None:
    app.declare("greet")
    chain = app.start_chain("greet", {"name": "Ann" * 1000})
    app._types._all.clear()

    @app.job
    def greet(job: RunningJob[NewerCustomer]) -> None: ...

    app.drain()
    job = found(app.get_job(chain.id))
    assert (job.status, job.error_code) == ("failed", "INVALID_INPUT:SCHEMA_MISMATCH")
    [attempt] = app.attempts(chain.id)
    detail = found(attempt.error_detail)
    assert "missing 'email'" in detail
    assert "add a default, then `queuert retry --error-code INVALID_INPUT:`" in detail
    assert "add a default" in found(job.last_attempt_error)


PROGRAM = """
from dataclasses import dataclass
from queuert import Queuert, RunningJob

app = Queuert({url!r})

@dataclass
class Customer:
    name: str
    {field}

@app.job
def greet(job: RunningJob[Customer]) -> None: ...

@app.task
def fine(n: int) -> None: ...
"""


@pytest.fixture
def stored(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with open jobs of three types, that programs in the current directory can be checked against."""
    if target == "sqlite:///:memory:":
        pytest.skip("a database in memory is not there for another process")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Queuert(target) as app:
        app.migrate()
        for name in ("greet", "fine", "elsewhere"):
            app.declare(name)
        for n in range(3):
            app.start_chain("greet", {"name": str(n)})
        app.start_chain("fine", {"n": 1}, after=3600)
        app.start_chain("elsewhere", {})
        done = app.start_chain("greet", {})
        with app.complete_chain(done) as tail:
            tail.finish()
    return target


def test_check_says_what_would_fail_before_it_is_deployed(
    stored: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.chains.check.BATCH", 2)
    (tmp_path / "bad_version.py").write_text(PROGRAM.format(url=stored, field="email: str"))
    (tmp_path / "good_version.py").write_text(PROGRAM.format(url=stored, field='email: str = ""'))
    assert main(["check", "--app", "bad_version:app"]) == 1
    shown = capsys.readouterr().out
    assert "3 of 3 open jobs of 'greet'" in shown
    assert "missing 'email'" in shown
    assert "'elsewhere', which this app does not know" in shown
    assert main(["check", "--app", "bad_version:app", "--json"]) == 1
    items = {item["type_name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert {name: (item["open"], item["misfits"], item["known"]) for name, item in items.items()} == {
        "elsewhere": (1, 0, False),
        "fine": (1, 0, True),
        "greet": (3, 3, True),
    }
    assert len(items["greet"]["job_ids"]) == 3
    assert main(["check", "--app", "good_version:app"]) == 0
    assert "4 open jobs" in capsys.readouterr().out
    assert main(["check", "--url", stored]) == 2

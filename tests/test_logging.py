"""The log: one line a fact, with what it is about as attributes; after the commit; no payloads, no passwords; quiet."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.handlers import held
from support.waiting import eventually

import queuert
from queuert import Backoff, Continuation, Dedup, Queuert, RunningJob
from queuert.testing import advance

SECRET = "tangerine"
Events = Callable[[], list[str]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG, "queuert")
    caplog.clear()
    yield caplog
    for record in caplog.records:
        check(record)


def check(record: logging.LogRecord) -> None:
    """What holds for every line."""
    text = logging.Formatter("%(message)s").format(record)
    everything = text + repr(sorted(record.__dict__.items(), key=lambda item: item[0]))
    assert SECRET not in everything, everything
    assert record.name.startswith("queuert.")


def of_jobs(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__ for record in log.records if record.name == "queuert.jobs"]


def events(log: pytest.LogCaptureFixture) -> list[str]:
    return [record["event"] for record in of_jobs(log)]


def test_the_life_of_a_chain(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job
    def first(job: RunningJob[str]) -> Continuation:
        return job.continue_with(second, job.input)

    @app.job(entry=False)
    def second(job: RunningJob[str]) -> str:
        with job.complete():
            return SECRET

    chain = app.start_chain(first, SECRET)
    app.drain()
    lines = of_jobs(log)
    assert [line["event"] for line in lines] == ["started", "attempt_started", "completed", "attempt_started", "completed"]
    assert {line["chain_id"] for line in lines} == {chain.id}
    assert [line["type_name"] for line in lines] == ["first", "first", "first", "second", "second"]
    assert lines[2]["continued_to"] == lines[3]["job_id"]
    assert {line["attempt"] for line in lines[1:]} == {1}
    assert len({line["worker_id"] for line in lines[1:]}) == 1
    assert lines[2]["seconds"] >= 0
    assert {line["levelno"] for line in lines} == {logging.DEBUG}


def test_failures_say_their_code_and_nothing_else(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job(max_attempts=2, backoff=Backoff(initial=0, jitter=0))
    def broken(job: RunningJob[str]) -> None:
        raise ValueError(f"{job.input} and more")

    @app.job
    def later(job: RunningJob[str]) -> None:
        if job.attempt == 1:
            job.reschedule(after=0, error=job.input)

    app.start_chain(broken, SECRET)
    app.start_chain(later, SECRET)
    app.drain()
    ends = [line for line in of_jobs(log) if line["event"] not in ("started", "attempt_started")]
    told = [(line["event"], line["type_name"], line.get("error_code"), line["levelname"]) for line in ends]
    assert sorted(told, key=str) == [
        ("completed", "later", None, "DEBUG"),
        ("failed", "broken", "INTERNAL:ValueError", "INFO"),
        ("rescheduled", "later", None, "DEBUG"),
        ("retry_scheduled", "broken", "INTERNAL:ValueError", "DEBUG"),
    ]


def test_what_is_rolled_back_is_not_told(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    app.declare("work")
    with suppress(ZeroDivisionError), app.transaction() as tx:
        app.start_chain("work", conn=tx)
        raise ZeroDivisionError
    assert of_jobs(log) == []
    with app.transaction() as tx:
        chain = app.start_chain("work", conn=tx)
        assert of_jobs(log) == []
    assert events(log) == ["started"]
    with suppress(ZeroDivisionError), app.complete_chain(chain.id) as tail:
        tail.finish()
        raise ZeroDivisionError
    assert events(log) == ["started"]
    with app.complete_chain(chain.id) as tail:
        tail.finish(SECRET)
    assert events(log) == ["started", "completed"]


def test_a_duplicate_is_not_started(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    app.declare("work")
    for _ in range(3):
        app.start_chain("work", SECRET, dedup=Dedup("key"))
    assert events(log) == ["started"]


def test_acts_of_operators_are_told(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    app.declare("work")
    chain = app.start_chain("work", SECRET, after=3600)
    app.trigger_job(chain.id, actor="alice")
    app.cancel_chain(chain.id, actor="bob")
    app.retry_chain(chain.id)
    app.cancel_chain(chain.id)
    app.delete_chain(chain.id, actor="carol")
    acts = of_jobs(log)[1:]
    assert [act["actor"] for act in acts] == ["alice", "bob", None, None, "carol"]
    assert [act["event"] for act in acts] == ["triggered", "cancelled", "retried", "cancelled", "deleted"]
    assert all(act["ids"] == [chain.id] and act["levelname"] == "INFO" for act in acts)


def test_a_worker_tells_of_its_life_and_of_what_it_loses(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job
    def work(job: RunningJob[str]) -> str:
        return job.input

    with app.worker(name="one") as worker:
        app.wait_for(app.start_chain(work, SECRET), timeout=10)
    assert worker.stop()
    mine = [record.__dict__ for record in log.records if record.name == "queuert.worker"]
    assert [line["event"] for line in mine] == ["worker_started", "worker_stopped"]
    assert {line["worker_id"] for line in mine} == {worker.id}
    assert events(log)[-1] == "completed"
    log.clear()
    with held(app) as holding:
        app.cancel_chain(holding.chain.id)
    eventually(lambda: "attempt_cancelled" in events(log) or "lost" in events(log))
    log.clear()
    with held(app, "other") as holding:
        advance(app, 100)
        app.drain(types=["other"])
        assert "lost" in events(log)
        assert [record.__dict__["jobs"] for record in log.records if record.__dict__.get("event") == "reaped"] == [1]


def test_results_that_the_database_refuses_are_not_quoted(pg_url: str, log: pytest.LogCaptureFixture) -> None:
    with Queuert(pg_url) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("ALTER TABLE queuert_job ADD CONSTRAINT no_such CHECK (output::text NOT LIKE '%tangerine%')")

        @app.job(max_attempts=1)
        def work(job: RunningJob[None]) -> str:
            return SECRET

        chain = app.start_chain(work)
        app.drain()
        found = app.get_chain(chain.id)
        assert found is not None
        assert found.status == "failed"
    assert "result_refused" in [record.__dict__.get("event") for record in log.records]


def test_passwords_are_not_told(log: pytest.LogCaptureFixture) -> None:
    with Queuert(f"postgresql://someone:{SECRET}@127.0.0.1:1/nowhere?connect_timeout=2") as app:
        assert SECRET not in repr(app)

        @app.job
        def work(job: RunningJob[None]) -> None: ...

        worker = app.worker()
        worker.start()
        eventually(lambda: [r for r in log.records if r.__dict__.get("event") == "database_unreachable"], 30)
        worker.stop(0)


def test_nothing_is_printed_unless_logging_is_set_up() -> None:
    program = """
from queuert import Backoff, Queuert
with Queuert("sqlite:///:memory:") as app:
    app.migrate()
    app.job("broken", max_attempts=2, backoff=Backoff(initial=0))(lambda job: 1 / 0)
    with app.worker():
        chain = app.start_chain("broken")
        app.wait_for(chain, timeout=10, raise_on_failure=False)
"""
    root = Path(queuert.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")

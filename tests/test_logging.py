"""The log: one line a fact, with what it is about as attributes; after the commit; no payloads, no passwords; quiet."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from support.handlers import held
from support.waiting import eventually

import queuert
from queuert import Backoff, Continuation, Dedup, NewChain, Queuert, RunningJob
from queuert.app import context_of
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


def test_failures_say_their_code_and_nothing_of_the_payload(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job(max_attempts=2, backoff=Backoff(initial=0, jitter=0))
    def broken(job: RunningJob[str]) -> None:
        raise ValueError("the gateway is away")

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
        ("failed", "broken", "INTERNAL:ValueError", "ERROR"),
        ("rescheduled", "later", None, "DEBUG"),
        ("retry_scheduled", "broken", "INTERNAL:ValueError", "WARNING"),
    ]


def test_a_failed_attempt_says_when_it_is_tried_again_and_the_last_one_why(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job(max_attempts=2, backoff=Backoff(initial=30, jitter=0))
    def broken(job: RunningJob[str]) -> None:
        raise ValueError("the gateway is away")

    chain = app.start_chain(broken, SECRET)
    app.drain()
    [warning] = [record for record in log.records if record.levelno >= logging.WARNING]
    assert warning.levelname == "WARNING"
    assert warning.exc_info is None
    for part in ("broken", chain.id, "attempt 1 of 2", "INTERNAL:ValueError", "again in 30 s"):
        assert part in warning.getMessage()
    assert (warning.__dict__["attempt"], warning.__dict__["retry_after"]) == (1, 30)
    log.clear()
    advance(app, 31)
    app.drain()
    [error] = [record for record in log.records if record.levelno >= logging.WARNING]
    assert error.levelname == "ERROR"
    assert "in attempt 2 with INTERNAL:ValueError" in error.getMessage()
    assert "the gateway is away" in log.text
    assert "Traceback" in log.text
    assert 'raise ValueError("the gateway is away")' in log.text


def test_the_end_by_fail_and_by_input_that_does_not_decode_is_an_error_too(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job
    def declined(job: RunningJob[str]) -> None:
        job.fail("PAYMENT:DECLINED", "no funds")

    @app.job
    def picky(job: RunningJob[Literal["a", "b"]]) -> None: ...

    app.start_chain(declined, SECRET)
    chain = app.start_chain(picky, "a")
    with app.transaction() as tx:
        tx.execute(f"UPDATE queuert_job SET input = '\"{SECRET}\"' WHERE id = '{chain.id}'")
    app.drain()
    errors = [record.__dict__ for record in log.records if record.levelno >= logging.WARNING]
    codes = ["INVALID_INPUT:SCHEMA_MISMATCH", "PAYMENT:DECLINED"]
    assert sorted((line["event"], line["error_code"], line["levelname"]) for line in errors) == [
        ("failed", code, "ERROR") for code in codes
    ]


def test_of_many_failures_alike_a_few_are_told_and_the_others_counted(target: str, log: pytest.LogCaptureFixture) -> None:
    with Queuert(target) as app:
        app.migrate()

        @app.job
        def broken(job: RunningJob[int]) -> None:
            raise (ValueError if job.input else KeyError)(SECRET)

        app.start_chains(NewChain(broken, 1) for _ in range(50))
        app.start_chain(broken, 0)
        app.drain()
        lines = [line for line in of_jobs(log) if line["event"] == "retry_scheduled"]
        by_code = Counter(line["error_code"] for line in lines)
        assert by_code == {"INTERNAL:ValueError": 10, "INTERNAL:KeyError": 1}
        assert "failures_left_out" not in events(log)
    [left_out] = [line for line in of_jobs(log) if line["event"] == "failures_left_out"]
    assert (left_out["left_out"], left_out["error_code"], left_out["levelname"]) == (40, "INTERNAL:ValueError", "WARNING")


def test_what_was_left_out_is_told_when_the_minute_is_over(
    app: Queuert, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.failure_log.WINDOW", 0.2)

    @app.job
    def broken(job: RunningJob[None]) -> None:
        raise ValueError(SECRET)

    app.start_chains(NewChain(broken) for _ in range(30))
    with app.worker(reap_interval=0.05):
        eventually(lambda: "failures_left_out" in events(log))
        eventually(lambda: told(log) == 30)


def told(log: pytest.LogCaptureFixture) -> int:
    """The failures that lines tell of, alone or as a number."""
    return sum(line.get("left_out", 1) for line in of_jobs(log) if line["levelname"] == "WARNING")


def test_a_lost_job_is_told_by_whoever_reaps_it(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    with held(app, "twice", max_attempts=2) as holding:
        advance(app, 100)
        app.drain(types=["twice"])
        [warning] = [line for line in of_jobs(log) if line["levelname"] == "WARNING"]
        assert (warning["event"], warning["error_code"]) == ("retry_scheduled", "WORKER:LOST")
        assert warning["job_id"] == holding.chain.id
    log.clear()
    with held(app, "once", max_attempts=1) as holding:
        advance(app, 100)
        app.drain(types=["once"])
        [error] = [line for line in of_jobs(log) if line["levelname"] == "ERROR"]
        assert (error["event"], error["error_code"], error["job_id"]) == ("failed", "WORKER:LOST", holding.chain.id)


def test_each_finished_job_can_be_a_line_at_info(target: str, log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.INFO, "queuert")
    for wanted in (False, True):
        with Queuert(target, log_finished=wanted) as app:
            app.migrate()

            @app.task
            def work(n: int) -> int:
                return n

            chains = [work.start(n) for n in range(3)]
            app.drain()
            lines = [line for line in of_jobs(log) if line["event"] == "completed"]
            assert [line["job_id"] for line in lines] == ([chain.id for chain in chains] if wanted else [])


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


def test_a_worker_says_at_its_start_what_it_works_on(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.job("charge-card")
    def charge(job: RunningJob[None]) -> None: ...

    @app.task
    def resize(path: str) -> None: ...

    with app.worker(concurrency=3), app.worker(types=["resize"]):
        pass
    both, one = [r for r in log.records if r.__dict__.get("event") == "worker_started"]
    assert both.levelname == "INFO"
    assert "with 3 slots, for charge-card, resize." in both.getMessage()
    assert repr(context_of(app).database) in both.getMessage()
    assert (one.__dict__["types"], one.__dict__["concurrency"]) == (["resize"], 1)


def test_a_worker_names_due_types_that_nobody_here_handles(app: Queuert, log: pytest.LogCaptureFixture) -> None:
    @app.task
    def handled() -> None: ...

    for name in ("forgotten", "scheduled"):
        app.declare(name)
    handled.using(after=3600).start()
    app.start_chain("forgotten", SECRET)
    app.start_chain("scheduled", after=3600)

    def warnings() -> list[Any]:
        return [r.__dict__ for r in log.records if r.__dict__.get("event") == "types_unhandled"]

    with app.worker(reap_interval=0.02) as worker:
        eventually(warnings)
        worker.events.watch().wait("reaped", count=3)
    [warning] = warnings()
    assert (warning["types"], warning["levelname"]) == (["forgotten"], "WARNING")


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

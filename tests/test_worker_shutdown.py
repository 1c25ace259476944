"""The end of a worker: what runs is finished, what waits goes back, and nobody waits for ever."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from support import eventually, found
from support.clocks import database_now
from support.inside import slots_of, worker_threads
from support.racing import Background

from queuert import Lease, NewChain, Queuert, RunningJob, Worker


def status(app: Queuert, job_id: str) -> str:
    job = app.get_job(job_id)
    assert job is not None
    return str(job.status)


def once_stopping(worker: Worker, leave: threading.Event) -> None:
    """Let a handler go when somebody has begun to wait for it."""
    eventually(lambda: not worker.running)
    leave.set()


def test_stop_waits_for_running_handlers(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("job")
    def handler(job: RunningJob[None]) -> str:
        entered.set()
        leave.wait(20)
        return "finished"

    chain = app.start_chain(handler)
    worker = app.worker()
    worker.start()
    entered.wait(10)
    leaving = Background(lambda: once_stopping(worker, leave))
    assert worker.stop(timeout=10) is True
    leaving.result()
    assert found(app.get_chain(chain.id)).output == "finished"
    assert worker.unfinished == []


def test_what_was_claimed_and_not_started_goes_back_with_its_attempt_restored(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()
    ran = []

    @app.job("job")
    def handler(job: RunningJob[int]) -> None:
        ran.append(job.input)
        if job.input == 150:
            entered.set()
            leave.wait(20)

    chains = app.start_chains([NewChain(handler, n) for n in range(400)])
    # One slot: after so many short jobs some more are waiting behind the one that does not end.
    worker = app.worker(concurrency=1)
    worker.start()
    assert entered.wait(10)
    eventually(lambda: slots_of(worker).waiting > 0, timeout=0.4)  # they wait no longer than half a second
    leaving = Background(lambda: once_stopping(worker, leave))
    assert worker.stop(timeout=10)
    leaving.result()
    assert ran == list(range(151))
    for chain in chains[151:]:
        job = app.get_job(chain.id)
        assert job is not None
        assert (job.status, job.attempt, job.leased_by, job.lease_token) == ("pending", 0, None, None)
        assert job.last_attempt_at is None
        assert app.attempts(chain.id) == []


def test_past_the_timeout_handlers_are_told_to_stop(app: Queuert) -> None:
    entered = threading.Event()

    @app.job("polite", max_attempts=1)
    def polite(job: RunningJob[None]) -> None:
        entered.set()
        job.signal.wait(20)
        job.signal.raise_if_set()

    chain = app.start_chain(polite)
    worker = app.worker()
    worker.start()
    entered.wait(10)
    started = time.monotonic()
    worker.stop(timeout=0.2)
    assert time.monotonic() - started < 3
    [attempt] = eventually(lambda: app.attempts(chain.id))
    # Nobody's fault: it goes back, and no attempt is used up.
    assert attempt.outcome == "rescheduled"
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.attempt - job.attempts_forgiven) == ("pending", 0)
    eventually(lambda: worker_threads(worker).ended.is_set())


def test_a_handler_that_swallows_the_signal_is_named_and_keeps_its_lease(
    app: Queuert, caplog: pytest.LogCaptureFixture
) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("stubborn", lease=Lease(duration=0.6))
    def stubborn(job: RunningJob[None]) -> str:
        entered.set()
        leave.wait(30)
        return str(job.signal.reason)

    chain = app.start_chain(stubborn)
    worker = app.worker(name="w1")
    worker.start()
    entered.wait(10)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "queuert.worker"):
        assert worker.stop(timeout=0.2) is False
    assert time.monotonic() - started < 2
    [name] = worker.unfinished
    assert "stubborn" in name
    assert chain.id in name
    assert chain.id in caplog.text
    # Another worker that reaps does not get it, for longer than the lease.
    end = found(found(app.get_job(chain.id)).leased_until)
    with app.worker(types=[app.declare("nothing")], reap_interval=0.05) as other:
        other.events.watch()
        eventually(lambda: database_now(app) > end)
        other.events.wait("reaped", count=other.events.count("reaped") + 2)
        assert status(app, chain.id) == "running"
    leave.set()
    assert app.wait_for(chain, timeout=10).output == "stopping"
    eventually(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("queuert-w1-")])
    assert worker.unfinished == []
    assert worker.stop() is True


def test_stop_can_be_called_twice_and_from_several_threads(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    worker = app.worker(concurrency=3)
    assert worker.stop() is True, "it was never started"
    worker.start()
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(worker.stop())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [True] * 5
    assert worker.stop() is True


@pytest.mark.parametrize("poll_interval", [0.05, 3600])
def test_stop_does_not_wait_for_a_poll(app: Queuert, poll_interval: float) -> None:
    app.job("job")(lambda job: None)
    worker = app.worker(poll_interval=poll_interval, reap_interval=3600)
    worker.events.watch()
    worker.start()
    worker.events.wait("looked")
    started = time.monotonic()
    assert worker.stop()
    assert time.monotonic() - started < 1.5


def test_stop_from_inside_a_handler_does_not_wait_for_itself(app: Queuert) -> None:
    results: list[bool] = []
    together = threading.Barrier(2)

    @app.job("job")
    def handler(job: RunningJob[None]) -> str:
        together.wait(10)
        results.append(worker.stop(timeout=20))
        return "done"

    chains = [app.start_chain(handler) for _ in range(2)]
    worker = app.worker(concurrency=2)
    started = time.monotonic()
    worker.start()
    for chain in chains:
        assert app.wait_for(chain, timeout=10).output == "done"
    assert worker.stop() is True
    assert time.monotonic() - started < 5
    assert results == [False, False]


def test_a_second_stop_with_less_patience_counts(app: Queuert) -> None:
    entered, told, leave = threading.Event(), threading.Event(), threading.Event()

    @app.job("job")
    def handler(job: RunningJob[None]) -> None:
        entered.set()
        if job.signal.wait(30):
            told.set()
        leave.wait(30)

    app.start_chain(handler)
    worker = app.worker()
    worker.start()
    entered.wait(10)
    patient: list[bool] = []
    thread = threading.Thread(target=lambda: patient.append(worker.stop(timeout=60)))
    thread.start()
    eventually(lambda: not worker.running)
    assert worker.stop(timeout=0) is False
    assert told.wait(10), "its patience counts for the handlers"
    leave.set()
    assert worker.stop(timeout=10) is True
    thread.join(10)
    assert patient == [True]


def test_results_are_flushed_before_stop_returns(app: Queuert) -> None:
    app.job("job")(lambda job: job.input)
    chains = [app.start_chain("job", n) for n in range(300)]
    worker = app.worker(concurrency=5)
    worker.events.watch()
    worker.start()
    worker.events.wait("completed", count=2)
    assert worker.stop()
    states = {status(app, chain.id) for chain in chains}
    assert states <= {"completed", "pending"}, "nothing is left running"
    assert "completed" in states


def test_a_worker_can_be_started_again_and_has_another_id(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    worker = app.worker(name="again")
    ids = set()
    for _ in range(3):
        with worker:
            ids.add(worker.id)
            app.wait_for(app.start_chain("job"), timeout=10)
    assert len(ids) == 3
    assert all(each.startswith("again@") for each in ids)
    with worker, pytest.raises(Exception, match="runs already"):
        worker.start()


def test_run_ends_when_another_thread_stops_it(app: Queuert) -> None:
    app.job("job")(lambda job: "ran")
    worker = app.worker()
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def stop_it() -> None:
        seen.append(app.wait_for(app.start_chain("job"), timeout=10).output)
        seen.append(signal.getsignal(signal.SIGTERM) is not before)
        worker.stop()

    thread = threading.Thread(target=stop_it)
    thread.start()
    assert worker.run() is True
    thread.join(10)
    assert seen == ["ran", True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_run_works_in_another_thread_than_the_main_one(app: Queuert) -> None:
    app.job("job")(lambda job: "ran")
    worker = app.worker()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(worker.run()))
    thread.start()
    assert app.wait_for(app.start_chain("job"), timeout=10).output == "ran"
    worker.stop()
    thread.join(10)
    assert results == [True]


SERVICE = """
    import sys, threading
    from queuert import Queuert
    from support import eventually

    app = Queuert(sys.argv[1])
    worker = app.worker(concurrency=2)

    @app.job("slow")
    def slow(job):
        print("entered", flush=True)
        eventually(lambda: not worker.running, 30)
        print("stopping", flush=True)
        if sys.argv[2] == "stays":
            threading.Event().wait()
        return "finished"

    print("stopped", worker.run(timeout=float(sys.argv[3])), flush=True)
    app.close()
"""


def service(target: str, how: Literal["leaves", "stays"], timeout: float) -> subprocess.Popen[str]:
    """A process whose handler ends when the worker is stopping, or never."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVICE), target, how, str(timeout)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2]))},
    )


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared_app(request: pytest.FixtureRequest) -> Any:
    """An app on a database that another process can use too, and its URL."""
    path: Path = request.getfixturevalue("sqlite_path")
    target = f"sqlite:///{path}" if request.param == "sqlite-file" else request.getfixturevalue("pg_url")
    with Queuert(target) as app:
        app.migrate()
        app.declare("slow")
        yield app, target


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_handlers_finish(shared_app: tuple[Queuert, str], number: signal.Signals) -> None:
    app, target = shared_app
    chain = app.start_chain("slow")
    process = service(target, "leaves", 20)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        assert process.stdout.readline() == "stopped True\n"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
    assert found(app.get_chain(chain.id)).output == "finished"


def test_the_second_signal_is_immediate(shared_app: tuple[Queuert, str]) -> None:
    app, target = shared_app
    chain = app.start_chain("slow")
    process = service(target, "stays", 60)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        assert time.monotonic() - started < 2
    finally:
        process.kill()
        process.communicate()
    assert status(app, chain.id) == "running", "its lease has to run out"


def test_a_signal_past_the_timeout_ends_the_run_all_the_same(shared_app: tuple[Queuert, str]) -> None:
    app, target = shared_app
    app.start_chain("slow")
    process = service(target, "stays", 0.2)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        assert process.stdout.readline() == "stopped False\n"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()

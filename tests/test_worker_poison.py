"""Jobs that would take others down with them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import eventually, found
from support.inside import database_of

from queuert import Backoff, NewChain, Queuert, RunningJob
from queuert.worker.results import ResultWriter


def test_input_that_no_longer_decodes_fails_at_once_and_alone(app: Queuert) -> None:
    loose = app.declare("strict")
    bad, good = app.start_chain(loose, {"text": "x"}), app.start_chain(loose, 5)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")

    other = Queuert(database_of(app))
    ran = []

    @other.job("strict")
    def strict(job: RunningJob[int]) -> int:
        ran.append(job.input)
        return job.input

    with other.worker():
        assert other.wait_for(good, timeout=10).output == 5
        chain = other.wait_for(bad, timeout=10, raise_on_failure=False)
    assert chain.status == "failed"
    assert chain.error_code is not None
    assert chain.error_code.startswith("INVALID_INPUT:")
    assert ran == [5]
    [attempt] = other.attempts(bad.id)
    assert (attempt.outcome, attempt.retry_at) == ("failed", None)


@pytest.mark.parametrize("stored", [b'{"a": 1}', b"\xff\x00", "no JSON"], ids=repr)
def test_a_row_made_by_hand_with_an_input_that_is_no_json_fails_alone(sqlite_path: Path, stored: bytes | str) -> None:
    """SQLite keeps whatever it is given; on PostgreSQL the column takes JSON only."""
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.job("work")(lambda job: "ran")
        bad, good = app.start_chains([NewChain("work")] * 2)
        with app.transaction() as tx:
            tx.execute("UPDATE queuert_job SET input = ? WHERE id = ?", (stored, bad.id))
        with app.worker():
            assert app.wait_for(good, timeout=10).output == "ran"
            assert app.wait_for(bad, timeout=10, raise_on_failure=False).status == "failed"
        job = app.get_job(bad.id)
        assert job is not None
        assert job.error_code is not None
        assert job.error_code.startswith("INVALID_INPUT:")
        assert job.input == stored


def test_a_type_without_a_handler_here_is_not_claimed(app: Queuert) -> None:
    elsewhere = app.declare("elsewhere")
    app.job("here")(lambda job: "ran")
    waiting = [app.start_chain(elsewhere, priority=50) for _ in range(20)]
    with app.worker(types=["here", "elsewhere"]) as worker:
        worker.events.watch()
        assert app.wait_for(app.start_chain("here"), timeout=10).output == "ran"
        worker.events.wait("looked")
    for chain in waiting:
        job = app.get_job(chain.id)
        assert job is not None
        assert (job.status, job.attempt) == ("pending", 0)


@pytest.mark.parametrize("answer", [{1, 2}, float("nan"), b"bytes", object()], ids=repr)
def test_an_output_that_is_not_json_fails_the_attempt(app: Queuert, answer: Any) -> None:
    app.job("bad", max_attempts=1)(lambda job: answer)
    with app.worker():
        chain = app.wait_for(app.start_chain("bad"), timeout=10, raise_on_failure=False)
    assert chain.status == "failed"
    assert chain.error_code is not None
    assert "invalid_output" in chain.error_code.lower() or "JobTypeValidationError" in chain.error_code


def test_closing_the_connection_in_complete_fails_that_attempt_only(app: Queuert) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")
    started = threading.Barrier(2)

    @app.job("rude", max_attempts=1)
    def rude(job: RunningJob[None]) -> None:
        started.wait(10)
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            tx.close()

    @app.job("polite")
    def polite(job: RunningJob[None]) -> None:
        started.wait(10)
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (2)")

    bad, good = app.start_chain(rude), app.start_chain(polite)
    with app.worker(concurrency=2):
        app.wait_for(good, timeout=10)
        chain = app.wait_for(bad, timeout=10, raise_on_failure=False)
    assert (chain.status, chain.error_code) == ("failed", "INTERNAL:TransactionMisuseError")
    with app.transaction() as tx:
        assert [row[0] for row in tx.execute("SELECT n FROM ledger").fetchall()] == [2]


KILLER = """
    import os, signal, sys
    from queuert import Backoff, Lease, Queuert

    app = Queuert(sys.argv[1])

    @app.job("job", lease=Lease(duration=2), backoff=Backoff(initial=0.1))
    def handler(job):
        if job.input == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return job.input

    app.worker(concurrency=10, reap_interval=0.25).run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_one_poison_job_among_two_hundred_fails_alone(kind: str, most: int, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue("sqlite_path")
    target = f"sqlite:///{path}" if kind == "sqlite-file" else request.getfixturevalue("pg_url")
    with Queuert(target) as app:
        app.migrate()
        job = app.declare("job", max_attempts=most)
        innocent = [app.start_chain(job, n) for n in range(100)]
        poison = app.start_chain(job, "poison")
        innocent += [app.start_chain(job, n) for n in range(100, 200)]
        everything = [*innocent, poison]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(KILLER), target],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )

        deaths = 0
        process = start()

        def all_closed() -> bool:
            nonlocal deaths, process
            if process.poll() is not None:
                deaths += 1
                process = start()
            return not app.list_chains(statuses=["pending", "running", "blocked"], limit=1).items

        try:
            eventually(all_closed, 90, every=0.05)
        finally:
            process.kill()
            process.wait()
        states = {chain.id: found(app.get_chain(chain.id)) for chain in everything}
        assert states[poison.id].status == "failed"
        assert states[poison.id].error_code == "WORKER:LOST"
        assert [attempt.outcome for attempt in app.attempts(poison.id)] == ["lost"] * (most + 1)
        assert deaths == most + 1
        failed = [chain.id for chain in innocent if states[chain.id].status != "completed"]
        assert failed == []


def test_suspects_run_one_at_a_time_with_nothing_waiting_beside_them(app: Queuert) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    @app.job("job", backoff=Backoff(initial=0, jitter=0))
    def handler(job: RunningJob[int]) -> bool:
        if not job.suspect:
            return False
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        for worker in workers:  # time for another one to start, if they could
            worker.events.wait("looked", count=worker.events.count("looked") + 2)
        with lock:
            running[0] -= 1
        return True

    chains = [app.start_chain(handler, n) for n in range(5)]
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = true")
    workers = [app.worker(concurrency=4, poll_interval=0.02) for _ in range(2)]
    for worker in workers:
        worker.events.watch()
    with workers[0], workers[1]:
        assert [app.wait_for(chain, timeout=20).output for chain in chains] == [True] * 5
    assert most[0] == 1
    job = app.get_job(chains[0].id)
    assert job is not None
    assert job.suspect is False, "a success clears it"


def test_many_suspects_are_through_soon(app: Queuert) -> None:
    app.job("job")(lambda job: job.suspect)
    chains = app.start_chains([NewChain("job") for _ in range(40)])
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = true")
    started = time.monotonic()
    with app.worker(concurrency=4, poll_interval=3600):
        assert all(app.wait_for(chain, timeout=20).output for chain in chains)
    assert time.monotonic() - started < 10


def test_a_turn_lasts_until_the_result_is_written(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    written, started = threading.Event(), threading.Semaphore(0)
    write = ResultWriter.write

    def waiting(self: ResultWriter, *args: Any, **kwargs: Any) -> Any:
        assert written.wait(20)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(ResultWriter, "write", waiting)
    app.job("job")(lambda job: started.release())
    chains = [app.start_chain("job") for _ in range(2)]
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = true")
    with app.worker(concurrency=4, poll_interval=0.05) as worker:
        worker.events.watch()
        assert started.acquire(timeout=10)
        worker.events.wait("looked", count=worker.events.count("looked") + 5)
        assert not started.acquire(blocking=False), "the second would start before the first one's success is safe"
        written.set()
        for chain in chains:
            app.wait_for(chain, timeout=10)


def test_suspects_get_their_turn_under_load(app: Queuert) -> None:
    order: list[str] = []
    stop = threading.Event()

    @app.job("job")
    def handler(job: RunningJob[str]) -> None:
        order.append(job.input)

    suspect = app.start_chain(handler, "suspect")
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = true")

    def feed() -> None:
        while not stop.is_set():
            app.start_chains([NewChain("job", "other") for _ in range(50)])

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with app.worker(concurrency=2):
            app.wait_for(suspect, timeout=15)
    finally:
        stop.set()
        feeder.join()
    assert "suspect" in order


def test_a_reaped_job_backs_off_like_any_other(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("job", backoff=Backoff(initial=100, jitter=0))
    def handler(job: RunningJob[None]) -> None:
        entered.set()
        leave.wait(20)

    chain = app.start_chain(handler)
    with app.worker(reap_interval=3600):
        entered.wait(10)
        with app.transaction() as tx:
            old = "'2001-01-01T00:00:00.000000Z'"
            tx.execute(f"UPDATE queuert_job SET leased_until = {old}")
        with app.worker(types=[app.declare("nothing")], reap_interval=0.05):
            [attempt] = eventually(lambda: app.attempts(chain.id))
        leave.set()
    assert attempt.retry_at is not None
    assert round((attempt.retry_at - attempt.finished_at).total_seconds()) == 100
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.losses, job.suspect, job.error_code) == ("pending", 1, False, "WORKER:LOST")


def test_a_worker_does_not_reap_what_it_has_in_hand(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("job")
    def handler(job: RunningJob[None]) -> str:
        entered.set()
        leave.wait(20)
        return "done"

    chain = app.start_chain(handler)
    with app.worker(reap_interval=0.05) as worker:
        worker.events.watch()
        entered.wait(10)
        with app.transaction() as tx:
            tx.execute("UPDATE queuert_job SET leased_until = '2001-01-01T00:00:00.000000Z'")
        worker.events.wait("reaped", count=worker.events.count("reaped") + 3)
        leave.set()
        assert app.wait_for(chain, timeout=10).output == "done"
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]

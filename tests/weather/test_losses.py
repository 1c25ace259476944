"""Jobs whose workers are lost, leave or hang: they come back side by side, and nothing is held against them for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import eventually, found

from queuert import Backoff, Lease, NewChain, Queuert, RunningJob

AT_ONCE = Backoff(initial=0, jitter=0)


def be_lost(app: Queuert) -> None:
    """Every pending job is claimed by a worker that is gone."""
    with app.transaction() as tx:
        tx.execute(
            "UPDATE queuert_job SET status = 'running', attempt = attempt + 1, leased_by = 'gone', lease_token = 1,"
            " last_attempt_at = created_at, leased_until = '2001-01-01T00:00:00.000000Z' WHERE status = 'pending'"
        )


def reap(app: Queuert) -> None:
    with app.worker(types=["nothing"], reap_interval=0.02):
        eventually(lambda: not app.list_jobs(statuses=["running"], limit=1).items)


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared(request: pytest.FixtureRequest) -> str:
    """A database that several processes can use."""
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    url: str = request.getfixturevalue("pg_url")
    return url


def test_the_first_loss_counts_the_second_is_forgiven_and_then_it_is_alone(app: Queuert) -> None:
    app.declare("job", max_attempts=3, backoff=AT_ONCE)
    app.declare("nothing")
    chain = app.start_chain("job")
    seen = []
    for _ in range(4):
        be_lost(app)
        reap(app)
        job = found(app.get_job(chain.id))
        seen.append((str(job.status), job.losses, job.suspect, job.attempts_used))
    assert seen == [("pending", 1, False, 1), ("pending", 2, True, 1), ("pending", 3, True, 2), ("failed", 4, False, 3)]
    assert [attempt.error_code for attempt in app.attempts(chain.id)] == ["WORKER:LOST"] * 4
    retried = app.retry_chain(chain.id)
    job = found(app.get_job(retried.id))
    assert (job.losses, job.suspect, job.attempts_used) == (0, False, 0)


def test_an_ordinary_failure_ends_the_row_of_losses(app: Queuert) -> None:
    failing = True

    @app.job("job", backoff=AT_ONCE)
    def handler(job: RunningJob[None]) -> None:
        if failing:
            raise ValueError("an ordinary failure")

    app.declare("nothing")
    chain = app.start_chain("job")
    be_lost(app)
    reap(app)
    assert found(app.get_job(chain.id)).losses == 1
    with app.worker():
        eventually(lambda: len(app.attempts(chain.id)) >= 2)
        eventually(lambda: found(app.get_job(chain.id)).losses == 0)
        failing = False
        app.wait_for(chain, timeout=10)


LOSER = """
    import sys, threading
    from queuert import Lease, Queuert, RunningJob

    app = Queuert(sys.argv[1])

    @app.job("second", lease=Lease(duration=2))
    def second(job: RunningJob[int]) -> None:
        threading.Event().wait(60)

    app.worker(concurrency=50).run()
"""


def test_the_jobs_of_a_lost_host_run_side_by_side(shared: str) -> None:
    with Queuert(shared) as app:
        app.migrate()
        together, most = threading.Barrier(50), []

        @app.job("second", backoff=AT_ONCE, max_attempts=3)
        def second(job: RunningJob[int]) -> None:
            together.wait(30)  # none of them ends before all of them run
            most.append(job.id)

        chains = app.start_chains([NewChain("second", number) for number in range(50)])
        host = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LOSER), shared],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        eventually(lambda: len(app.list_jobs(statuses=["running"], limit=100).items) == 50, 20)
        host.kill()
        host.wait()
        with app.worker(concurrency=50, reap_interval=0.2):
            for chain in chains:
                assert app.wait_for(chain, timeout=40).status == "completed"
        assert len(most) == 50
        assert {tuple(attempt.outcome for attempt in app.attempts(chain.id)) for chain in chains} == {("lost", "succeeded")}


def test_nothing_waits_beside_a_job_that_was_lost_once(app: Queuert) -> None:
    release, entered = threading.Event(), threading.Semaphore(0)

    @app.job("job", backoff=AT_ONCE)
    def handler(job: RunningJob[int]) -> None:
        if job.losses:
            entered.release()
            release.wait(20)

    app.declare("nothing")
    lost = app.start_chain("job", 0, priority=50)
    be_lost(app)
    reap(app)
    others = app.start_chains([NewChain("job", number) for number in range(300)])
    with app.worker(concurrency=2, poll_interval=0.05) as worker:
        assert entered.acquire(timeout=10)
        worker.events.watch()
        slots: Any = worker._threads._slots
        for _ in range(20):
            assert slots.running + slots.waiting <= slots.size, "what was claimed has a slot"
            time.sleep(0.005)
        release.set()
        for chain in [lost, *others]:
            app.wait_for(chain, timeout=20)


# Excuses are bounded


@pytest.fixture
def pg_queue(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queuert]:
    monkeypatch.setattr("queuert.worker.attempt.LONGEST_TRANSIENT_PAUSE", 0.01)
    with Queuert(pg_url) as app:
        app.migrate()
        yield app


def test_a_job_whose_sql_ends_its_connection_fails_in_the_end(pg_queue: Queuert) -> None:
    @pg_queue.job("killer", max_attempts=2, backoff=AT_ONCE)
    def killer(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    chain = pg_queue.start_chain(killer)
    with pg_queue.worker():
        failed = pg_queue.wait_for(chain, timeout=30, raise_on_failure=False)
    assert failed.status == "failed"
    assert failed.error_code
    outcomes = [attempt.outcome for attempt in pg_queue.attempts(chain.id)]
    # A failure that counts begins a new row.
    assert outcomes == [*["rescheduled"] * 10, "failed"] * 2


def test_a_job_that_never_gets_its_lock_fails_in_the_end(pg_queue: Queuert, pg_url: str) -> None:
    @pg_queue.job("impatient", max_attempts=1)
    def impatient(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("SELECT * FROM held FOR UPDATE NOWAIT")

    with psycopg.connect(pg_url) as other:
        other.execute("CREATE TABLE held AS SELECT 1 AS n")
        other.commit()
        other.execute("SELECT * FROM held FOR UPDATE")
        chain = pg_queue.start_chain(impatient)
        with pg_queue.worker():
            failed = pg_queue.wait_for(chain, timeout=30, raise_on_failure=False)
    assert (failed.status, failed.error_code) == ("failed", "DEPENDENCY:DB_LOCKED")
    assert [attempt.outcome for attempt in pg_queue.attempts(chain.id)] == [*["rescheduled"] * 10, "failed"]


# Leaving


LEAVER = """
    import sys, threading
    from queuert import Lease, Queuert, RunningJob

    app = Queuert(sys.argv[1])
    how = sys.argv[2]

    @app.job("endless", lease=Lease(duration=600))
    def endless(job: RunningJob[None]) -> None:
        print("entered", flush=True)
        threading.Event().wait(600)

    worker = app.worker()
    if how == "run":
        worker.run(timeout=0.1)
    else:
        worker.start()
        sys.stdin.readline()
        worker.stop(timeout=0.1)
        if how == "close":
            app.close()
"""


@pytest.mark.parametrize("how", ["run", "close", "exit"])
def test_a_worker_that_leaves_gives_back_what_its_handlers_have_not_finished(shared: str, how: str) -> None:
    with Queuert(shared) as app:
        app.migrate()
        app.job("endless", max_attempts=1)(lambda job: "done")
        chain = app.start_chain("endless")
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LEAVER), shared, how],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        if how == "run":
            process.terminate()
        process.communicate("stop\n", timeout=30)
        job = found(app.get_job(chain.id))
        assert (job.status, job.attempts_used, job.losses, job.suspect) == ("pending", 0, 0, False)
        with app.worker():
            assert app.wait_for(chain, timeout=10).output == "done"
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["rescheduled", "succeeded"]


# Hanging


def test_a_handler_that_hangs_loses_its_job_and_its_slot_is_a_zombie(shared: str) -> None:
    with Queuert(shared) as app:
        app.migrate()
        release, ran = threading.Event(), []

        @app.job("hang", timeout=0.1, lease=Lease(duration=1), backoff=AT_ONCE)
        def hang(job: RunningJob[None]) -> str:
            ran.append(job.attempt)
            if len(ran) == 1:
                release.wait(40)
            return f"attempt {job.attempt}"

        chain = app.start_chain(hang)
        try:
            with app.worker(reap_interval=0.1) as worker:
                eventually(lambda: worker.zombies == 1, 20)
                with app.worker(reap_interval=0.1):
                    assert app.wait_for(chain, timeout=20).output == "attempt 2"
                release.set()
                eventually(lambda: worker.zombies == 0)
        finally:
            release.set()
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["lost", "succeeded"]


# Young jobs


@pytest.mark.parametrize("after", [0.0, 0.1])
def test_a_cancel_right_after_the_start_is_told_promptly(shared: str, after: float) -> None:
    with Queuert(shared) as app, Queuert(shared) as other:
        app.migrate()
        entered, told = threading.Event(), []

        @app.job("job", lease=Lease(duration=60))
        def handler(job: RunningJob[None]) -> None:
            entered.set()
            job.signal.wait(15)
            told.append(job.signal.reason)

        with app.worker():
            chain = app.start_chain(handler)
            assert entered.wait(10)
            time.sleep(after)  # it is its age that matters here
            other.declare("job")
            other.cancel_chain(chain.id)
            eventually(lambda: told == ["cancelled"], 5)

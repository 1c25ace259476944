"""Connections that carry nothing any more, that are too few, or that somebody else's lock holds up."""

from __future__ import annotations

import logging
import threading
from typing import Any

import psycopg
import psycopg_pool
import pytest
from support import eventually
from weather import Weather

from queuert import Lease, NewChain, Queuert, Retention, RunningJob


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leases", "dispatcher", "reaper", "completer"):
        monkeypatch.setattr(f"queuert.worker.{module}.DEADLINE", 1.0)
    monkeypatch.setattr("queuert.worker.watchdog.INTERVAL", 0.1)


def test_a_black_hole_is_noticed_and_left_for_new_connections(
    pg_app: Queuert, pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    entered, gate = threading.Semaphore(0), threading.Event()
    with Weather(pg_url) as weather, Queuert(weather.url) as app:

        @app.job("slow", max_attempts=1, lease=Lease(duration=8, renew_every=0.2))
        def slow(job: RunningJob[int]) -> int:
            entered.release()
            gate.wait(30)
            return job.input

        app.job("quick", max_attempts=1)(lambda job: job.input)
        chains = [pg_app_start(pg_app, "slow", number) for number in range(2)]
        with app.worker(concurrency=4, poll_interval=0.2, reap_interval=0.2) as worker:
            for _ in chains:
                assert entered.acquire(timeout=10)
            weather.black_hole()  # what is open carries nothing any more; new connections work
            eventually(lambda: [r for r in caplog.records if r.__dict__.get("event") == "no_progress"], 20)
            chains += [pg_app_start(pg_app, "quick", number) for number in range(2, 12)]
            for chain in chains[2:]:
                assert pg_app.wait_for(chain, timeout=30).status == "completed"
            gate.set()
            for chain in chains:
                assert pg_app.wait_for(chain, timeout=30).status == "completed"
                assert [attempt.outcome for attempt in pg_app.attempts(chain.id)] == ["succeeded"]
            assert worker.error is None


def pg_app_start(app: Queuert, name: str, number: int) -> Any:
    if name not in {each.name for each in app.types}:
        app.declare(name, max_attempts=1)
    return app.start_chain(name, number)


def test_leases_are_renewed_although_handlers_have_all_connections_of_the_pool(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        psycopg_pool.ConnectionPool(pg_url, min_size=1, max_size=4, open=True, timeout=30) as pool,
        Queuert(pool) as app,
        caplog.at_level(logging.WARNING),
    ):
        app.migrate()
        gate, entered = threading.Event(), threading.Semaphore(0)

        @app.job("holder", max_attempts=1, lease=Lease(duration=1.5, renew_every=0.2))
        def holder(job: RunningJob[int]) -> int:
            with job.complete() as tx:
                tx.execute("SELECT 1")
                entered.release()
                gate.wait(30)
            return job.input

        chains = app.start_chains([NewChain("holder", number) for number in range(4)])
        with psycopg.connect(pg_url, autocommit=True) as looker, app.worker(concurrency=8) as worker:
            worker.events.watch()
            for _ in chains:
                assert entered.acquire(timeout=10)
            worker.events.wait("renewed", count=12, timeout=20)  # for longer than a lease lasts
            alive = looker.execute("SELECT count(*) FROM queuert_job WHERE leased_until > clock_timestamp()").fetchone()
            assert alive == (4,)
            gate.set()
            for chain in chains:
                eventually(lambda chain=chain: status(looker, chain.id) == "completed", 30)
    [said] = [r for r in caplog.records if r.__dict__.get("event") == "pool_too_small"]
    assert "max_size" in said.getMessage()


def status(conn: psycopg.Connection[Any], job_id: str) -> str:
    [row] = conn.execute("SELECT status::text FROM queuert_job WHERE id = %s", (job_id,)).fetchall()
    return str(row[0])


def test_a_stop_does_not_wait_for_housekeeping_that_waits_for_somebodys_lock(pg_url: str) -> None:
    with psycopg.connect(pg_url) as locker, Queuert(pg_url, retention=Retention(completed=0)) as app:
        app.migrate()
        locker.execute("LOCK TABLE queuert_singleton IN ACCESS EXCLUSIVE MODE")
        worker = app.worker(types=[app.declare("nothing")])
        worker.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(pg_url, autocommit=True) as looker:
            eventually(lambda: looker.execute(waiting).fetchone() != (0,))
            assert worker.stop(10), "nothing is running"
            eventually(lambda: looker.execute(waiting).fetchone() == (0,))
        locker.rollback()

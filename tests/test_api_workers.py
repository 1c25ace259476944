"""Who is there: every worker has a row, kept with its renewals, and gone or marked when it is."""

from __future__ import annotations

import logging
import os
import socket
import threading
from importlib.metadata import version
from typing import Any

import pytest
from support.clocks import database_now
from support.waiting import eventually

from queuert import Lease, Queuert, RunningJob, WorkerInfo
from queuert.app import context_of
from queuert.chains.history import LOST_AFTER
from queuert.worker import leases
from queuert.worker.attendance import PART, Rates
from queuert.worker.outcome import Outcome

MORE = 20.0


def one(app: Queuert) -> WorkerInfo:
    [worker] = app.workers()
    return worker


def older(app: Queuert, by: float) -> None:
    context = context_of(app)
    context.database.run(lambda session: context.repository.make_older(session, by))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life that come so often that a test need not wait for them."""
    monkeypatch.setattr(leases, "SIGN_EVERY", 0.05)


def blocking(app: Queuert, **options: Any) -> tuple[threading.Event, threading.Event]:
    started, go_on = threading.Event(), threading.Event()

    @app.job("slow", **options)
    def handle(job: RunningJob[Any]) -> str:
        started.set()
        assert go_on.wait(MORE)
        return "done"

    return started, go_on


def test_a_worker_is_there_as_soon_as_it_has_started_and_gone_when_it_has_stopped(app: Queuert) -> None:
    app.job("a")(lambda job: None)
    before = database_now(app)
    with app.worker(concurrency=3, name="mill") as worker:
        found = one(app)
        assert (found.id, found.name, found.host, found.pid) == (worker.id, "mill", socket.gethostname(), os.getpid())
        assert (found.concurrency, found.busy, found.waiting, found.zombies) == (3, 0, 0, 0)
        assert (found.types, found.stopping, found.lost, found.version) == (("a",), False, False, version("queuert"))
        assert before <= found.started_at <= found.last_seen_at <= database_now(app)
    assert app.workers() == []


def test_it_says_how_busy_it_is(app: Queuert, often: None) -> None:
    started, go_on = blocking(app)
    with app.worker(concurrency=2):
        app.start_chain("slow")
        assert started.wait(MORE)
        eventually(lambda: one(app).busy == 1)
        go_on.set()
        eventually(lambda: one(app).busy == 0)


def test_a_worker_that_is_stopping_says_so_until_its_handlers_have_ended(app: Queuert) -> None:
    started, go_on = blocking(app)
    app.start_chain("slow")
    worker = app.worker()
    worker.start()
    assert started.wait(MORE)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: one(app).stopping)
    assert one(app).busy == 1
    go_on.set()
    stopping.join(MORE)
    assert app.workers() == []


def test_a_worker_that_was_not_heard_of_for_three_signs_of_life_is_lost(app: Queuert) -> None:
    app.job("a")(lambda job: None)
    worker = app.worker()
    worker.start()
    try:
        worker.events.watch()
        older(app, LOST_AFTER - 5)
        assert not one(app).lost
        older(app, 10)
        assert one(app).lost
        worker._threads._keeper.sign_soon()  # type: ignore[union-attr]
        worker.events.wait("signed")
        assert not one(app).lost
    finally:
        worker.stop()


def test_housekeeping_removes_the_lost_after_a_while(app: Queuert) -> None:
    context = context_of(app)
    sign = {"name": "w", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "busy": 0, "waiting": 0, "zombies": 0}
    sign |= {"stopping": False, "types": ["a"]}
    rates = [{"type_name": "a", "part": 1, "completed": 3, "failed": 1}]
    context.database.run(lambda session: context.repository.renew_and_sign(session, "w", (), sign, rates))
    context.database.run(lambda session: context.repository.renew_and_sign(session, "w", (), sign, rates))
    older(app, 3000)
    context.database.run(app._cleaner._forget)
    assert one(app).lost
    older(app, 1000)
    context.database.run(app._cleaner._forget)
    assert app.workers() == []
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM queuert_worker_rate").fetchone()[0] == 0


def test_a_sign_of_life_goes_with_the_renewals(app: Queuert, often: None) -> None:
    started, go_on = blocking(app, lease=Lease(60, renew_every=0.2))
    chain = app.start_chain("slow")
    with app.worker() as worker:
        assert started.wait(MORE)
        worker.events.watch()
        worker.events.wait("renewed", count=2)
        assert app.get_job(chain.id).heartbeat_at is not None  # type: ignore[union-attr]
        go_on.set()
        app.wait_for(chain, timeout=MORE)


def test_a_handler_whose_job_was_taken_away_is_a_zombie(app: Queuert, often: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "queuert.worker")
    started, go_on = blocking(app)
    chain = app.start_chain("slow")
    with app.worker() as worker:
        assert started.wait(MORE)
        app.cancel_chain(chain)
        eventually(lambda: one(app).zombies == 1)
        assert one(app).busy == 1
        worker.events.watch()
        worker.events.wait("signed", count=3)
        zombies = [record for record in caplog.records if getattr(record, "event", "") == "zombie"]
        assert [record.job_id for record in zombies] == [chain.id]  # type: ignore[attr-defined]
        go_on.set()
        eventually(lambda: (one(app).zombies, one(app).busy) == (0, 0))


def test_workers_of_other_processes_are_seen(target: str) -> None:
    if "memory" in target:
        pytest.skip("a database in memory has one process")
    with Queuert(target) as app, Queuert(target) as other:
        app.migrate()
        app.job("a")(lambda job: None)
        with app.worker(name="one"), app.worker(name="two"):
            assert [worker.name for worker in other.workers()] == ["one", "two"]


# What they did


def results(completed: int, failed: int = 0) -> list[Outcome]:
    return [Outcome(committed=True)] * completed + [Outcome(record={"outcome": "failed"})] * failed


def rows(rates: Rates, now: float) -> dict[int, tuple[int, int]]:
    found = rates.rows(now)
    rates.written(found)
    return {row["part"]: (row["completed"], row["failed"]) for row in found}


def test_rates_are_told_in_absolute_numbers_for_the_minute_and_for_parts_of_the_hour() -> None:
    rates = Rates(0.0)
    for outcome in results(3, 1):
        rates.count("a", outcome)
    rates.count("a", Outcome(record={"outcome": "rescheduled"}))
    assert rates.rows(5.0) == rates.rows(5.0)  # as long as it was not written
    assert rows(rates, 5.0) == {1: (3, 1), 0: (3, 1)}
    assert rows(rates, 10.0) == {0: (3, 1)}
    for outcome in results(2):
        rates.count("a", outcome)
    assert rows(rates, 50.0) == {1: (5, 1), 0: (5, 1)}
    assert rows(rates, 70.0) == {0: (2, 0)}
    assert rows(rates, 120.0) == {0: (0, 0)}
    assert rows(rates, 125.0) == {}
    rates.count("a", results(1)[0])
    assert rows(rates, PART + 1) == {2: (1, 0), 0: (1, 0)}

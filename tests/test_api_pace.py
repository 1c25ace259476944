"""What there is to do and how fast it is done: ready, scheduled and backing off, rates, the time that the backlog takes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.waiting import eventually

from queuert import Backoff, NewChain, Queuert, RunningJob
from queuert.app import context_of
from queuert.worker import leases
from queuert.worker.claimer import LONGEST_HINT, Claimer

MORE = 20.0


def define(app: Queuert) -> None:
    @app.job("good")
    def good(job: RunningJob[Any]) -> None: ...

    @app.job("bad", backoff=Backoff(initial=1000, jitter=0))
    def bad(job: RunningJob[Any]) -> None:
        raise ZeroDivisionError


def older(app: Queuert, by: float) -> None:
    context = context_of(app)
    context.database.run(lambda session: context.repository.make_older(session, by))


def test_ready_scheduled_and_backing_off_are_told_apart(app: Queuert) -> None:
    define(app)
    app.start_chain("bad")
    app.drain()
    app.start_chains([NewChain("good"), NewChain("good", priority=5), NewChain("good", after=60), NewChain("bad", after=60)])
    stats = app.stats()
    assert (stats.ready, stats.scheduled, stats.retrying) == ({"good": 2}, {"good": 1, "bad": 1}, {"bad": 1})
    assert set(stats.oldest_ready) == {"good"}
    assert stats.oldest_ready_seconds == stats.oldest_ready["good"]
    assert app.stats(types=["bad"]).ready == {}


def test_counts_of_what_waits_stop_at_the_limit_and_say_so(app: Queuert) -> None:
    define(app)
    app.start_chains([NewChain("good") for _ in range(5)] + [NewChain("bad", after=60) for _ in range(2)])
    stats = app.stats(count_limit=3)
    assert stats.ready["good"] == 3
    assert "good" in stats.capped_waiting


def test_what_is_paused_is_still_ready(app: Queuert) -> None:
    define(app)
    app.start_chain("good")
    app.pause()
    assert app.stats().ready == {"good": 1}
    assert app.stats().oldest_ready_seconds is not None


def test_rates_are_told_by_workers_and_outlast_them(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SIGN_EVERY", 0.05)
    define(app)
    app.start_chains([NewChain("good") for _ in range(3)] + [NewChain("bad")])
    with app.worker():
        eventually(lambda: app.stats().rates["good"].minute.completed == 3)
        eventually(lambda: app.stats().rates["bad"].minute.failed == 1)
    rates = app.stats().rates
    assert (rates["good"].minute.failed, rates["good"].hour.completed, rates["bad"].hour.completed) == (0, 3, 0)
    assert rates["bad"].hour.failed == 1
    older(app, 61)
    assert (app.stats().rates["good"].minute.completed, app.stats().rates["good"].hour.completed) == (0, 3)
    older(app, 3600)
    assert app.stats().rates["good"].hour.completed == 0


def test_the_time_that_the_backlog_takes_follows_from_the_last_minute(app: Queuert) -> None:
    define(app)
    assert app.stats().eta_seconds == 0
    app.start_chain("good")
    assert app.stats().eta_seconds is None
    with app.worker():
        eventually(lambda: app.stats().ready == {})
    app.start_chains([NewChain("good"), NewChain("good")])
    assert app.stats().eta_seconds == app.stats().rates["good"].eta_seconds == 120


def test_a_backlog_that_grows_all_the_time_takes_no_time_that_could_be_told(app: Queuert) -> None:
    define(app)
    app.start_chains([NewChain("good"), NewChain("bad")])
    with app.worker(types=["good"]):
        eventually(lambda: app.stats().rates["good"].minute.completed == 1)
    for _ in range(2):
        app.start_chains([NewChain("good") for _ in range(3)])
        assert app.stats().eta_seconds == app.stats().ready["good"] * 60 + 60  # a batch, and the one that is bad
        older(app, 10.5)
    app.start_chain("good")
    stats = app.stats()
    assert (stats.eta_seconds, stats.rates["good"].eta_seconds) == (None, None)
    older(app, 10.5)
    assert app.stats().rates["good"].eta_seconds == 7 * 60


def test_what_was_claimed_ahead_is_told_apart_from_what_runs(app: Queuert) -> None:
    define(app)
    app.start_chains([NewChain("good") for _ in range(5)])
    context = context_of(app)
    sign = {"name": "w", "host": "h", "pid": 1, "version": "1", "concurrency": 2, "busy": 2, "waiting": 3, "zombies": 0}
    sign |= {"stopping": False, "types": ["good"]}
    context.database.run(lambda session: context.repository.renew_and_sign(session, "w", (), sign, ()))
    Claimer(context, "w", None, None).claim(5)
    stats = app.stats()
    assert (stats.by_status["running"], stats.claimed_ahead) == (5, {"good": 3})


def test_a_claim_is_the_first_sign_of_life(app: Queuert) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.job("slow")
    def slow(job: RunningJob[Any]) -> None:
        started.set()
        assert go_on.wait(MORE)

    app.start_chain("slow")
    with app.worker():
        assert started.wait(MORE)
        running = app.stats().oldest_running
        go_on.set()
    assert running is not None
    assert running.heartbeat_at is not None
    assert 0 <= running.heartbeat_seconds < 60
    assert 0 < running.lease_seconds <= 60


def test_stranded_jobs_are_named(app: Queuert) -> None:
    define(app)
    blocker = app.start_chain("good", after=1000)
    waiting = app.start_chain("good", blockers=[blocker])
    assert app.stats().stranded_jobs == []
    app.cancel_chain(blocker)
    assert app.stats().stranded_jobs == [waiting.id]


def test_a_hint_passes_over_a_due_job_of_another_type_for_a_second_at_most(pg_url: str, monkeypatch: Any) -> None:
    """20 types with 100,000 jobs: those of the first are the oldest, and a claim goes on where the one before it stopped."""
    with Queuert(pg_url) as app:
        app.migrate()
        names = [f"t{number:02}" for number in range(20)]
        for name in names:
            app.job(name)(lambda job: None)
        for name in names:
            app.start_chains([NewChain(name) for _ in range(5000)])
        claimer = Claimer(context_of(app), "test", None, None)
        clock = [0.0]
        monkeypatch.setattr("queuert.worker.claimer.time.monotonic", lambda: clock[0])
        assert {held.job.type_name for held in claimer.claim(100)} == {"t00"}
        claimer._worth_keeping = LONGEST_HINT  # as long as a hint is ever kept
        with app.transaction() as tx:
            tx.execute("UPDATE queuert_job SET scheduled_at = now() - interval '1 hour' WHERE type_name = 't19'")
        assert {held.job.type_name for held in claimer.claim(100)} == {"t00"}
        clock[0] = 1.01
        assert {held.job.type_name for held in claimer.claim(100)} == {"t19"}


def test_errors_are_told_with_the_types_that_have_them(app: Queuert) -> None:
    define(app)

    @app.job("worse", max_attempts=1)
    def worse(job: RunningJob[Any]) -> None:
        raise ZeroDivisionError

    app.start_chains([NewChain("bad"), NewChain("bad"), NewChain("worse"), NewChain("good")])
    app.drain()
    assert app.stats().error_types == {"INTERNAL:ZeroDivisionError": ["bad", "worse"]}
    assert app.stats(types=["worse"]).error_types == {"INTERNAL:ZeroDivisionError": ["worse"]}

"""What happened and how things stand: attempts, the timeline, statistics."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.clocks import make_older
from support.handlers import held

from queuert import Continuation, JobNotFoundError, NewChain, Queuert, RunningJob, Status

UNKNOWN = "0190a0b0-0000-7000-8000-000000000009"


def events(app: Queuert, job_id: str) -> list[str]:
    entries = app.timeline(job_id)
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    return [entry.event for entry in entries]


# Attempts and the timeline


def test_attempts_are_the_finished_ones_oldest_first(app: Queuert) -> None:
    @app.job(backoff=lambda used: 0)
    def flaky(job: RunningJob[None]) -> str:
        if job.attempt == 1:
            raise TimeoutError("too slow")
        if job.attempt == 2:
            job.reschedule(after=0, error="not there yet")
        return "done"

    chain = app.start_chain(flaky)
    assert app.attempts(chain.id) == []
    app.drain()
    failed, again, succeeded = app.attempts(chain.id)
    assert [a.outcome for a in (failed, again, succeeded)] == ["failed", "rescheduled", "succeeded"]
    assert [a.attempt for a in (failed, again, succeeded)] == [1, 2, 3]
    assert {a.job_id for a in (failed, again, succeeded)} == {chain.id}
    assert failed.error_code == "TIMEOUT:TimeoutError"
    assert failed.error_detail == "TimeoutError: too slow"
    assert failed.retry_at is not None
    assert (again.error_code, again.error_detail) == (None, "not there yet")
    assert (succeeded.error_code, succeeded.error_detail, succeeded.retry_at) == (None, None, None)
    for attempt in (failed, again, succeeded):
        assert attempt.worker_id is not None
        assert attempt.claimed_at is not None
        assert attempt.started_at is not None
        assert attempt.claimed_at <= attempt.started_at <= attempt.finished_at


def test_a_running_attempt_is_not_among_the_finished_ones(app: Queuert) -> None:
    with held(app) as running:
        assert app.attempts(running.chain.id) == []
        assert events(app, running.chain.id) == ["ENQUEUED", "CLAIMED"]


def test_an_unknown_job_is_an_error(app: Queuert) -> None:
    for read in (app.attempts, app.timeline):
        with pytest.raises(JobNotFoundError) as raised:
            read(UNKNOWN)
        assert raised.value.job_id == UNKNOWN


def test_the_timeline_of_a_success(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None: ...

    chain = app.start_chain(work)
    app.drain()
    assert events(app, chain.id) == ["ENQUEUED", "CLAIMED", "STARTED", "SUCCEEDED"]
    entries = app.timeline(chain.id)
    worker = app.attempts(chain.id)[0].worker_id
    assert [entry.actor for entry in entries] == [None, worker, worker, worker]
    assert all(isinstance(entry.detail, dict) for entry in entries)


def test_the_timeline_of_retries_and_a_failure(app: Queuert) -> None:
    @app.job(max_attempts=2, backoff=lambda used: 0)
    def broken(job: RunningJob[None]) -> None:
        raise ValueError("no good")

    chain = app.start_chain(broken)
    app.drain()
    first = ["CLAIMED", "STARTED", "FAILED", "RETRY_SCHEDULED"]
    assert events(app, chain.id) == ["ENQUEUED", *first, "CLAIMED", "STARTED", "FAILED"]
    failed = [entry for entry in app.timeline(chain.id) if entry.event == "FAILED"]
    assert [entry.detail["attempt"] for entry in failed] == [1, 2]
    assert failed[0].detail["code"] == "INTERNAL:ValueError"
    app.retry_chain(chain.id)
    assert events(app, chain.id)[-1] == "RETRIED"
    app.cancel_chain(chain.id)
    assert events(app, chain.id)[-2:] == ["RETRIED", "CANCELLED"]


def test_the_timeline_of_blocking_and_continuing(app: Queuert) -> None:
    app.declare("part")

    @app.job
    def join(job: RunningJob[None]) -> Continuation:
        return job.continue_with("part")

    part = app.start_chain("part")
    chain = app.start_chain(join, blockers=[part])
    assert events(app, chain.id) == ["ENQUEUED", "BLOCKED"]
    with app.complete_chain(part.id) as tail:
        tail.finish()
    app.drain()
    assert events(app, chain.id) == [
        "ENQUEUED",
        "BLOCKED",
        "UNBLOCKED",
        "CLAIMED",
        "STARTED",
        "SUCCEEDED",
        "CONTINUED",
    ]
    found = app.get_chain(chain.id)
    assert found is not None
    assert app.timeline(chain.id)[-1].detail["to"] == found.tail_id
    assert events(app, found.tail_id) == ["ENQUEUED"]


def test_the_timeline_of_a_trigger_and_a_completion_from_outside(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work", after=3600)
    app.trigger_job(chain.id)
    with app.complete_chain(chain.id) as tail:
        tail.finish()
    assert events(app, chain.id) == ["ENQUEUED", "TRIGGERED", "SUCCEEDED"]
    assert app.timeline(chain.id)[-1].actor is None


def test_the_timeline_is_in_order_where_the_clock_cannot_tell(app: Queuert) -> None:
    app.declare("part")

    @app.job
    def join(job: RunningJob[None]) -> Continuation:
        return job.continue_with("part")

    triggered, part = app.start_chains([NewChain("part", after=3600), NewChain("part")])
    joined = app.start_chain(join, blockers=[part])
    app.trigger_job(triggered.id)
    for chain in (triggered, part):
        with app.complete_chain(chain.id) as tail:
            tail.finish()
    app.drain()
    with app.transaction() as tx:  # everything happened at once
        for table, columns in {
            "job": ("scheduled_at", "last_attempt_at", "completed_at"),
            "job_attempt": ("claimed_at", "started_at", "finished_at"),
            "job_event": ("at",),
        }.items():
            moment = "(SELECT min(created_at) FROM queuert_job)"
            tx.execute(f"UPDATE queuert_{table} SET {', '.join(f'{column} = {moment}' for column in columns)}")
        tx.execute(f"UPDATE queuert_job SET created_at = {moment}")
    assert events(app, triggered.id) == ["ENQUEUED", "TRIGGERED", "SUCCEEDED"]
    expected = ["ENQUEUED", "BLOCKED", "UNBLOCKED", "CLAIMED", "STARTED", "SUCCEEDED", "CONTINUED"]
    assert events(app, joined.id) == expected


def test_the_timeline_says_who_did_it(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work", after=3600)
    app.trigger_job(chain.id, actor="alice")
    app.cancel_chain(chain.id, actor="bob")
    app.retry_chain(chain.id, actor="carol")
    acts = [(entry.event, entry.actor) for entry in app.timeline(chain.id)][1:]
    assert acts == [("TRIGGERED", "alice"), ("CANCELLED", "bob"), ("RETRIED", "carol")]


@pytest.mark.parametrize(("actor", "error"), [("", ValueError), ("x" * 201, ValueError), ("a\0b", ValueError), (7, TypeError)])
def test_an_actor_is_a_short_name(app: Queuert, actor: Any, error: type[Exception]) -> None:
    app.declare("work")
    chain = app.start_chain("work", after=3600)
    for act in (app.trigger_job, app.cancel_chain, app.retry_chain, app.delete_chain):
        with pytest.raises(error):
            act(chain.id, actor=actor)
    assert [entry.event for entry in app.timeline(chain.id)] == ["ENQUEUED"]


def test_with_only_failures_kept_the_timeline_takes_the_success_from_the_job(target: str) -> None:
    with Queuert(target, history="failures") as app:
        app.migrate()

        @app.job(backoff=lambda used: 0)
        def flaky(job: RunningJob[None]) -> None:
            if job.attempt == 1:
                raise ValueError
            if job.attempt == 2:
                job.reschedule(after=0)

        chain = app.start_chain(flaky)
        assert app.drain() == 3
        assert [a.outcome for a in app.attempts(chain.id)] == ["failed", "rescheduled"]
        found = events(app, chain.id)
        assert found[0] == "ENQUEUED"
        assert found[-1] == "SUCCEEDED"
        assert found.count("SUCCEEDED") == 1
        job = app.get_job(chain.id)
        assert job is not None
        assert app.timeline(chain.id)[-1].at == job.completed_at


def test_long_errors_are_cut_and_the_traceback_is_kept_for_the_newest(app: Queuert) -> None:
    @app.job(max_attempts=2, backoff=lambda used: 0)
    def broken(job: RunningJob[None]) -> None:
        raise ValueError(f"attempt {job.attempt} " + "x" * 30_000)

    chain = app.start_chain(broken)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert job.last_attempt_error is not None
    assert 1_000 < len(job.last_attempt_error) <= 10_000
    details = [attempt.error_detail or "" for attempt in app.attempts(chain.id)]
    assert [len(detail) for detail in details] == [500, 500]
    assert details[0].startswith("ValueError: attempt 1")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError("slow"), "TIMEOUT:TimeoutError"),
        (MemoryError(), "RESOURCE:OUT_OF_MEMORY"),
        (AssertionError(), "INTERNAL:ASSERTION_FAILED"),
        (KeyError("x"), "INTERNAL:KeyError"),
    ],
)
def test_exceptions_have_codes(error: Exception, code: str) -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.migrate()

        @app.job(max_attempts=1)
        def broken(job: RunningJob[None]) -> None:
            raise error

        app.start_chain(broken)
        app.drain()
        assert app.stats().error_codes == [(code, 1)]


def test_an_exception_may_bring_its_own_code(app: Queuert) -> None:
    class Declined(Exception):
        error_code = "PAYMENT:DECLINED"

    @app.job(max_attempts=1)
    def broken(job: RunningJob[None]) -> None:
        raise Declined("no money")

    chain = app.start_chain(broken)
    app.drain()
    assert app.attempts(chain.id)[0].error_code == "PAYMENT:DECLINED"


# Statistics


def test_statistics_of_an_empty_database(app: Queuert) -> None:
    stats = app.stats()
    assert stats.by_status == {status: 0 for status in Status}  # noqa: C420 - each state is named
    assert stats.by_type == {}
    assert stats.oldest_running is None
    assert stats.longest_running == []
    assert stats.oldest_ready_seconds is None
    assert (stats.attempts, stats.attempts_by_type, stats.error_codes) == ({}, {}, [])
    assert (stats.stranded, stats.capped) == (0, set())


def test_jobs_are_counted_by_status_and_type(app: Queuert) -> None:
    for name in ("mail", "report"):
        app.declare(name)
    mails = app.start_chains([NewChain("mail", n) for n in range(4)])
    report = app.start_chain("report")
    app.start_chain("report", blockers=[report])
    app.cancel_chain(mails[0].id)
    with app.complete_chain(mails[1].id) as tail:
        tail.continue_with("report")
    stats = app.stats()
    assert stats.by_type == {
        "mail": {"pending": 2, "cancelled": 1, "completed": 1},
        "report": {"pending": 2, "blocked": 1},
    }
    assert stats.by_status == {
        "pending": 4,
        "blocked": 1,
        "cancelled": 1,
        "completed": 1,
        "running": 0,
        "failed": 0,
    }
    assert sum(stats.by_status.values()) == 7, "it counts jobs, not chains"
    only = app.stats(types=["report"])
    assert only.by_type == {"report": {"pending": 2, "blocked": 1}}
    assert only.by_status["pending"] == 2
    assert app.stats(types=[]).by_type == {}
    assert app.stats(types=["nobody"]).by_type == {}


def test_counts_stop_at_a_limit_and_say_so(app: Queuert) -> None:
    for name in ("a", "b"):
        app.declare(name)
    app.start_chains([NewChain("ab"[n % 2], n) for n in range(10)])
    app.cancel_chain(app.start_chain("a").id)
    exact = app.stats(count_limit=10)
    assert exact.by_status["pending"] == 10
    assert exact.capped == set()
    capped = app.stats(count_limit=3)
    assert capped.by_status["pending"] == 3
    assert capped.by_status["cancelled"] == 1
    assert capped.by_type["a"]["pending"] == 3
    assert capped.attempts == {0: 3}
    assert capped.attempts_by_type == {"a": {0: 3}, "b": {0: 3}}
    assert capped.capped == {"pending"}
    everything = app.stats(count_limit=None)
    assert everything.by_status["pending"] == 10
    assert everything.attempts == {0: 10}
    assert everything.capped == set()
    for bad, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("10", TypeError)):
        with pytest.raises(error):
            app.stats(count_limit=bad)  # type: ignore[arg-type]  # wrong on purpose


def test_the_oldest_running_job_is_shown_with_its_worker(app: Queuert) -> None:
    with held(app, "first") as first, held(app, "second") as second:
        make_older(app, second.chain.id, timedelta(minutes=5))
        stats = app.stats()
        oldest = stats.oldest_running
        assert oldest is not None
        job = app.get_job(second.chain.id)
        assert job is not None
        assert (oldest.job_id, oldest.type_name, oldest.worker_id) == (second.chain.id, "second", job.leased_by)
        assert 299 <= oldest.seconds < 400
        assert oldest.heartbeat_at == (job.heartbeat_at or job.last_attempt_at)  # the claim is the first sign of life
        assert [running.job_id for running in stats.longest_running] == [second.chain.id, first.chain.id]
        only = app.stats(types=["first"]).oldest_running
        assert only is not None
        assert only.job_id == first.chain.id


def test_the_longest_wait_of_a_ready_job_is_told(app: Queuert) -> None:
    app.declare("work")
    app.start_chain("work", after=3600)
    assert app.stats().oldest_ready_seconds is None, "it is not ready yet"
    chain = app.start_chain("work", priority=-5)
    app.start_chain("work", priority=5)
    make_older(app, chain.id, timedelta(minutes=2))
    waited = app.stats().oldest_ready_seconds
    assert waited is not None
    assert 119 <= waited < 200


def test_the_distribution_of_attempts_shows_what_is_tried_over_and_over(app: Queuert) -> None:
    @app.job(max_attempts=3, backoff=lambda used: 0)
    def broken(job: RunningJob[None]) -> None:
        raise ValueError

    @app.job(backoff=lambda used: 3600)
    def slow(job: RunningJob[None]) -> None:
        raise TimeoutError

    app.declare("idle")
    app.start_chains([*[NewChain(broken)] * 2, NewChain(slow), *[NewChain("idle")] * 4])
    app.drain()
    stats = app.stats()
    assert stats.attempts == {0: 4, 1: 1, 3: 2}
    assert stats.attempts_by_type == {"broken": {3: 2}, "idle": {0: 4}, "slow": {1: 1}}


def test_error_codes_count_the_jobs_that_carry_one(app: Queuert) -> None:
    @app.job
    def pay(job: RunningJob[str]) -> None:
        job.fail(job.input)

    app.start_chains([NewChain(pay, code) for code in ("A:B", "C:D", "C:D", "C:D", "E:F", "E:F")])
    app.drain()
    assert app.stats().error_codes == [("C:D", 3), ("E:F", 2), ("A:B", 1)]
    assert app.stats(types=["other"]).error_codes == []


def test_a_success_takes_its_error_out_of_the_statistics(app: Queuert) -> None:
    @app.job(backoff=lambda used: 0)
    def flaky(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            raise ValueError

    app.start_chain(flaky)
    app.drain()
    assert app.stats().error_codes == []


def test_stranded_jobs_are_counted_once_each(app: Queuert) -> None:
    app.declare("work")
    bad = [app.cancel_chain(app.start_chain("work").id) for _ in range(2)]
    good = app.start_chain("work")
    app.start_chain("work", blockers=[*bad, good])
    app.start_chain("work", blockers=[good])
    assert app.stats().stranded == 1
    stranded: Any = app.stats(types=["other"])
    assert stranded.stranded == 0


def test_the_twenty_longest_running_jobs_are_shown(app: Queuert) -> None:
    app.declare("work")
    chains = app.start_chains([NewChain("work", n) for n in range(25)])
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET status = 'running', last_attempt_at = created_at, leased_by = 'somebody'")
    make_older(app, chains[7].id, timedelta(minutes=1))
    stats = app.stats()
    assert len(stats.longest_running) == 20
    assert stats.longest_running[0].job_id == chains[7].id
    assert stats.longest_running[0] == stats.oldest_running

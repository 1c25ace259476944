"""When a job may start: `at`, `after`, trigger, reschedule, and the floor of now."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.clocks import database_now
from support.handlers import held

from queuert import (
    Continuation,
    Job,
    JobNotFoundError,
    JobNotTriggerableError,
    NewChain,
    Queuert,
    RunningJob,
    Status,
)

UNKNOWN = "0190a0b0-0000-7000-8000-000000000009"
SOON = timedelta(seconds=1)


def get(app: Queuert, job_id: str) -> Job:
    job = app.get_job(job_id)
    assert job is not None
    return job


def test_a_job_starts_at_its_time(app: Queuert) -> None:
    app.declare("work")
    at = datetime.now(timezone.utc) + timedelta(hours=2)
    job = get(app, app.start_chain("work", at=at).id)
    assert abs(job.scheduled_at - at) < timedelta(milliseconds=1)
    elsewhere = at.astimezone(timezone(timedelta(hours=-5, minutes=-30)))
    assert get(app, app.start_chain("work", at=elsewhere).id).scheduled_at == job.scheduled_at


@pytest.mark.parametrize("after", [7200, 7200.0, timedelta(hours=2)])
def test_a_job_starts_after_a_time(app: Queuert, after: Any) -> None:
    app.declare("work")
    job = get(app, app.start_chain("work", after=after).id)
    assert abs(job.scheduled_at - job.created_at - timedelta(hours=2)) < timedelta(milliseconds=5)


def test_a_time_in_the_past_is_raised_to_now(app: Queuert) -> None:
    app.declare("work")
    for past in (datetime(1970, 1, 1, tzinfo=timezone.utc), datetime.now(timezone.utc) - timedelta(seconds=5)):
        job = get(app, app.start_chain("work", at=past).id)
        assert job.scheduled_at == job.created_at
    assert get(app, app.start_chain("work", after=0).id).scheduled_at <= database_now(app)


def test_a_future_job_is_not_run_until_it_is_due(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None: ...

    later = app.start_chain(work, after=3600)
    app.start_chain(work)
    assert app.drain() == 1
    assert get(app, later.id).status == "pending"


def test_due_jobs_run_by_priority_then_by_time(app: Queuert) -> None:
    ran: list[int] = []

    @app.job
    def work(job: RunningJob[int]) -> None:
        ran.append(job.input)

    app.start_chains([NewChain(work, n, priority=p) for n, p in enumerate([0, 5, -5, 5, 100, 0, -100])])
    app.drain()
    assert ran == [4, 1, 3, 0, 5, 2, 6]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"at": datetime(2030, 1, 1)}, ValueError),
        ({"at": "2030-01-01"}, TypeError),
        ({"at": 5}, TypeError),
        ({"after": -1}, ValueError),
        ({"after": -0.001}, ValueError),
        ({"after": timedelta(seconds=-1)}, ValueError),
        ({"after": float("nan")}, ValueError),
        ({"after": float("inf")}, ValueError),
        ({"after": "1"}, TypeError),
        ({"after": True}, TypeError),
        ({"after": 10**15}, ValueError),
        ({"after": 1, "at": datetime(2030, 1, 1, tzinfo=timezone.utc)}, ValueError),
        ({"priority": 101}, ValueError),
        ({"priority": -101}, ValueError),
        ({"priority": 1.5}, TypeError),
        ({"priority": "1"}, TypeError),
        ({"priority": True}, TypeError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": -1}, ValueError),
        ({"max_attempts": 2.0}, TypeError),
        ({"max_attempts": True}, TypeError),
    ],
)
def test_bad_options_are_refused_everywhere(options: dict[str, Any], error: type[Exception]) -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.migrate()
        refusals = []

        @app.job(max_attempts=1)
        def work(job: RunningJob[None]) -> Continuation | None:
            if job.chain_index or not options:
                return None
            try:
                return job.continue_with("work", **options)
            except error as raised:
                refusals.append(raised)
                return None

        with pytest.raises(error):
            app.start_chain("work", **options)
        with pytest.raises(error):
            app.start_chains([NewChain("work"), NewChain("work", **options)])
        assert app.list_chains().items == []
        chain = app.start_chain(work)
        app.drain()
        assert len(refusals) == 1
        again = app.start_chain(work)
        with app.complete_chain(again.id) as tail:
            with pytest.raises(error):
                tail.continue_with(work, **options)
            assert tail.status == "pending"
        assert get(app, chain.id).status == "completed"


def test_the_extremes_of_times_are_kept(app: Queuert) -> None:
    app.declare("work")
    far = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
    assert get(app, app.start_chain("work", at=far).id).scheduled_at == far
    for priority in (-100, 100):
        assert get(app, app.start_chain("work", priority=priority).id).priority == priority
    assert get(app, app.start_chain("work", max_attempts=2**31 - 1).id).max_attempts == 2**31 - 1


def test_a_time_outside_the_calendar_in_utc_is_a_clear_error(app: Queuert) -> None:
    app.declare("work")
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    for at in (datetime.min.replace(tzinfo=east), datetime.max.replace(tzinfo=west)):
        with pytest.raises(ValueError, match="at"):
            app.start_chain("work", at=at)


def test_triggering_makes_a_scheduled_job_due(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> str:
        return "done"

    chain = app.start_chain(work, after=3600)
    job = app.trigger_job(chain.id)
    assert isinstance(job, Job)
    assert job.status == "pending"
    assert job.scheduled_at <= database_now(app)
    assert app.drain() == 1
    assert "TRIGGERED" in [entry.event for entry in app.timeline(chain.id)]


def test_triggering_a_due_job_leaves_its_place_in_the_queue(app: Queuert) -> None:
    app.declare("work")
    before = get(app, app.start_chain("work").id)
    assert app.trigger_job(before.id).scheduled_at == before.scheduled_at


def test_many_are_triggered_in_order_all_or_none(app: Queuert) -> None:
    app.declare("work")
    chains = app.start_chains([NewChain("work", n, after=3600) for n in range(5)])
    ids = [chain.id for chain in reversed(chains)]
    blocked = app.start_chain("work", blockers=[chains[0]])
    for bad, error in ((UNKNOWN, JobNotFoundError), (blocked.id, JobNotTriggerableError)):
        with pytest.raises(error):
            app.trigger_jobs([*ids, bad])
        assert all(job.scheduled_at > database_now(app) for job in app.list_jobs(job_ids=ids))
    assert [job.id for job in app.trigger_jobs(ids)] == ids
    assert all(job.scheduled_at <= database_now(app) for job in app.list_jobs(job_ids=ids))
    assert app.trigger_jobs([]) == []


def test_only_a_pending_job_can_be_triggered(app: Queuert) -> None:
    app.declare("work")
    blocker = app.start_chain("work")
    blocked = app.start_chain("work", blockers=[blocker])
    cancelled = app.cancel_chain(app.start_chain("work").id)
    with app.complete_chain(blocker.id) as tail:
        with pytest.raises(JobNotTriggerableError) as raised:
            app.trigger_job(blocked.id, conn=tail.conn)
        assert (raised.value.job_id, raised.value.status) == (blocked.id, "blocked")
        tail.finish()
    for chain, status in ((blocker, "completed"), (cancelled, "cancelled")):
        with pytest.raises(JobNotTriggerableError, match=status):
            app.trigger_job(chain.id)
    with held(app) as running, pytest.raises(JobNotTriggerableError, match="running"):
        app.trigger_job(running.chain.id)


def test_a_continuation_can_be_scheduled_and_triggered(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second", after=3600)

    @app.job(entry=False)
    def second(job: RunningJob[None]) -> str:
        return "end"

    chain = app.start_chain(first)
    assert app.drain() == 1
    found = app.get_chain(chain.id)
    assert found is not None
    assert app.drain() == 0
    app.trigger_job(found.tail_id)
    assert app.drain() == 1
    assert app.wait_for(chain, timeout=5).output == "end"


@pytest.mark.parametrize("how", ["after", "at", "at in the past"])
def test_a_job_reschedules_itself_for_exactly_then(app: Queuert, how: str) -> None:
    at = datetime.now(timezone.utc) + timedelta(hours=1)

    @app.job(max_attempts=1)
    def poll(job: RunningJob[None]) -> None:
        if how == "after":
            job.reschedule(after=timedelta(hours=1), error="not there yet")
        job.reschedule(at=at if how == "at" else datetime(2001, 1, 1, tzinfo=timezone.utc), error="not there yet")

    chain = app.start_chain(poll)
    if how == "at in the past":
        app.drain(timeout=0.2)
    else:
        assert app.drain() == 1
    job = get(app, chain.id)
    assert (job.status, job.error_code, job.last_attempt_error) == (Status.PENDING, None, "not there yet")
    assert job.attempts_used == 0, "it does not use up max_attempts"
    first, *_ = app.attempts(chain.id)
    assert (first.outcome, first.error_code, first.error_detail) == ("rescheduled", None, "not there yet")
    if how == "at in the past":
        assert job.attempt > 1, "due at once, so run again"
        assert first.retry_at is not None
        assert first.retry_at >= first.finished_at
    else:
        assert abs(job.scheduled_at - at) < timedelta(seconds=30)
        assert first.retry_at == job.scheduled_at


def test_rescheduling_takes_exactly_one_time(app: Queuert) -> None:
    errors: list[Exception] = []

    @app.job
    def work(job: RunningJob[None]) -> None:
        calls: list[dict[str, Any]] = [
            {},
            {"after": 1, "at": datetime.now(timezone.utc)},
            {"after": -1},
            {"at": datetime(2030, 1, 1)},
            {"after": 1, "error": 5},
        ]
        for options in calls:
            try:
                job.reschedule(**options)
            except (ValueError, TypeError) as error:
                errors.append(error)

    chain = app.start_chain(work)
    app.drain()
    assert len(errors) == 5
    assert get(app, chain.id).status == "completed", "a refused call decides nothing"


def test_a_decision_holds_even_if_its_exception_is_caught(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[str]) -> str:
        try:
            if job.input == "fail":
                job.fail("NO:GOOD", "for good")
            job.reschedule(after=3600, error="later")
        except Exception:
            return "as if nothing had happened"

    failed, later = app.start_chain(work, "fail"), app.start_chain(work, "later")
    app.drain()
    assert get(app, failed.id).status == "failed"
    assert get(app, failed.id).error_code == "NO:GOOD"
    job = get(app, later.id)
    assert (job.status, job.output) == (Status.PENDING, None)


def test_success_clears_the_last_error_and_the_attempts_keep_it(app: Queuert) -> None:
    @app.job(backoff=lambda used: 0)
    def work(job: RunningJob[None]) -> None:
        if job.attempt < 3:
            raise ConnectionError("gone")

    chain = app.start_chain(work)
    assert app.drain() == 3
    job = get(app, chain.id)
    assert (job.status, job.last_attempt_error, job.error_code) == (Status.COMPLETED, None, None)
    assert [attempt.error_code for attempt in app.attempts(chain.id)] == [
        "DEPENDENCY:ConnectionError",
        "DEPENDENCY:ConnectionError",
        None,
    ]

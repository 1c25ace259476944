"""Leases: renewing, losing, giving back, ending attempts without completing, and reaping."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from support.store import Store

from queuert.model import Job, Status

pytestmark = pytest.mark.conformance


def unlike(job: Job, difference: str) -> Job:
    """The job as somebody would name it who does not hold its lease."""
    if difference == "token":
        return replace(job, lease_token=(job.lease_token or 0) + 1)
    return replace(job, leased_by="somebody else")


# Renewing


def test_renewing_extends_many_leases_at_once(store: Store) -> None:
    store.start_many(5)
    jobs = store.claim(lease=10)
    assert store.renew(*jobs[:4], lease=500) == {job.id for job in jobs[:4]}
    for job in jobs[:4]:
        now = store.job(job)
        assert now.heartbeat_at is not None
        assert now.leased_until == now.heartbeat_at + timedelta(seconds=500)
    assert store.job(jobs[4]) == jobs[4]


def test_each_renewal_has_its_own_length(store: Store) -> None:
    store.start_many(2)
    jobs = store.claim()
    items = [{"id": job.id, "token": job.lease_token, "lease": n} for job, n in zip(jobs, (100, 900), strict=True)]
    store.write(lambda session: store.repository.renew_leases(session, "w1", items))
    first, second = (store.job(job) for job in jobs)
    assert second.leased_until - first.leased_until == timedelta(seconds=800)


@pytest.mark.parametrize("difference", ["token", "worker"])
def test_a_lost_lease_is_not_renewed(store: Store, difference: str) -> None:
    store.start_many(2)
    lost, kept = store.claim()
    before = store.job(lost)
    thief = unlike(lost, difference)
    items = [{"id": job.id, "token": job.lease_token, "lease": 99} for job in (thief, kept)]
    worker = thief.leased_by or ""
    renewed = store.write(lambda session: store.repository.renew_leases(session, worker, items))
    assert renewed == ({kept.id} if difference == "token" else set())
    assert store.job(lost) == before


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed", "released", "deleted"])
def test_an_ended_lease_is_not_renewed(store: Store, end: str) -> None:
    store.start()
    (job,) = store.claim()
    if end == "completed":
        store.complete(job)
    elif end == "cancelled":
        store.chains.cancel([job.id], None)
    elif end == "failed":
        store.fail(job)
    elif end == "released":
        store.release(job)
    else:
        store.chains.delete([job.id], None)
    before = store.tables()
    assert store.renew(job) == set()
    assert store.tables() == before


def test_an_expired_lease_can_still_be_renewed_until_it_is_reaped(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.expire(job)
    assert store.renew(job) == {job.id}
    assert store.reap() == set()
    store.expire(job)
    assert store.reap() == {job.id}
    assert store.renew(job) == set()


def test_lease_states_tell_who_holds_a_job(store: Store) -> None:
    store.start_many(3)
    held, done, gone = store.claim(worker="w7", token=99)
    store.complete(done)
    store.chains.delete([gone.id], None)
    ids = [held.id, done.id, gone.id]
    states = store.read(lambda session: store.repository.lease_states(session, ids))
    assert states.keys() == {held.id, done.id}
    assert states[held.id][1:] == (Status.RUNNING, "w7", 99)
    assert states[done.id][1:3] == (Status.COMPLETED, None)


# Giving back


def test_a_released_claim_is_as_if_it_had_never_been(store: Store) -> None:
    chain = store.start()
    before = store.job(chain)
    (job,) = store.claim()
    assert store.release(job) == {job.id}
    assert store.job(chain) == before
    assert store.attempts(chain) == []
    (again,) = store.claim()
    assert again.attempt == 1


def test_a_release_takes_back_only_the_last_attempt(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.end(job, after=0)
    (job,) = store.claim()
    store.release(job)
    now = store.job(job)
    assert (now.status, now.attempt, now.error_code) == (Status.PENDING, 1, "TEST:FAILED")
    assert [attempt.attempt for attempt in store.attempts(job)] == [1]


@pytest.mark.parametrize("difference", ["token", "worker"])
def test_only_the_holder_can_release(store: Store, difference: str) -> None:
    store.start()
    (job,) = store.claim()
    before = store.tables()
    assert store.release(unlike(job, difference)) == set()
    assert store.tables() == before


# Ending attempts


def test_a_failed_attempt_goes_back_to_pending_after_a_wait(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim(worker="w3")
    assert store.end(job, after=120, waited=0.0) == {job.id}
    now = store.job(chain)
    assert (now.status, now.attempt, now.attempts_used, now.suspect) == (Status.PENDING, 1, 1, False)
    assert (now.error_code, now.last_attempt_error, now.completed_at) == ("TEST:FAILED", "Traceback ...", None)
    assert (now.leased_by, now.leased_until, now.lease_token) == (None, None, None)
    (attempt,) = store.attempts(chain)
    assert (attempt.attempt, attempt.worker_id, attempt.outcome) == (1, "w3", "failed")
    assert (attempt.error_code, attempt.error_detail) == ("TEST:FAILED", "it failed")
    assert attempt.claimed_at == attempt.started_at == job.last_attempt_at
    assert attempt.retry_at == now.scheduled_at
    # On SQLite two statements may read the clock a moment apart.
    assert attempt.retry_at - attempt.finished_at == pytest.approx(timedelta(seconds=120), abs=timedelta(seconds=1))


def test_an_attempt_never_starts_after_it_ended(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.end(job, waited=5000.0)
    (attempt,) = store.attempts(job)
    assert attempt.claimed_at <= attempt.started_at <= attempt.finished_at


def test_an_attempt_can_be_rescheduled_to_a_time_and_forgiven(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    at = "2150-06-01T12:00:00.654321Z"
    store.end(job, outcome="rescheduled", at=at, forgive=1, code=None, detail=None, error=None)
    now = store.job(job)
    assert now.scheduled_at == datetime(2150, 6, 1, 12, 0, 0, 654321, tzinfo=timezone.utc)
    assert (now.attempt, now.attempts_forgiven, now.attempts_used, now.error_code) == (1, 1, 0, None)
    (attempt,) = store.attempts(job)
    assert (attempt.outcome, attempt.error_code, attempt.retry_at) == ("rescheduled", None, now.scheduled_at)


def test_a_time_in_the_past_reschedules_to_now(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.end(job, at="2001-01-01T00:00:00.000000Z")
    assert store.job(job).scheduled_at >= job.last_attempt_at
    assert [j.id for j in store.claim()] == [job.id]


def test_a_final_failure_closes_the_chain(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim()
    scheduled = job.scheduled_at
    assert store.fail(job) == {job.id}
    now = store.job(chain)
    assert (now.status, now.scheduled_at, now.leased_by) == (Status.FAILED, scheduled, None)
    assert now.completed_at is not None
    assert now.completed_by is None
    (attempt,) = store.attempts(chain)
    assert (attempt.outcome, attempt.retry_at) == ("failed", None)
    assert store.chain(chain).status is Status.FAILED
    assert store.claim() == []


@pytest.mark.parametrize("difference", ["token", "worker"])
def test_who_lost_the_lease_ends_nothing(store: Store, difference: str) -> None:
    store.start()
    (job,) = store.claim()
    before = store.tables()
    for status in ("pending", "failed"):
        assert store.end(unlike(job, difference), status=status) == set()
    assert store.tables() == before


def test_a_lost_lease_in_a_batch_of_ends_affects_only_its_own_row(store: Store) -> None:
    store.start_many(3)
    first, second, third = store.claim()
    common = {"worker": "w1", "outcome": "failed", "code": "X:Y", "detail": None, "error": None, "at": None}
    common |= {"after": 5, "forgive": 0, "waited": None}
    items = [
        {**common, "id": first.id, "token": first.lease_token, "status": "pending"},
        {**common, "id": second.id, "token": 12345, "status": "failed"},
        {**common, "id": third.id, "token": third.lease_token, "status": "failed"},
    ]
    assert store.write(lambda session: store.chains.end_attempts(session, items)) == {first.id, third.id}
    assert [store.job(j).status for j in (first, second, third)] == [Status.PENDING, Status.RUNNING, Status.FAILED]
    assert store.job(second) == second
    assert store.attempts(second) == []


# Reaping


def test_only_expired_leases_are_reaped_oldest_first(store: Store) -> None:
    store.start_many(5)
    jobs = store.claim()
    for age, job in zip((30, 50, 10), jobs, strict=False):
        at = (datetime.now(timezone.utc) - timedelta(seconds=age)).isoformat(timespec="microseconds")
        store.sql("UPDATE {job} SET leased_until = :at WHERE id = :id", at=at.replace("+00:00", "Z"), id=job.id)
    found = store.expired()
    assert {job.id for job in found} == {job.id for job in jobs[:3]}
    assert {job.id for job in store.expired(limit=2)} == {jobs[1].id, jobs[0].id}
    assert all(job.leased_by == "w1" and job.lease_token for job in found)


def test_the_moment_that_counts_as_expired_is_the_callers(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.expire(job)
    early = datetime(1999, 1, 1, tzinfo=timezone.utc)
    assert store.write(lambda session: store.repository.lock_expired(session, early, 10)) == []


def test_a_reaped_job_counts_the_lost_attempt_and_can_be_claimed_again(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim(worker="dead")
    store.expire(job)
    assert store.reap() == {job.id}
    (attempt,) = store.attempts(chain)
    assert (attempt.worker_id, attempt.outcome, attempt.error_code) == ("dead", "lost", "WORKER:LOST")
    assert attempt.started_at is None
    now = store.job(chain)
    assert (now.status, now.attempts_used, now.suspect) == (Status.PENDING, 1, True)
    (again,) = store.claim(worker="alive", suspect=True)
    assert store.complete(job).ids == set()
    assert store.complete(again).ids == {job.id}
    assert store.job(chain).completed_by == "alive"


def test_a_reaped_job_without_attempts_left_fails(store: Store) -> None:
    chain = store.start(max_attempts=2)
    for lost in (1, 2):
        (job,) = store.claim(suspect=lost == 2)
        store.expire(job)
        store.reap()
    now = store.job(chain)
    assert (now.status, now.error_code, now.suspect, now.attempt) == (Status.FAILED, "WORKER:LOST", False, 2)


def test_reaping_twice_ends_the_attempt_once(store: Store) -> None:
    store.start_many(3)
    store.expire(*store.claim())
    assert len(store.reap(limit=2)) == 2
    assert len(store.reap()) == 1
    assert store.reap() == set()
    assert len(store.tables()["job_attempt"]) == 3


def test_the_clock_is_the_databases_and_in_utc(store: Store) -> None:
    now = store.read(store.repository.clock)
    assert now.utcoffset() == timedelta(0)
    assert abs(now - datetime.now(timezone.utc)) < timedelta(minutes=1)

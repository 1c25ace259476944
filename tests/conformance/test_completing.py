"""Completing: outputs, attempts, continuations, the fence, and what it releases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.store import Store

from queuert.chains.complete import Completion
from queuert.errors import ChainNotFoundError, JobAlreadyCompletedError, JobStateError, JobTypeMismatchError
from queuert.model import Status

pytestmark = pytest.mark.conformance


def test_completing_stores_output_and_attempt_and_ends_the_lease(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim(worker="w5")
    assert store.complete(job, output='{"done": [1, 2]}').ids == {job.id}
    now = store.job(chain)
    assert (now.status, now.completed_by, now.attempt) == (Status.COMPLETED, "w5", 1)
    assert (now.leased_by, now.leased_until, now.continued_to) == (None, None, None)
    # The token stays, so that a commit whose answer was lost can be recognised.
    assert now.lease_token == job.lease_token
    assert store.context.payloads.decode_job(now).output == {"done": [1, 2]}
    (attempt,) = store.attempts(chain)
    assert (attempt.attempt, attempt.worker_id, attempt.outcome) == (1, "w5", "succeeded")
    assert attempt.claimed_at == attempt.started_at == job.last_attempt_at
    assert (attempt.error_code, attempt.error_detail, attempt.retry_at) == (None, None, None)
    found = store.chain(chain)
    assert (found.status, found.completed_at) == (Status.COMPLETED, now.completed_at)


def test_many_are_completed_at_once_each_with_its_own_output(store: Store) -> None:
    store.start_many(40)
    jobs = store.claim(40)
    completions = [Completion(job, f'"out {job.input}"', job.lease_token) for job in jobs]
    done = store.write(lambda session: store.chains.complete(session, "w1", completions))
    assert done.ids == {job.id for job in jobs}
    for job in jobs:
        assert store.job(job).output == f'"out {job.input}"'
    assert len(store.tables()["job_attempt"]) == 40


def test_success_clears_the_last_error_and_keeps_the_attempts(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.end(job, after=0)
    (job,) = store.claim()
    assert job.error_code == "TEST:FAILED"
    store.complete(job)
    now = store.job(job)
    assert (now.error_code, now.last_attempt_error) == (None, None)
    assert [a.outcome for a in store.attempts(job)] == ["failed", "succeeded"]


@pytest.mark.parametrize("difference", ["token", "worker"])
def test_who_lost_the_lease_completes_nothing(store: Store, difference: str) -> None:
    store.start()
    (job,) = store.claim()
    other = replace(job, lease_token=7777) if difference == "token" else replace(job, leased_by="other")
    following = store.chains.next_job(job, "b")
    before = store.tables()
    assert store.complete(other).ids == set()
    assert store.complete(other, then=following).ids == set()
    assert store.tables() == before


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed", "released", "rescheduled", "reaped", "deleted"])
def test_an_attempt_that_has_ended_cannot_complete(store: Store, end: str) -> None:
    store.start()
    (job,) = store.claim()
    {
        "completed": lambda: store.complete(job, output="1"),
        "cancelled": lambda: store.chains.cancel([job.id], None),
        "failed": lambda: store.fail(job),
        "released": lambda: store.release(job),
        "rescheduled": lambda: store.end(job, after=0),
        "reaped": lambda: (store.expire(job), store.reap()),
        "deleted": lambda: store.chains.delete([job.id], None),
    }[end]()
    before = store.tables()
    assert store.complete(job, output="2").ids == set()
    assert store.complete(job, then=store.chains.next_job(job, "b")).ids == set()
    assert store.tables() == before


def test_a_lost_lease_in_a_batch_affects_only_its_own_row(store: Store) -> None:
    blocker = store.start("b", 0)
    (lost,) = store.claim(types=["b"])
    waiting = store.start("c", blockers=[blocker])
    store.start_many(2)
    jobs = store.claim(types=["a"])
    stale = replace(lost, lease_token=4242)
    following = store.chains.next_job(jobs[1], "b", blockers=[store.start("c", after=1000)])
    completions = [
        Completion(stale, "1", stale.lease_token),
        Completion(jobs[0], "2", jobs[0].lease_token),
        Completion(jobs[1], None, jobs[1].lease_token, following),
    ]
    done = store.write(lambda session: store.chains.complete(session, "w1", completions))
    assert done.ids == {jobs[0].id, jobs[1].id}
    assert store.job(lost) == lost
    assert store.attempts(lost) == []
    assert (store.job(waiting).status, store.job(waiting).open_blockers) == (Status.BLOCKED, 1)
    assert store.job(following.columns["next_id"]).status is Status.BLOCKED


def test_a_row_that_the_database_refuses_leaves_the_batch_undone(store: Store) -> None:
    taken = store.start("b")
    store.start_many(2)
    one, two = store.claim(types=["a"])
    clash = store.chains.next_job(two, "b", id=taken.id)
    before = store.tables()
    batch = [Completion(one, "1", one.lease_token), Completion(two, None, two.lease_token, clash)]
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|exists already"):
        store.write(lambda session: store.chains.complete(session, "w1", batch))
    assert store.tables() == before
    assert store.complete(one).ids == {one.id}
    assert store.job(two).status is Status.RUNNING


def test_with_history_of_failures_a_success_writes_no_attempt(store: Store) -> None:
    object.__setattr__(store.context.settings, "history", "failures")
    store.start()
    (job,) = store.claim()
    store.end(job, after=0)
    (job,) = store.claim()
    store.complete(job)
    assert [a.outcome for a in store.attempts(job)] == ["failed"]


# Continuations


def test_a_chain_goes_on_through_its_continuations(store: Store) -> None:
    chain = store.start("a", 0)
    for index, name in enumerate(("b", "c", "a"), start=1):
        (job,) = store.claim()
        following = store.proceed(job, name, input=index)
        assert (following.chain_index, following.type_name, following.status) == (index, name, Status.PENDING)
        parent = store.job(job)
        assert (parent.status, parent.output, parent.continued_to) == (Status.COMPLETED, None, following.id)
        assert store.chain(chain).status is Status.PENDING
    (job,) = store.claim()
    store.complete(job, output='"end"')
    found = store.chain(chain)
    assert (found.status, found.output, found.tail_type_name) == (Status.COMPLETED, '"end"', "a")
    page = store.lister.list_chain_jobs(chain.id, "asc", None, 10, None)
    assert [j.chain_index for j in page] == [0, 1, 2, 3]


def test_a_chain_cannot_have_two_tails(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim()
    store.proceed(job)
    with pytest.raises(Exception, match=r"(?i)unique"):
        store.sql(
            "INSERT INTO {job} (id, type_name, chain_id, chain_type_name, chain_index) VALUES (:id, 'a', :chain, 'a', 1)",
            id="01890000-0000-7000-8000-000000000000",
            chain=chain.id,
        )


# What it releases


def test_the_last_blocker_to_complete_releases_the_job(store: Store) -> None:
    blockers = store.start_many(3, "b")
    chain = store.start("a", blockers=blockers)
    for done, blocker in enumerate(blockers, start=1):
        assert store.job(chain).status is Status.BLOCKED
        store.finish(blocker)
        assert store.job(chain).open_blockers == 3 - done
    assert store.job(chain).status is Status.PENDING
    assert store.events(chain) == ["UNBLOCKED"]
    assert [job.id for job in store.claim()] == [chain.id]


def test_one_batch_can_complete_all_blockers_of_many_jobs(store: Store) -> None:
    store.start_many(4, "b")
    blockers = store.claim(types=["b"])
    waiting = [store.start("a", blockers=[job.id for job in blockers]) for _ in range(5)]
    half = store.start("a", blockers=[blockers[0].id, store.start("c", after=1000)])
    store.complete(*blockers)
    assert {store.job(chain).status for chain in waiting} == {Status.PENDING}
    assert {store.job(chain).open_blockers for chain in waiting} == {0}
    assert (store.job(half).status, store.job(half).open_blockers) == (Status.BLOCKED, 1)
    assert store.events(half) == []


def test_a_continued_blocker_releases_nothing(store: Store) -> None:
    blocker = store.start("b")
    chain = store.start("a", blockers=[blocker])
    (job,) = store.claim()
    store.proceed(job, "c")
    assert (store.job(chain).status, store.job(chain).open_blockers) == (Status.BLOCKED, 1)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_blocker_that_does_not_complete_releases_nothing_until_retried(store: Store, end: str) -> None:
    blocker = store.start("b")
    chain = store.start("a", blockers=[blocker])
    (job,) = store.claim()
    if end == "failed":
        store.fail(job)
    else:
        store.chains.cancel([blocker.id], None)
    assert (store.job(chain).status, store.job(chain).open_blockers) == (Status.BLOCKED, 1)
    store.chains.retry([blocker.id], None)
    (job,) = store.claim()
    store.complete(job)
    assert store.job(chain).status is Status.PENDING


def test_a_released_job_keeps_its_schedule_in_the_future(store: Store) -> None:
    blocker = store.start("b")
    later, sooner = store.start("a", blockers=[blocker], after=1000), store.start("a", blockers=[blocker])
    planned, due = store.job(later).scheduled_at, store.job(sooner).scheduled_at
    store.sql("UPDATE {job} SET scheduled_at = :at WHERE id = :id", at="2001-01-01T00:00:00.000000Z", id=sooner.id)
    store.finish(blocker)
    assert store.job(later).scheduled_at == planned
    assert store.job(sooner).scheduled_at >= due
    assert [job.id for job in store.claim()] == [sooner.id]


def test_a_cancelled_dependant_is_counted_down_too(store: Store) -> None:
    first, second = store.start_many(2, "b")
    chain = store.start("a", blockers=[first, second])
    store.chains.cancel([chain.id], None)
    store.finish(first)
    assert (store.job(chain).status, store.job(chain).open_blockers) == (Status.CANCELLED, 1)
    store.chains.retry([chain.id], None)
    assert store.job(chain).status is Status.BLOCKED
    store.chains.cancel([chain.id], None)
    store.finish(second)
    store.chains.retry([chain.id], None)
    assert (store.job(chain).status, store.job(chain).open_blockers) == (Status.PENDING, 0)


# From outside


def test_a_pending_chain_is_completed_from_outside_without_an_attempt(store: Store) -> None:
    chain = store.start()
    with store.chains.complete_from_outside(chain.id, None, "a") as tail:
        assert tail.id == chain.id
        tail.finish({"by": "hand"})
        with pytest.raises(JobAlreadyCompletedError):
            tail.finish()
    job = store.job(chain)
    assert (job.status, job.completed_by, job.attempt) == (Status.COMPLETED, None, 0)
    assert store.attempts(chain) == []


def test_completing_a_running_tail_from_outside_ends_its_attempt_as_cancelled(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim(worker="w9")
    store.finish(chain)
    (attempt,) = store.attempts(chain)
    assert (attempt.outcome, attempt.worker_id, attempt.attempt) == ("cancelled", "w9", 1)
    assert store.complete(job).ids == set()


def test_a_chain_is_continued_from_outside(store: Store) -> None:
    chain = store.start()
    with store.chains.complete_from_outside(chain.id, None, None) as tail:
        tail.continue_with("b", 5)
    assert (store.chain(chain).status, store.chain(chain).tail_type_name) == (Status.PENDING, "b")


def test_reading_a_tail_from_outside_changes_nothing(store: Store) -> None:
    chain = store.start()
    before = store.tables()
    with store.chains.complete_from_outside(chain.id, None, None) as tail:
        assert tail.status is Status.PENDING
    assert store.tables() == before


def test_what_cannot_be_completed_from_outside_says_so(store: Store) -> None:
    blocked = store.start("a", blockers=[store.start("b", after=1000)])
    done = store.start("a")
    store.finish(done)
    cancelled = store.start("a")
    store.chains.cancel([cancelled.id], None)
    for chain, error in ((blocked, JobStateError), (done, JobAlreadyCompletedError), (cancelled, JobStateError)):
        with pytest.raises(error):
            store.finish(chain)
    with pytest.raises(JobTypeMismatchError), store.chains.complete_from_outside(blocked.id, None, "b"):
        pass
    with pytest.raises(ChainNotFoundError):
        store.finish("01890000-0000-7000-8000-000000000000")

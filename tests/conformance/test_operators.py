"""Acts of an operator: trigger, cancel, retry, delete; and how chains are linked by blockers."""

from __future__ import annotations

import pytest
from support.store import CONTENT, Store

from queuert.errors import BlockerReferenceError, ChainNotFoundError, JobNotFoundError, JobNotTriggerableError, JobStateError
from queuert.ids import uuid7
from queuert.model import Chain, Status
from queuert.options import Dedup

pytestmark = pytest.mark.conformance


# Trigger


def test_a_triggered_job_is_due_now(store: Store) -> None:
    chain = store.start(after=1000)
    (job,) = store.chains.trigger([chain.id], None, actor="ann")
    assert job.scheduled_at <= store.read(store.repository.clock)
    assert [j.id for j in store.claim()] == [chain.id]
    events = store.read(lambda session: store.repository.list_events(session, chain.id))
    assert [(event, actor, detail) for event, _, actor, detail in events] == [("TRIGGERED", "ann", {})]


def test_triggering_a_due_job_leaves_its_schedule(store: Store) -> None:
    chain = store.start()
    before = store.job(chain).scheduled_at
    store.chains.trigger([chain.id], None)
    assert store.job(chain).scheduled_at == before


def test_triggering_is_all_or_nothing(store: Store) -> None:
    later, running = store.start(after=1000), store.start()
    store.claim()
    before = store.tables()
    with pytest.raises(JobNotTriggerableError):
        store.chains.trigger([later.id, running.id], None)
    with pytest.raises(JobNotFoundError):
        store.chains.trigger([later.id, uuid7()], None)
    assert store.tables() == before


# Cancel


@pytest.mark.parametrize("state", ["pending", "blocked", "running", "suspect"])
def test_an_open_chain_is_cancelled(store: Store, state: str) -> None:
    blockers = [store.start("b", after=1000)] if state == "blocked" else None
    chain = store.start("a", blockers=blockers)
    if state in ("running", "suspect"):
        (job,) = store.claim(types=["a"])
        if state == "suspect":
            store.end(job, outcome="lost", after=0)
    (cancelled,) = store.chains.cancel([chain.id], None, actor="bob")
    job = store.job(chain)
    assert cancelled.status is job.status is Status.CANCELLED
    assert (job.leased_by, job.leased_until, job.lease_token, job.suspect) == (None, None, None, False)
    assert cancelled.completed_at == job.completed_at is not None
    assert store.events(chain) == ["CANCELLED"]
    outcomes = [(a.attempt, a.worker_id, a.outcome) for a in store.attempts(chain)]
    assert outcomes == {"running": [(1, "w1", "cancelled")], "suspect": [(1, "w1", "lost")]}.get(state, [])
    assert store.claim() == []


def test_cancelling_takes_the_tail(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim()
    following = store.proceed(job)
    store.chains.cancel([chain.id], None)
    assert store.job(following).status is Status.CANCELLED
    assert store.job(job).status is Status.COMPLETED
    assert store.claim() == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_cancelling_a_closed_chain_leaves_it_as_it_is(store: Store, state: str) -> None:
    chain = store.start()
    (job,) = store.claim()
    if state == "completed":
        store.complete(job)
    elif state == "failed":
        store.fail(job)
    else:
        store.chains.cancel([chain.id], None)
    before = store.tables()
    assert store.chains.cancel([chain.id], None)[0].status == state
    assert store.tables() == before


def test_cancelling_is_all_or_nothing_and_in_order(store: Store) -> None:
    chains = store.start_many(3)
    before = store.tables()
    with pytest.raises(ChainNotFoundError):
        store.chains.cancel([chains[0].id, uuid7()], None)
    assert store.tables() == before
    order = [chains[2].id, chains[0].id, chains[2].id]
    assert [c.id for c in store.chains.cancel(order, None)] == order
    assert store.job(chains[1]).status is Status.PENDING


def diamond(store: Store) -> tuple[Chain, Chain, Chain, Chain]:
    """Bottom blocks left and right, and both block top."""
    bottom = store.start("b")
    left, right = store.start("a", "left", blockers=[bottom]), store.start("a", "right", blockers=[bottom])
    return bottom, left, right, store.start("a", "top", blockers=[left, right])


def test_cancelling_with_cascade_goes_up_to_what_waits(store: Store) -> None:
    bottom, left, right, top = diamond(store)
    other = store.start("a", blockers=[store.start("c")])
    (answer,) = store.chains.cancel([left.id], None, cascade=True)
    assert answer.id == left.id
    states = [store.job(c).status for c in (bottom, left, right, top, other)]
    assert states == [Status.PENDING, Status.CANCELLED, Status.BLOCKED, Status.CANCELLED, Status.BLOCKED]
    store.chains.cancel([bottom.id], None, cascade=True)
    assert [store.job(c).status for c in (bottom, right)] == [Status.CANCELLED] * 2
    assert store.events(top) == ["CANCELLED"]


def test_cancelling_a_failed_chain_with_cascade_cancels_what_waits_for_it(store: Store) -> None:
    blocker = store.start("b")
    waiting = store.start("a", blockers=[blocker])
    (job,) = store.claim()
    store.fail(job)
    (answer,) = store.chains.cancel([blocker.id], None, cascade=True)
    assert answer.status is Status.FAILED
    assert store.job(waiting).status is Status.CANCELLED


def test_nobody_waits_for_a_completed_chain_any_more(store: Store) -> None:
    done, other = store.start("b"), store.start("b")
    waiting = store.start("a", blockers=[done, other])
    store.finish(done)
    store.chains.cancel([done.id], None, cascade=True)
    assert store.job(waiting).status is Status.BLOCKED


# Retry


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retried_chain_gets_fresh_attempts_and_keeps_its_history(store: Store, state: str) -> None:
    chain = store.start(max_attempts=2)
    (job,) = store.claim()
    store.end(job, after=0)
    (job,) = store.claim()
    if state == "failed":
        store.fail(job)
    else:
        store.chains.cancel([chain.id], None)
    (retried,) = store.chains.retry([chain.id], None, actor="eve")
    now = store.job(chain)
    assert retried.status is now.status is Status.PENDING
    assert (now.attempt, now.attempts_used, now.max_attempts, now.completed_at) == (2, 0, 2, None)
    assert len(store.attempts(chain)) == 2
    assert store.events(chain)[-1] == "RETRIED"
    (again,) = store.claim()
    assert (again.attempt, again.attempts_used) == (3, 1)
    store.complete(again)
    assert [a.attempt for a in store.attempts(chain)] == [1, 2, 3]


def test_a_retried_schedule_in_the_future_is_kept(store: Store) -> None:
    chain = store.start(after=1000)
    planned = store.job(chain).scheduled_at
    store.chains.cancel([chain.id], None)
    store.chains.retry([chain.id], None)
    assert store.job(chain).scheduled_at == planned


@pytest.mark.parametrize("state", ["pending", "running", "blocked", "completed"])
def test_only_failed_and_cancelled_chains_are_retried(store: Store, state: str) -> None:
    blockers = [store.start("b", after=1000)] if state == "blocked" else None
    chain = store.start("a", blockers=blockers)
    failed = store.start("c")
    (job,) = store.claim(types=["c"])
    store.fail(job)
    if state in ("running", "completed"):
        (job,) = store.claim(types=["a"])
    if state == "completed":
        store.complete(job)
    before = store.tables()
    with pytest.raises(JobStateError) as caught:
        store.chains.retry([failed.id, chain.id], None)
    assert caught.value.status == state
    assert store.tables() == before


def test_a_retry_after_its_blocker_was_deleted_is_refused(store: Store) -> None:
    blocker = store.start("b")
    chain = store.start("a", blockers=[blocker])
    store.chains.cancel([chain.id], None)
    store.chains.delete([blocker.id], None)
    with pytest.raises(JobStateError, match="deleted"):
        store.chains.retry([chain.id], None)


def test_retrying_the_tail_leaves_the_earlier_jobs(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim()
    following = store.proceed(job)
    (tail,) = store.claim()
    store.fail(tail)
    store.chains.retry([chain.id], None)
    assert store.job(following).status is Status.PENDING
    assert store.job(job).status is Status.COMPLETED


# Delete


def test_deleting_leaves_nothing_of_a_chain(store: Store) -> None:
    blocker = store.start("b")
    chain = store.start("a", dedup=Dedup("k"), blockers=[blocker])
    store.finish(blocker)
    (job,) = store.claim(types=["a"])
    store.end(job, after=0)
    (job,) = store.claim(types=["a"])
    store.proceed(job, "c")
    store.chains.cancel([chain.id], None)
    deleted = store.chains.delete([chain.id], None)
    assert [(c.id, c.status) for c in deleted] == [(chain.id, Status.CANCELLED)]
    store.chains.delete([blocker.id], None)
    assert {table: store.tables()[table] for table in CONTENT} == {table: [] for table in CONTENT}


def test_deleting_what_is_not_there_deletes_nothing(store: Store) -> None:
    chain = store.start()
    assert [c.id for c in store.chains.delete([uuid7(), chain.id], None)] == [chain.id]
    assert store.chains.delete([chain.id], None) == []


def test_a_continuations_id_deletes_nothing(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    following = store.proceed(job)
    before = store.tables()
    assert store.chains.delete([following.id], None) == []
    assert store.tables() == before


def test_a_key_that_others_carry_survives_a_deletion(store: Store) -> None:
    first = store.start("a", dedup=Dedup("k"))
    store.finish(first)
    second = store.start("a", dedup=Dedup("k"))
    store.chains.delete([first.id], None)
    assert store.tables()["job_key"] == [("a", "k")]
    store.chains.delete([second.id], None)
    assert store.tables()["job_key"] == []


@pytest.mark.parametrize("state", ["blocked", "pending", "running", "failed"])
def test_a_chain_that_others_wait_for_is_not_deleted(store: Store, state: str) -> None:
    blocker = store.start("b")
    waiting = store.start("a", blockers=[blocker])
    if state != "blocked":
        store.finish(blocker)
    if state in ("running", "failed"):
        (job,) = store.claim()
    if state == "failed":
        store.fail(job)
    before = store.tables()
    with pytest.raises(BlockerReferenceError) as caught:
        store.chains.delete([blocker.id], None)
    assert [(r.job_id, r.chain_id, r.blocked_by_chain_id) for r in caught.value.references] == [
        (waiting.id, waiting.id, blocker.id)
    ]
    assert store.tables() == before


@pytest.mark.parametrize("state", ["completed", "cancelled"])
def test_who_no_longer_waits_does_not_keep_a_chain(store: Store, state: str) -> None:
    blocker = store.start("b")
    waited = store.start("a", blockers=[blocker])
    if state == "completed":
        store.finish(blocker)
        store.finish(waited)
    else:
        store.chains.cancel([waited.id], None)
    store.chains.delete([blocker.id], None)
    assert store.sql("SELECT count(*) FROM {job_blocker}") == [(0,)]
    assert store.job(waited).blocker_count == 1


def test_one_reference_is_named_for_each_that_waits(store: Store) -> None:
    first, second = store.start_many(2, "b")
    store.start("a", blockers=[first, second])
    store.start("a", blockers=[first])
    with pytest.raises(BlockerReferenceError) as caught:
        store.chains.delete([first.id, second.id], None)
    assert len(caught.value.references) == 3


def test_deleting_both_ends_of_a_reference_works(store: Store) -> None:
    blocker = store.start("b")
    waiting = store.start("a", blockers=[blocker])
    store.chains.delete([blocker.id, waiting.id], None)
    assert store.sql("SELECT count(*) FROM {job}") == [(0,)]


def test_deleting_with_cascade_goes_down_to_what_it_waited_for(store: Store) -> None:
    bottom, left, right, top = diamond(store)
    other = store.start("c")
    with pytest.raises(BlockerReferenceError) as caught:
        store.chains.delete([left.id], None, cascade=True)
    # Top waits for left, and right for bottom.
    assert {(r.chain_id, r.blocked_by_chain_id) for r in caught.value.references} == {
        (top.id, left.id),
        (right.id, bottom.id),
    }
    deleted = store.chains.delete([top.id], None, cascade=True)
    assert deleted[0].id == top.id
    assert {c.id for c in deleted} == {bottom.id, left.id, right.id, top.id}
    assert store.sql("SELECT id FROM {job}") == [(other.id,)]


def test_a_cascade_finds_blockers_of_continuations(store: Store) -> None:
    chain, blocker = store.start("a"), store.start("b")
    (job,) = store.claim(types=["a"])
    store.proceed(job, "c", blockers=[blocker])
    assert {c.id for c in store.chains.delete([chain.id], None, cascade=True)} == {chain.id, blocker.id}


# Links


def graph(store: Store, name: str, *chains: Chain) -> set[str]:
    query = getattr(store.repository, name)
    return set(store.read(lambda session: query(session, [chain.id for chain in chains])))


def test_links_are_followed_up_down_and_both_ways(store: Store) -> None:
    bottom, left, right, top = diamond(store)
    alone = store.start("c")
    every = {bottom.id, left.id, right.id, top.id}
    assert graph(store, "waiting_chains", bottom) == every
    assert graph(store, "waiting_chains", left) == {left.id, top.id}
    assert graph(store, "blocker_chains", top) == every
    assert graph(store, "blocker_chains", right) == {right.id, bottom.id}
    assert graph(store, "waits_for", right, alone) == {right.id, bottom.id, alone.id}
    for chain in (bottom, left, right, top):
        assert graph(store, "connected_chains", chain) == every
    assert graph(store, "connected_chains", alone) == {alone.id}
    assert graph(store, "waiting_jobs", bottom) == {left.id, right.id}
    assert [c.id for c in store.reader.connected(left.id, None)] == [bottom.id, right.id, top.id]


def test_links_outlive_the_waiting(store: Store) -> None:
    bottom, left, right, top = diamond(store)
    for chain in (bottom, left, right, top):
        store.finish(chain)
    assert graph(store, "connected_chains", top) == {bottom.id, left.id, right.id, top.id}
    assert graph(store, "waiting_chains", bottom) == {bottom.id}
    assert graph(store, "waits_for", top) == {top.id}


def test_links_of_continuations_belong_to_their_chain(store: Store) -> None:
    chain, blocker = store.start("a"), store.start("b")
    (job,) = store.claim(types=["a"])
    following = store.proceed(job, "c", blockers=[blocker])
    assert graph(store, "waiting_chains", blocker) == {blocker.id, chain.id}
    assert graph(store, "connected_chains", blocker) == {blocker.id, chain.id}
    assert graph(store, "waiting_jobs", blocker) == {following.id}


def test_missing_blockers_are_those_deleted(store: Store) -> None:
    first, second = store.start_many(2, "b")
    chain, whole = store.start("a", blockers=[first, second]), store.start("a", blockers=[second])
    store.chains.cancel([chain.id, whole.id], None)
    store.chains.delete([first.id], None)
    assert graph(store, "missing_blockers", chain, whole) == {chain.id}

"""Acts of an operator: delete, cancel, retry; one chain or many; also while a handler runs."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.clocks import database_now
from support.handlers import held

from queuert import (
    BlockerReference,
    BlockerReferenceError,
    Chain,
    ChainNotFoundError,
    Continuation,
    JobStateError,
    NewChain,
    Queuert,
    RunningJob,
    Status,
)

UNKNOWN = "0190a0b0-0000-7000-8000-000000000009"
TABLES = ("job", "job_blocker", "job_attempt", "job_event", "job_key")


@pytest.fixture(autouse=True)
def _types(app: Queuert) -> None:
    app.declare("work")


def get(app: Queuert, chain: Chain) -> Chain:
    found = app.get_chain(chain.id)
    assert found is not None
    return found


def finish(app: Queuert, chain: Chain, output: object = None) -> None:
    with app.complete_chain(chain.id) as tail:
        tail.finish(output)


def rows(app: Queuert) -> dict[str, int]:
    """How many rows each table has."""
    with app.transaction() as tx:
        return {name: tx.execute(f"SELECT count(*) FROM queuert_{name}").fetchone()[0] for name in TABLES}


def failing(app: Queuert) -> Chain:
    """A chain that has failed."""
    if "broken" not in app.types:

        @app.job("broken")
        def broken(job: RunningJob[None]) -> None:
            job.fail("PAYMENT:DECLINED", "no money")

    chain = app.start_chain("broken")
    app.drain(types=["broken"])
    return get(app, chain)


# Deleting


def test_a_deleted_chain_is_gone_with_all_that_belongs_to_it(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second")

    @app.job(entry=False)
    def second(job: RunningJob[None]) -> int:
        return 1

    chain = app.start_chain(first)
    app.drain()
    app.trigger_job(app.start_chain("work", after=60).id)
    before = get(app, chain)
    assert app.delete_chain(chain.id) == before
    assert app.get_chain(chain.id) is None
    assert app.get_job(before.tail_id) is None
    app.delete_chains([c.id for c in app.list_chains()])
    assert set(rows(app).values()) == {0}


def test_deleting_what_is_not_there_gives_nothing(app: Queuert) -> None:
    chain = app.start_chain("work")
    assert app.delete_chain(UNKNOWN) is None
    assert app.delete_chains([UNKNOWN, chain.id]) == [chain]
    assert app.delete_chains([]) == []
    assert app.delete_chain(chain.id) is None


def test_the_id_of_a_continuation_deletes_nothing(app: Queuert) -> None:
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as tail:
        tail.continue_with("work")
    assert app.delete_chain(get(app, chain).tail_id) is None
    assert len(app.list_chain_jobs(chain.id).items) == 2


def test_a_chain_that_others_wait_for_is_kept_with_one_entry_per_reference(app: Queuert) -> None:
    blocker, other = app.start_chains([NewChain("work"), NewChain("work")])
    waiting = app.start_chains([NewChain("work", blockers=[blocker, other]), NewChain("work", blockers=[blocker])])
    with pytest.raises(BlockerReferenceError) as raised:
        app.delete_chains([blocker.id, other.id])
    assert set(raised.value.references) == {
        BlockerReference(waiting[0].id, waiting[0].id, blocker.id),
        BlockerReference(waiting[0].id, waiting[0].id, other.id),
        BlockerReference(waiting[1].id, waiting[1].id, blocker.id),
    }
    assert len(raised.value.references) == 3
    assert waiting[0].id in str(raised.value)
    assert get(app, blocker) == blocker


def test_a_failed_job_still_needs_its_blockers_a_completed_or_cancelled_one_does_not(app: Queuert) -> None:
    @app.job
    def join(job: RunningJob[bool]) -> None:
        if job.input:
            job.fail("NO:GOOD")

    blockers = app.start_chains([NewChain("work") for _ in range(3)])
    failed = app.start_chain(join, True, blockers=[blockers[0]])
    completed = app.start_chain(join, False, blockers=[blockers[1]])
    cancelled = app.start_chain(join, False, blockers=[blockers[2]])
    for blocker in blockers:
        finish(app, blocker)
    app.cancel_chain(cancelled.id)
    app.drain()
    with pytest.raises(BlockerReferenceError):
        app.delete_chain(blockers[0].id)
    for blocker in blockers[1:]:
        assert app.delete_chain(blocker.id) is not None
    assert app.get_job_blockers(completed.id) == []
    app.cancel_chain(failed.id)
    assert get(app, failed).status == "failed"


def test_a_waiting_chain_can_be_deleted_together_with_its_blocker(app: Queuert) -> None:
    blocker = app.start_chain("work")
    waiting = app.start_chain("work", blockers=[blocker])
    assert [c.id for c in app.delete_chains([blocker.id, waiting.id])] == [blocker.id, waiting.id]
    assert set(rows(app).values()) == {0}


def test_cascade_goes_down_to_what_the_chain_waited_for(app: Queuert) -> None:
    bottom = app.start_chain("work")
    left, right = app.start_chains([NewChain("work", blockers=[bottom]), NewChain("work", blockers=[bottom])])
    top = app.start_chain("work", blockers=[left, right])
    beside = app.start_chain("work")
    with pytest.raises(BlockerReferenceError):
        app.delete_chain(left.id, cascade=True)
    assert app.delete_chain(top.id, cascade=True) == top
    assert [c.id for c in app.list_chains()] == [beside.id]
    assert rows(app) == {"job": 1, "job_blocker": 0, "job_attempt": 0, "job_event": 0, "job_key": 0}


def test_cascade_is_refused_while_somebody_outside_waits(app: Queuert) -> None:
    shared = app.start_chain("work")
    top = app.start_chain("work", blockers=[shared])
    outside = app.start_chain("work", blockers=[shared])
    with pytest.raises(BlockerReferenceError) as raised:
        app.delete_chain(top.id, cascade=True)
    assert raised.value.references == (BlockerReference(outside.id, outside.id, shared.id),)
    app.cancel_chain(outside.id)
    assert {c.id for c in app.delete_chains([top.id], cascade=True)} == {top.id, shared.id}


def test_cascade_also_takes_completed_blockers_and_those_of_continuations(app: Queuert) -> None:
    part = app.start_chain("work")
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as tail:
        tail.continue_with("work", blockers=[part])
    finish(app, part)
    finish(app, chain)
    deleted = app.delete_chains([chain.id], cascade=True)
    assert [c.id for c in deleted] == [chain.id, part.id]


def test_deleting_under_a_running_handler_changes_nothing_afterwards(app: Queuert) -> None:
    with held(app) as running:
        assert app.delete_chain(running.chain.id) is not None
        assert running.let_go() is None
    assert set(rows(app).values()) == {0}


# Cancelling


def test_a_pending_chain_is_cancelled_at_once(app: Queuert) -> None:
    chain = app.start_chain("work")
    cancelled = app.cancel_chain(chain.id)
    assert cancelled.status == "cancelled"
    assert cancelled.completed_at is not None
    assert cancelled == get(app, chain)
    assert app.attempts(chain.id) == [], "nothing was running"
    assert [entry.event for entry in app.timeline(chain.id)] == ["ENQUEUED", "CANCELLED"]


def test_cancelling_a_running_chain_clears_the_lease_and_signals_the_handler(app: Queuert) -> None:
    with held(app) as running:
        assert app.cancel_chain(running.chain.id).status == "cancelled"
        job = app.get_job(running.chain.id)
        assert job is not None
        assert (job.leased_by, job.leased_until, job.lease_token) == (None, None, None)
        (attempt,) = app.attempts(job.id)
        assert (attempt.outcome, attempt.attempt) == ("cancelled", 1)
        assert attempt.worker_id is not None
        after = running.let_go()
    assert after is not None
    assert (after.status, after.output) == (Status.CANCELLED, None)
    assert len(app.attempts(job.id)) == 1


def test_cancelling_a_closed_chain_leaves_it_as_it_is(app: Queuert) -> None:
    done, failed = app.start_chain("work"), failing(app)
    finish(app, done, 5)
    cancelled = app.cancel_chain(app.start_chain("work").id)
    for chain, status in ((done, "completed"), (failed, "failed"), (cancelled, "cancelled")):
        before = get(app, chain)
        assert app.cancel_chain(chain.id) == before
        assert before.status == status
        assert get(app, chain) == before


def test_cancelling_leaves_those_that_wait_unless_it_cascades(app: Queuert) -> None:
    bottom = app.start_chain("work")
    middle = app.start_chain("work", blockers=[bottom])
    top = app.start_chain("work", blockers=[middle])
    unrelated = app.start_chain("work")
    app.cancel_chain(bottom.id)
    assert [get(app, c).status for c in (middle, top)] == [Status.BLOCKED, Status.BLOCKED]
    assert app.stats().stranded == 1
    assert app.cancel_chain(bottom.id, cascade=True).status == "cancelled", "also when it is closed already"
    assert [get(app, c).status for c in (middle, top, unrelated)] == [Status.CANCELLED, Status.CANCELLED, Status.PENDING]


def test_cascade_cancels_what_waits_for_a_failed_chain_and_leaves_what_completed(app: Queuert) -> None:
    blocker = app.start_chain("work")
    freed = app.start_chain("work", blockers=[blocker])
    finish(app, blocker)
    finish(app, freed)
    failed = failing(app)
    waiting = app.start_chain("work", blockers=[failed, blocker])
    assert app.cancel_chain(failed.id, cascade=True).status == "failed"
    assert get(app, waiting).status == "cancelled"
    assert get(app, freed).status == "completed"


def test_many_are_cancelled_in_the_order_given_all_or_none(app: Queuert) -> None:
    chains = app.start_chains([NewChain("work", n) for n in range(4)])
    ids = [chain.id for chain in reversed(chains)]
    with pytest.raises(ChainNotFoundError):
        app.cancel_chains([*ids, UNKNOWN])
    assert {get(app, chain).status for chain in chains} == {Status.PENDING}
    assert [chain.id for chain in app.cancel_chains(ids)] == ids
    assert {get(app, chain).status for chain in chains} == {Status.CANCELLED}
    assert app.cancel_chains([]) == []
    with pytest.raises(ChainNotFoundError):
        app.cancel_chain(UNKNOWN)


# Retrying


def test_a_failed_chain_gets_fresh_attempts_and_keeps_its_history(app: Queuert) -> None:
    calls: list[int] = []

    @app.job(max_attempts=2, backoff=lambda used: 0)
    def flaky(job: RunningJob[None]) -> str:
        calls.append(job.attempt)
        if len(calls) < 4:
            raise ValueError("not yet")
        return "done"

    chain = app.start_chain(flaky)
    assert app.drain() == 2
    assert get(app, chain).status == "failed"
    retried = app.retry_chain(chain.id)
    assert (retried.status, retried.completed_at) == (Status.PENDING, None)
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.max_attempts, job.attempt, job.attempts_used) == (2, 2, 0)
    assert job.scheduled_at <= database_now(app)
    assert app.drain() == 2, "max_attempts fresh tries"
    assert get(app, chain).output == "done"
    assert [a.outcome for a in app.attempts(chain.id)] == ["failed", "failed", "failed", "succeeded"]
    assert calls == [1, 2, 3, 4]
    assert "RETRIED" in [entry.event for entry in app.timeline(chain.id)]


def test_a_retried_chain_that_fails_again_fails_after_as_many_tries(app: Queuert) -> None:
    @app.job(max_attempts=3, backoff=lambda used: 0)
    def broken(job: RunningJob[None]) -> None:
        raise ValueError

    chain = app.start_chain(broken)
    assert app.drain() == 3
    app.retry_chain(chain.id)
    assert app.drain() == 3
    assert get(app, chain).status == "failed"


def test_a_cancelled_chain_can_be_retried(app: Queuert) -> None:
    chain = app.start_chain("work")
    app.cancel_chain(chain.id)
    assert app.retry_chain(chain.id).status == "pending"
    finish(app, chain, 3)
    assert get(app, chain).output == 3


def test_the_failed_tail_of_a_chain_is_retried_and_not_its_first_job(app: Queuert) -> None:
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as tail:
        tail.continue_with("work", 2)
    app.cancel_chain(chain.id)
    app.retry_chain(chain.id)
    assert [job.status for job in app.list_chain_jobs(chain.id)] == [Status.COMPLETED, Status.PENDING]


def test_a_retried_job_waits_again_while_its_blockers_are_open(app: Queuert) -> None:
    blocker, late = app.start_chain("work"), app.start_chain("work")
    waiting = app.start_chain("work", blockers=[blocker, late])
    app.cancel_chain(waiting.id)
    assert app.retry_chain(waiting.id).status == "blocked"
    app.cancel_chain(waiting.id)
    finish(app, blocker)
    assert app.retry_chain(waiting.id).status == "blocked"
    app.cancel_chain(waiting.id)
    finish(app, late)
    assert app.retry_chain(waiting.id).status == "pending", "blockers that completed meanwhile have been counted"


def test_a_chain_whose_blocker_was_deleted_cannot_be_retried(app: Queuert) -> None:
    blocker = app.start_chain("work")
    waiting = app.start_chain("work", blockers=[blocker])
    app.cancel_chain(waiting.id)
    app.delete_chain(blocker.id)
    with pytest.raises(JobStateError, match="deleted") as raised:
        app.retry_chain(waiting.id)
    assert raised.value.status == "cancelled"
    assert get(app, waiting).status == "cancelled"


@pytest.mark.parametrize("state", ["pending", "blocked", "completed", "running"])
def test_other_states_cannot_be_retried(app: Queuert, state: str) -> None:
    chain = app.start_chain("work")
    if state == "blocked":
        chain = app.start_chain("work", blockers=[chain])
    elif state == "completed":
        finish(app, chain)
    if state == "running":
        with held(app) as running, pytest.raises(JobStateError) as raised:
            app.retry_chain(running.chain.id)
    else:
        with pytest.raises(JobStateError) as raised:
            app.retry_chain(chain.id)
        assert get(app, chain).status == state
    assert raised.value.status == state


def test_many_are_retried_in_the_order_given_all_or_none(app: Queuert) -> None:
    chains = app.start_chains([NewChain("work", n) for n in range(3)])
    pending = app.start_chain("work")
    ids = [chain.id for chain in reversed(chains)]
    app.cancel_chains(ids)
    for bad, error in ((UNKNOWN, ChainNotFoundError), (pending.id, JobStateError)):
        with pytest.raises(error):
            app.retry_chains([*ids, bad])
        assert {get(app, chain).status for chain in chains} == {Status.CANCELLED}
    assert [(c.id, c.status) for c in app.retry_chains(ids)] == [(i, Status.PENDING) for i in ids]
    assert app.retry_chains([]) == []


def test_a_retry_keeps_a_schedule_that_is_still_to_come(app: Queuert) -> None:
    chain = app.start_chain("work", after=timedelta(hours=1))
    app.cancel_chain(chain.id)
    app.retry_chain(chain.id)
    job = app.get_job(chain.id)
    assert job is not None
    assert job.scheduled_at > database_now(app) + timedelta(minutes=59)


def test_acts_are_part_of_the_users_transaction(app: Queuert) -> None:
    chains = app.start_chains([NewChain("work", n, after=60) for n in range(3)])
    app.cancel_chain(chains[1].id)
    before = [get(app, chain) for chain in chains]

    def act(conn: Any) -> None:
        app.trigger_job(chains[0].id, conn=conn)
        app.cancel_chain(chains[0].id, conn=conn)
        app.retry_chain(chains[1].id, conn=conn)
        app.delete_chain(chains[2].id, conn=conn)

    with suppress(ZeroDivisionError), app.transaction() as tx:
        act(tx)
        raise ZeroDivisionError
    assert [get(app, chain) for chain in chains] == before
    with app.transaction() as tx:
        act(tx)
    assert [str(c.status) if (c := app.get_chain(chain.id)) else None for chain in chains] == ["cancelled", "pending", None]

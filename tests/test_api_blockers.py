"""Blockers: chains that must complete before a job may start."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.handlers import held
from support.refusals import refused

from queuert import Chain, ChainNotFoundError, Continuation, JobNotFoundError, JobType, NewChain, Queuert, RunningJob


@pytest.fixture
def number(app: Queuert) -> JobType[int, int]:
    """A job that gives its input back."""

    @app.job
    def number(job: RunningJob[int]) -> int:
        return job.input

    return number


@pytest.fixture
def gather(app: Queuert) -> JobType[None, list[Any]]:
    """A job that gives the outputs of its blockers."""

    @app.job
    def gather(job: RunningJob[None]) -> list[Any]:
        return [blocker.output for blocker in job.blockers]

    return gather


def status(app: Queuert, chain: Chain) -> str:
    found = app.get_chain(chain.id)
    assert found is not None
    return str(found.status)


def test_a_fan_in_gets_the_outputs_in_the_order_given(app: Queuert, number: Any, gather: Any) -> None:
    parts = app.start_chains([NewChain(number, n) for n in range(5)])
    ordered = [parts[3], parts[0], parts[4], parts[1], parts[2]]
    chain = app.start_chain(gather, blockers=ordered)
    assert chain.status == "blocked"
    assert app.drain(types=["gather"]) == 0
    app.drain()
    assert app.wait_for(chain, timeout=5).output == [3, 0, 4, 1, 2]
    assert [blocker.id for blocker in app.get_job_blockers(chain.id)] == [part.id for part in ordered]


def test_a_blocked_job_is_freed_by_the_last_of_its_blockers(app: Queuert, number: Any, gather: Any) -> None:
    parts = app.start_chains([NewChain(number, n) for n in range(3)])
    chain = app.start_chain(gather, blockers=parts)
    for part in parts:
        assert status(app, chain) == "blocked"
        with app.complete_chain(part.id) as tail:
            tail.finish(7)
    assert status(app, chain) == "pending"


def test_one_chain_may_block_many(app: Queuert, number: Any, gather: Any) -> None:
    shared = app.start_chain(number, 1)
    waiting = app.start_chains([NewChain(gather, blockers=[shared]) for _ in range(20)])
    app.drain()
    assert [app.wait_for(chain, timeout=5).output for chain in waiting] == [[1]] * 20


def test_blockers_that_are_completed_already_do_not_block(app: Queuert, number: Any, gather: Any) -> None:
    done = app.start_chain(number, 1)
    app.drain()
    chain = app.start_chain(gather, blockers=[done])
    assert chain.status == "pending"
    still = app.start_chain(number, 2)
    partly = app.start_chain(gather, blockers=[done, still])
    assert partly.status == "blocked"
    job = app.get_job(partly.id)
    assert job is not None
    assert (job.open_blockers, job.blocker_count) == (1, 2)
    app.drain()
    assert app.wait_for(partly, timeout=5).output == [1, 2]


def test_a_blocker_holds_until_its_whole_chain_is_done(app: Queuert, gather: Any) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second")

    @app.job(entry=False)
    def second(job: RunningJob[None]) -> str:
        return "end"

    long = app.start_chain(first)
    chain = app.start_chain(gather, blockers=[long])
    app.drain(types=["first"])
    assert status(app, chain) == "blocked"
    app.drain(types=["second"])
    assert status(app, chain) == "pending"
    app.drain()
    assert app.wait_for(chain, timeout=5).output == ["end"]


def test_a_continuation_may_have_blockers(app: Queuert, number: Any, gather: Any) -> None:
    @app.job
    def split(job: RunningJob[int]) -> Continuation:
        with job.complete() as tx:
            parts = app.start_chains([NewChain(number, n) for n in range(job.input)], conn=tx)
            return job.continue_with(gather, blockers=parts)

    chain = app.start_chain(split, 4)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == [0, 1, 2, 3]


def test_a_continuation_with_closed_blockers_runs_at_once(app: Queuert, number: Any, gather: Any) -> None:
    done = app.start_chain(number, 5)
    app.drain()

    @app.job
    def go(job: RunningJob[None]) -> Continuation:
        return job.continue_with(gather, blockers=[done])

    chain = app.start_chain(go)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == [5]


def test_a_long_row_of_blockers_runs_from_its_end(app: Queuert) -> None:
    @app.job
    def count(job: RunningJob[None]) -> int:
        return 1 + sum(blocker.output for blocker in job.blockers)

    chain = app.start_chain(count)
    for _ in range(60):
        chain = app.start_chain(count, blockers=[chain])
    assert app.drain(timeout=30) == 61
    assert app.wait_for(chain, timeout=5).output == 61


def test_a_blocked_job_keeps_the_time_it_was_scheduled_for(app: Queuert, number: Any, gather: Any) -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    part = app.start_chain(number, 1)
    chain = app.start_chain(gather, blockers=[part], at=tomorrow)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert job.status == "pending"
    assert abs(job.scheduled_at - tomorrow) < timedelta(seconds=1)


def test_unblocking_raises_a_past_time_to_now(app: Queuert, number: Any, gather: Any) -> None:
    part = app.start_chain(number, 1)
    chain = app.start_chain(gather, blockers=[part])
    before = app.get_job(chain.id)
    app.drain(types=["number"])
    after = app.get_job(chain.id)
    assert before is not None
    assert after is not None
    assert after.scheduled_at > before.scheduled_at


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_failed_or_cancelled_blocker_strands_and_a_retry_frees(app: Queuert, number: Any, gather: Any, ending: str) -> None:
    part, other = app.start_chain(number, 1), app.start_chain(number, 2)
    chain = app.start_chain(gather, blockers=[part, other])
    if ending == "failed":

        @app.job
        def broken(job: RunningJob[None]) -> None:
            job.fail("PAYMENT:DECLINED")

        bad = app.start_chain(broken)
        chain = app.start_chain(gather, blockers=[part, bad])
        app.drain(types=["broken"])
    else:
        app.cancel_chain(part.id)
        bad = part
    assert status(app, chain) == "blocked"
    assert app.stats().stranded == 1
    app.retry_chain(bad.id)
    assert app.stats().stranded == 0
    with app.complete_chain(bad.id) as tail:
        tail.finish(None if ending == "failed" else 9)
    app.drain()
    assert status(app, chain) == "completed"


def test_a_blocker_that_closed_as_failed_before_blocks_until_it_is_retried(app: Queuert, number: Any, gather: Any) -> None:
    part = app.cancel_chain(app.start_chain(number, 1).id)
    chain = app.start_chain(gather, blockers=[part])
    assert chain.status == "blocked"
    assert app.stats().stranded == 1
    app.retry_chain(part.id)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == [1]


def test_a_wrong_list_of_blockers_is_refused(app: Queuert, number: Any, gather: Any) -> None:
    part = app.start_chain(number, 1)
    unknown = "0190a0b0-0000-7000-8000-000000000009"
    with refused("invalid_blockers"):
        app.start_chain(gather, blockers=[part, part.id.upper()])
    with pytest.raises(ChainNotFoundError) as raised:
        app.start_chain(gather, blockers=[part, unknown])
    assert raised.value.chain_id == unknown
    with refused("invalid_blockers"):
        app.start_chain(gather, id=unknown, blockers=[unknown])
    for wrong in (part, part.id, 5):
        with pytest.raises(TypeError):
            app.start_chain(gather, blockers=wrong)
    assert [chain.id for chain in app.list_chains()] == [part.id]


def test_the_id_of_a_continuation_cannot_block(app: Queuert, gather: Any) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second")

    app.declare("second", entry=False)
    chain = app.start_chain(first)
    app.drain()
    found = app.get_chain(chain.id)
    assert found is not None
    with pytest.raises(ChainNotFoundError):
        app.start_chain(gather, blockers=[found.tail_id])


def test_a_chain_cannot_wait_for_itself_directly_or_through_others(app: Queuert, gather: Any) -> None:
    @app.job(max_attempts=1)
    def first(job: RunningJob[str]) -> Continuation:
        if job.input == "directly":
            return job.continue_with(gather, blockers=[job.chain_id])
        waits_for_me = app.start_chain(gather, blockers=[job.chain_id])
        further = app.start_chain(gather, blockers=[waits_for_me])
        return job.continue_with(gather, blockers=[further])

    for how in ("directly", "through others"):
        chain = app.start_chain(first, how)
        app.drain(types=["first"])
        job = app.get_job(chain.id)
        assert job is not None
        assert job.status == "failed"
        assert "wait for" in str(job.last_attempt_error)
        with app.complete_chain(app.retry_chain(chain.id).id) as tail, refused("invalid_blockers"):
            tail.continue_with(gather, blockers=[chain])


def test_blocked_jobs_are_listed_for_as_long_as_they_are_blocked_by_it(app: Queuert, number: Any, gather: Any) -> None:
    first, second = app.start_chain(number, 1), app.start_chain(number, 2)
    both = app.start_chain(gather, blockers=[first, second])
    one = app.start_chain(gather, blockers=[second])
    assert [job.id for job in app.list_blocked_jobs(first.id)] == [both.id]
    assert [job.id for job in app.list_blocked_jobs(second.id, order="asc")] == [both.id, one.id]
    with app.complete_chain(first.id) as tail:
        tail.finish(1)
    assert app.list_blocked_jobs(first.id).items == []
    assert [job.id for job in app.list_blocked_jobs(second.id)] == [one.id, both.id]
    app.cancel_chain(one.id)
    assert [job.id for job in app.list_blocked_jobs(second.id)] == [both.id]
    with pytest.raises(ChainNotFoundError):
        app.list_blocked_jobs("0190a0b0-0000-7000-8000-000000000009")


def test_the_blockers_of_an_unknown_job_are_an_error(app: Queuert, number: Any) -> None:
    with pytest.raises(JobNotFoundError):
        app.get_job_blockers("0190a0b0-0000-7000-8000-000000000009")
    assert app.get_job_blockers(app.start_chain(number, 1).id) == []


def test_connected_chains_are_reached_in_both_directions_and_through_others(app: Queuert, number: Any, gather: Any) -> None:
    a, b = app.start_chain(number, 1), app.start_chain(number, 2)
    middle = app.start_chain(gather, blockers=[a, b])
    top = app.start_chain(gather, blockers=[middle])
    sibling = app.start_chain(gather, blockers=[b])
    lonely = app.start_chain(number, 3)
    everything = {chain.id for chain in (a, b, middle, top, sibling)}
    for chain in (a, b, middle, top, sibling):
        assert {other.id for other in app.connected_chains(chain.id)} == everything - {chain.id}
    assert app.connected_chains(lonely.id) == []
    app.drain()
    assert {other.id for other in app.connected_chains(a.id)} == everything - {a.id}, "links stay after unblocking"
    with pytest.raises(ChainNotFoundError):
        app.connected_chains("0190a0b0-0000-7000-8000-000000000009")


def test_root_only_leaves_out_what_any_job_names_as_a_blocker(app: Queuert, number: Any, gather: Any) -> None:
    part, lonely = app.start_chain(number, 1), app.start_chain(number, 2)
    chain = app.start_chain(gather, blockers=[part])
    assert {c.id for c in app.list_chains(root_only=True)} == {lonely.id, chain.id}
    app.drain()
    assert {c.id for c in app.list_chains(root_only=True)} == {lonely.id, chain.id}
    assert {c.id for c in app.list_chains(root_only=True, chain_ids=[part, chain])} == {chain.id}


def test_a_blocker_that_is_running_blocks_and_frees_when_it_ends(app: Queuert, gather: Any) -> None:
    with held(app) as running:
        chain = app.start_chain(gather, blockers=[running.chain])
        assert chain.status == "blocked"
        running.let_go()
        assert status(app, chain) == "pending"
    app.drain()
    assert app.wait_for(chain, timeout=5).output == ["by the handler"]


def test_a_blocker_whose_continuation_is_open_still_blocks(app: Queuert, gather: Any) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second")

    app.declare("second", entry=False)
    open_chain = app.start_chain(first)
    app.drain()
    chain = app.start_chain(gather, blockers=[open_chain])
    assert chain.status == "blocked"
    with app.complete_chain(open_chain.id) as tail:
        tail.finish("late")
    app.drain()
    assert app.wait_for(chain, timeout=5).output == ["late"]


def test_a_blocker_that_is_deleted_at_that_moment_is_not_found(app: Queuert, number: Any, gather: Any) -> None:
    part = app.start_chain(number, 1)
    errors: list[Exception] = []

    def start() -> None:
        try:
            app.start_chain(gather, blockers=[part])
        except Exception as error:
            errors.append(error)

    starting = threading.Thread(target=start, daemon=True)
    with app.transaction() as tx:
        app.delete_chain(part.id, conn=tx)
        starting.start()
        starting.join(0.3)
        assert starting.is_alive(), "it waits for the deletion to be decided"
    starting.join(10)
    assert [(type(error), getattr(error, "chain_id", None)) for error in errors] == [(ChainNotFoundError, part.id)]
    assert app.list_chains().items == []

"""Completing a chain without a worker: approvals, webhooks, and jobs that somebody else does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from support import found
from support.handlers import held
from support.refusals import refused

from queuert import (
    Chain,
    ChainNotFoundError,
    Continuation,
    DuplicateJobIdError,
    JobAlreadyCompletedError,
    JobStateError,
    JobTypeMismatchError,
    Queuert,
    RunningJob,
    Status,
    TransactionRequiredError,
)

UNKNOWN = "0190a0b0-0000-7000-8000-000000000009"


@dataclass
class Decision:
    approved: bool


@pytest.fixture(autouse=True)
def _types(app: Queuert) -> None:
    app.declare("approval", output=Decision, continues_with=["ship"])
    app.declare("ship", entry=False, input=int)
    app.declare("work")


def get(app: Queuert, chain: Chain) -> Chain:
    found = app.get_chain(chain.id)
    assert found is not None
    return found


def test_a_pending_chain_is_finished_with_an_output(app: Queuert) -> None:
    chain = app.start_chain("approval", {"order": 7})
    with app.complete_chain(chain.id) as job:
        assert (job.id, job.status, job.input, job.type_name) == (chain.id, Status.PENDING, {"order": 7}, "approval")
        job.finish(Decision(True))
    done = app.wait_for(chain, timeout=5)
    assert done.output == Decision(True)
    tail = app.get_job(chain.id)
    assert tail is not None
    assert (tail.status, tail.completed_by, tail.attempt) == (Status.COMPLETED, None, 0)
    assert tail.completed_at is not None
    assert app.attempts(chain.id) == [], "nothing was tried"


def test_a_pending_chain_is_continued(app: Queuert) -> None:
    chain = app.start_chain("approval", priority=4)
    with app.complete_chain(chain.id) as job:
        job.continue_with("ship", 7)
    found = get(app, chain)
    assert (found.status, found.tail_type_name) == (Status.PENDING, "ship")
    tail = app.get_job(found.tail_id)
    assert tail is not None
    assert (tail.input, tail.priority, tail.chain_index) == (7, 4, 1)
    with app.complete_chain(chain.id) as job:
        assert job.type_name == "ship", "the tail"
        job.finish("sent")
    assert get(app, chain).output == "sent"


def test_reading_only_changes_nothing(app: Queuert) -> None:
    chain = app.start_chain("approval")
    with app.complete_chain(chain.id) as job:
        assert job.status == "pending"
    assert get(app, chain) == chain


def make(app: Queuert, state: str) -> Chain:
    """A chain in a state."""
    if state == "failed":

        @app.job
        def broken(job: RunningJob[None]) -> None:
            job.fail("NO:GOOD")

        chain = app.start_chain(broken)
        app.drain()
        return chain
    chain = app.start_chain("work")
    if state == "blocked":
        return app.start_chain("work", blockers=[chain])
    if state == "completed":
        with app.complete_chain(chain.id) as job:
            job.finish(1)
    if state == "cancelled":
        app.cancel_chain(chain.id)
    return chain


@pytest.mark.parametrize("state", ["blocked", "cancelled", "completed"])
def test_entering_works_in_every_state_and_finishing_in_three(app: Queuert, state: str) -> None:
    chain = make(app, state)
    before = get(app, chain)
    error: Any = JobAlreadyCompletedError if state == "completed" else JobStateError
    with app.complete_chain(chain.id) as job:
        assert job.status == state
        acts: list[Callable[[], None]] = [lambda: job.finish(2), lambda: job.continue_with("work")]
        for act in acts:
            with pytest.raises(error) as raised:
                act()
            assert raised.value.job_id == chain.id
    if state != "completed":
        assert raised.value.status == state
    assert get(app, chain) == before


def test_finishing_twice_is_an_error(app: Queuert) -> None:
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as job:
        job.finish(1)
        for again in (lambda: job.finish(2), lambda: job.continue_with("work")):
            with pytest.raises(JobAlreadyCompletedError):
                again()
    assert get(app, chain).output == 1


def test_output_and_continuation_are_validated_and_the_block_stays_usable(app: Queuert) -> None:
    chain = app.start_chain("approval")
    taken = app.start_chain("work")
    with app.complete_chain(chain.id) as job:
        with refused("invalid_output"):
            job.finish("yes")
        with refused("invalid_output"):
            job.finish({1, 2})
        with refused("invalid_continuation"):
            job.continue_with("work")
        with refused("invalid_input"):
            job.continue_with("ship", "seven")
        with pytest.raises(ChainNotFoundError):
            job.continue_with("ship", 7, blockers=[UNKNOWN])
        with pytest.raises(DuplicateJobIdError):
            job.continue_with("ship", 7, id=taken.id)
        job.continue_with("ship", 7)
    assert get(app, chain).tail_type_name == "ship"


def test_an_exception_rolls_the_completion_back(app: Queuert) -> None:
    chain = app.start_chain("work")
    with suppress(ZeroDivisionError), app.complete_chain(chain.id) as job:
        job.finish(1)
        raise ZeroDivisionError
    assert get(app, chain) == chain


def test_a_completion_is_part_of_the_users_transaction(app: Queuert) -> None:
    chain = app.start_chain("work")
    with suppress(ZeroDivisionError), app.transaction() as tx:
        with app.complete_chain(chain.id, conn=tx) as job:
            assert job.conn is tx
            job.finish(1)
        assert found(app.get_chain(chain.id, conn=tx)).status == "completed"
        raise ZeroDivisionError
    assert get(app, chain) == chain
    with app.transaction() as tx, app.complete_chain(chain.id, conn=tx) as job:
        job.finish(1)
    assert get(app, chain).output == 1


def test_other_writes_can_go_with_it(app: Queuert) -> None:
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as job:
        job.finish(1)
        following = app.start_chain("work", 2, conn=job.conn)
    assert get(app, following).input == 2


def test_the_type_is_the_chains(app: Queuert) -> None:
    chain = app.start_chain("approval")
    with app.complete_chain(chain.id, type_name="approval") as job:
        job.continue_with("ship", 1)
    with app.complete_chain(chain.id, type_name="approval") as job:
        assert job.type_name == "ship"
    for wrong in ("ship", "work"):
        with pytest.raises(JobTypeMismatchError) as raised, app.complete_chain(chain.id, type_name=wrong):
            raise AssertionError
        assert (raised.value.expected, raised.value.actual) == (wrong, "approval")


def test_a_job_type_names_its_type_too(app: Queuert) -> None:
    approval = app.types.get("approval")
    chain = app.start_chain(approval)
    with app.complete_chain(chain.id, type_name=approval) as job:
        assert job.status == "pending"


def test_an_unknown_chain_or_the_id_of_a_continuation_is_not_found(app: Queuert) -> None:
    chain = app.start_chain("approval")
    with app.complete_chain(chain.id) as job:
        job.continue_with("ship", 1)
    for missing in (UNKNOWN, get(app, chain).tail_id):
        with pytest.raises(ChainNotFoundError), app.complete_chain(missing):
            raise AssertionError


def test_what_waits_for_it_is_freed(app: Queuert) -> None:
    chain = app.start_chain("work")
    waiting = app.start_chain("work", blockers=[chain])
    with app.complete_chain(chain.id) as job:
        job.finish("output")
    assert get(app, waiting).status == "pending"
    assert [blocker.output for blocker in app.get_job_blockers(waiting.id)] == ["output"]


@pytest.mark.parametrize("ending", ["finish", "continue_with"])
def test_a_job_that_a_handler_holds_at_that_moment_can_be_completed(app: Queuert, ending: str) -> None:
    with held(app) as running:
        with app.complete_chain(running.chain.id) as job:
            assert job.status == "running"
            worker = job.leased_by
            job.finish("from outside") if ending == "finish" else job.continue_with("work", 5)
        row = app.get_job(running.chain.id)
        assert row is not None
        assert (row.status, row.completed_by, row.leased_by, row.leased_until) == (Status.COMPLETED, None, None, None)
        (attempt,) = app.attempts(running.chain.id)
        assert (attempt.outcome, attempt.worker_id, attempt.attempt) == ("cancelled", worker, 1)
        after = running.let_go()
    assert after is not None
    assert after.output == ("from outside" if ending == "finish" else None)
    assert len(app.attempts(running.chain.id)) == 1
    assert len(app.list_chain_jobs(running.chain.id).items) == (1 if ending == "finish" else 2)


def test_a_handler_that_completes_in_its_own_transaction_meanwhile_changes_nothing(app: Queuert) -> None:
    chain_ids: list[str] = []

    @app.job
    def slow(job: RunningJob[None]) -> str:
        with app.complete_chain(job.chain_id) as tail:
            tail.finish("from outside")
        with job.complete() as tx:
            chain_ids.append(app.start_chain("work", conn=tx).id)
            return "from inside"

    chain = app.start_chain(slow)
    app.drain()
    assert get(app, chain).output == "from outside"
    assert [app.get_chain(chain_id) for chain_id in chain_ids] == [None] * len(chain_ids)


def test_calls_without_conn_inside_the_block_are_refused_within_a_moment(app: Queuert) -> None:
    chain = app.start_chain("work")
    started = time.monotonic()
    with app.complete_chain(chain.id) as job:
        for call in calls_without_conn(app, chain):
            with pytest.raises(TransactionRequiredError):
                call()
        job.finish("still usable")
    assert time.monotonic() - started < 5
    assert get(app, chain).output == "still usable"


def calls_without_conn(app: Queuert, chain: Chain) -> list[Callable[[], Any]]:
    def enter(manager: Any) -> None:
        with manager:
            raise AssertionError

    return [
        lambda: app.start_chain("work"),
        lambda: app.cancel_chain(chain.id),
        lambda: app.retry_chain(chain.id),
        lambda: app.trigger_job(chain.id),
        lambda: app.delete_chain(chain.id),
        lambda: app.get_chain(chain.id),
        lambda: app.get_job(chain.id),
        lambda: app.get_job_blockers(chain.id),
        lambda: app.connected_chains(chain.id),
        lambda: app.list_chains(),
        lambda: app.list_jobs(),
        lambda: app.list_chain_jobs(chain.id),
        lambda: app.list_blocked_jobs(chain.id),
        lambda: app.wait_for(chain, timeout=1),
        lambda: app.attempts(chain.id),
        lambda: app.timeline(chain.id),
        lambda: app.stats(),
        lambda: app.cleanup(),
        lambda: app.vacuum(),
        lambda: app.migration_status(),
        lambda: app.migrate(),
        lambda: app.drain(),
        lambda: enter(app.transaction()),
        lambda: enter(app.complete_chain(chain.id)),
    ]


def test_so_it_is_inside_a_transaction(app: Queuert) -> None:
    chain = app.start_chain("work")
    started = time.monotonic()
    with app.transaction() as tx:
        for call in calls_without_conn(app, chain):
            with pytest.raises(TransactionRequiredError):
                call()
        kept = app.start_chain("work", "kept", conn=tx)
    assert time.monotonic() - started < 5
    assert get(app, kept).input == "kept"


def test_a_continuation_of_a_continuation(app: Queuert) -> None:
    @app.job
    def start(job: RunningJob[None]) -> Continuation:
        return job.continue_with("approval")

    chain = app.start_chain(start)
    app.drain()
    with app.complete_chain(chain.id, type_name="start") as job:
        job.finish(Decision(False))
    assert get(app, chain).output == Decision(False)

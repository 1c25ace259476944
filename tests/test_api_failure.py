"""What follows when a job fails for good: `on_failed`, joins that wait until their blockers have closed, finishing by hand."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from support import eventually
from support.racing import together

from queuert import (
    Backoff,
    Chain,
    Continuation,
    Failure,
    Job,
    JobAlreadyCompletedError,
    JobStateError,
    NewChain,
    Queuert,
    RunningJob,
    UnknownJobTypeError,
)

NOW = Backoff(initial=0, jitter=0)


@dataclass
class Order:
    order_id: int


@pytest.fixture
def failures(app: Queuert) -> list[Failure]:
    """What `clean-up` was told, in order. It is there for every test."""
    told: list[Failure] = []

    @app.job("clean-up")
    def clean_up(job: RunningJob[Failure]) -> None:
        told.append(job.input)

    @app.job("work", on_failed="clean-up", max_attempts=2, backoff=NOW)
    def work(job: RunningJob[Order]) -> int:
        if job.input.order_id < 0:
            raise ValueError("no such order")
        if job.input.order_id == 0:
            job.fail("ORDER:EMPTY", "nothing in it")
        return job.input.order_id

    return told


def job_of(app: Queuert, chain: Chain) -> Job:
    found = app.get_job(chain.id)
    assert found is not None
    return found


def status(app: Queuert, chain: Chain) -> str:
    found = app.get_chain(chain.id)
    assert found is not None
    return str(found.status)


def test_a_job_that_used_up_its_attempts_starts_the_chain_of_its_type(app: Queuert, failures: list[Failure]) -> None:
    chain = app.start_chain("work", Order(-1))
    app.drain()
    assert failures == [
        Failure(chain.id, "work", chain.id, "work", {"order_id": -1}, "INTERNAL:ValueError", failures[0].error_detail, 2)
    ]
    assert "no such order" in str(failures[0].error_detail)
    started = app.get_chain(str(job_of(app, chain).failure_chain_id))
    assert started is not None
    assert started.type_name == "clean-up"


def test_a_job_that_fails_by_decision_starts_it_too(app: Queuert, failures: list[Failure]) -> None:
    app.start_chains([NewChain("work", Order(0)), NewChain("work", Order(7))])
    app.drain()
    assert [(f.error_code, f.error_detail, f.attempts) for f in failures] == [("ORDER:EMPTY", "nothing in it", 1)]


def test_an_input_that_does_not_decode_starts_it_too(app: Queuert, failures: list[Failure]) -> None:
    chain = app.start_chain("work", Order(3))
    with app.transaction() as tx:
        place = "?" if app.dialect == "sqlite" else "%s"
        tx.execute(f"UPDATE queuert_job SET input = '[1]' WHERE id = {place}", (chain.id,))
    app.drain()
    assert [(f.input, f.error_code, f.attempts) for f in failures] == [([1], "INVALID_INPUT:SCHEMA_MISMATCH", 1)]


def test_lost_workers_start_it_where_the_type_is_unknown(app: Queuert, failures: list[Failure], target: str) -> None:
    chain = app.start_chain("work", Order(5), max_attempts=1)
    with app.transaction() as tx:
        past = "'2000-01-01T00:00:00.000000Z'"
        tx.execute(
            "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'gone', lease_token = 1, "
            f"leased_until = {past}, last_attempt_at = {past}"
        )
    if ":memory:" in target:
        assert app.drain() == 1
    else:
        with Queuert(target) as stranger:  # it knows neither of the types
            assert stranger.drain() == 0
        assert app.drain() == 1
    assert status(app, chain) == "failed"
    assert [(f.job_id, f.error_code, f.attempts) for f in failures] == [(chain.id, "WORKER:LOST", 1)]


def test_a_continuation_has_the_chain_of_its_own_type(app: Queuert, failures: list[Failure]) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("work", Order(0))

    chain = app.start_chain(first)
    app.drain()
    assert [(f.chain_id, f.chain_type_name, f.type_name) for f in failures] == [(chain.id, "first", "work")]
    assert failures[0].job_id != chain.id


def test_a_chain_that_fails_again_after_a_retry_starts_another(app: Queuert, failures: list[Failure]) -> None:
    chain = app.start_chain("work", Order(-1))
    app.drain()
    first = job_of(app, chain).failure_chain_id
    app.retry_chain(chain)
    assert job_of(app, chain).failure_chain_id is None
    app.drain()
    assert [f.attempts for f in failures] == [2, 2]
    assert job_of(app, chain).failure_chain_id not in (None, first)


def test_cancelling_starts_nothing(app: Queuert, failures: list[Failure]) -> None:
    app.cancel_chain(app.start_chain("work", Order(-1)))
    app.drain()
    assert failures == []


def test_workers_start_it_as_well(app: Queuert, failures: list[Failure]) -> None:
    chains = app.start_chains([NewChain("work", Order(-n)) for n in range(20)])
    with app.worker(concurrency=4):
        eventually(lambda: len(failures) == 20)
    assert {f.job_id for f in failures} == {chain.id for chain in chains}


def test_a_chain_that_cannot_be_started_does_not_keep_a_job_from_failing(app: Queuert) -> None:
    app.declare("gone")

    @app.job("work", on_failed="gone")
    def work(job: RunningJob[Any]) -> None:
        job.fail("A:B")

    chain = app.start_chain("work")
    with app.transaction() as tx:  # by a release that took the type away
        tx.execute("UPDATE queuert_job SET on_failed = 'nobody knows this one'")
    app.drain()
    assert status(app, chain) == "failed"
    started = app.get_chain(str(job_of(app, chain).failure_chain_id))
    assert started is not None
    assert (started.type_name, started.status) == ("nobody knows this one", "pending")


# What may be named


def test_a_type_cannot_name_itself(app: Queuert) -> None:
    with pytest.raises(ValueError, match="cannot name itself"):

        @app.job("work", on_failed="work")
        def work(job: RunningJob[Failure]) -> None: ...


@pytest.mark.parametrize("name", [3, ":x", ""])
def test_what_is_no_type_is_refused(app: Queuert, name: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        app.declare("work", on_failed=name)


def test_an_unknown_type_is_refused_when_a_worker_starts(app: Queuert) -> None:
    app.declare("work", on_failed="nowhere")
    worker = app.worker()
    with pytest.raises(UnknownJobTypeError):
        worker.start()
    with pytest.raises(UnknownJobTypeError):
        app.drain()


def test_a_type_that_does_not_fit_is_refused(app: Queuert) -> None:
    misfits = [
        app.declare("order", input=Order),
        app.declare("inner", entry=False),
        app.declare("join", blockers=["order"]),
    ]
    for misfit in misfits:
        with pytest.raises(ValueError, match="on_failed"):
            app.declare(f"after-{misfit.name}", on_failed=misfit)
    app.declare("late", on_failed="order")
    with pytest.raises(ValueError, match=r"must be a queuert\.Failure"):
        app.worker().start()


def test_a_record_of_ones_own_may_take_the_failure(app: Queuert) -> None:
    @dataclass
    class OrderFailed:
        chain_id: str
        chain_type_name: str
        job_id: str
        type_name: str
        input: Order
        error_code: str | None
        error_detail: str | None
        attempts: int

    told: list[int] = []

    @app.job("refund")
    def refund(job: RunningJob[OrderFailed]) -> None:
        told.append(job.input.input.order_id)

    @app.job("pay", on_failed=refund)
    def pay(job: RunningJob[Order]) -> None:
        job.fail("CARD:DECLINED")

    app.start_chain(pay, Order(3))
    app.drain()
    assert told == [3]


# Joins that wait until their blockers have closed


@pytest.fixture
def join(app: Queuert, failures: list[Failure]) -> list[list[str]]:
    """The states of the blockers that `join` saw, each time it ran."""
    seen: list[list[str]] = []

    @app.job("join")
    def join(job: RunningJob[None]) -> list[str]:
        seen.append([str(blocker.status) for blocker in job.blockers])
        return seen[-1]

    return seen


def test_a_join_until_closed_starts_however_its_blockers_ended(app: Queuert, join: list[list[str]]) -> None:
    good, bad, dropped = app.start_chains([NewChain("work", Order(1)), NewChain("work", Order(0)), NewChain("work", Order(2))])
    chain = app.start_chain("join", blockers=[good, bad, dropped], blockers_until="closed")
    assert chain.status == "blocked"
    assert job_of(app, chain).blockers_until == "closed"
    app.cancel_chain(dropped)
    assert status(app, chain) == "blocked"
    app.drain()
    assert join == [["completed", "failed", "cancelled"]]
    assert app.stats().stranded == 0


def test_a_join_until_completed_still_waits_for_a_failed_one(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    chain = app.start_chain("join", blockers=[bad])
    app.drain()
    assert (status(app, chain), join, app.stats().stranded) == ("blocked", [], 1)


def test_blockers_that_have_closed_already_do_not_block(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    app.drain()
    assert app.start_chain("join", blockers=[bad], blockers_until="closed").status == "pending"
    assert app.start_chain("join", blockers=[bad]).status == "blocked"


def test_a_blocker_that_is_retried_while_the_join_waits_is_open_again(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    other = app.start_chain("work", Order(1), after=3600)
    chain = app.start_chain("join", blockers=[bad, other], blockers_until="closed")
    app.drain()
    app.retry_chain(bad)
    app.trigger_job(other.id)
    assert app.drain(types=["join"]) == 0
    with app.complete_chain(other) as tail:
        tail.finish(1)
    assert status(app, chain) == "blocked"
    app.drain()
    assert join == [["failed", "completed"]]


def test_a_join_that_was_freed_runs_once_though_a_blocker_is_retried(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    chain = app.start_chain("join", blockers=[bad], blockers_until="closed")
    app.drain(types=["work"])
    app.retry_chain(bad)
    app.drain()
    assert len(join) == 1
    assert status(app, chain) == "completed"
    assert [entry.event for entry in app.timeline(chain.id)].count("UNBLOCKED") == 1


def test_a_continuation_may_wait_until_its_blockers_have_closed(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0), after=3600)

    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("join", blockers=[bad], blockers_until="closed")

    chain = app.start_chain(first)
    app.drain()
    assert status(app, chain) == "blocked"
    app.trigger_job(bad.id)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == ["failed"]


@pytest.mark.parametrize("value", ["open", None, 3])
def test_no_other_word_is_taken(app: Queuert, join: list[list[str]], value: Any) -> None:
    with pytest.raises(ValueError, match="blockers_until"):
        app.start_chain("join", blockers_until=value)


def test_joins_that_are_made_while_their_blockers_close_are_never_stranded(app: Queuert, join: list[list[str]]) -> None:
    """Blockers fail, complete and are cancelled at the very moment at which they are named."""
    rounds, dice = 30, random.Random(4)
    for _ in range(rounds):
        parts = app.start_chains([NewChain("work", Order(dice.choice((0, 1, -1)))) for _ in range(3)])
        doomed = app.start_chain("work", Order(1), after=3600)

        def name(parts: list[Chain] = parts, doomed: Chain = doomed) -> None:
            app.start_chain("join", blockers=[*parts, doomed], blockers_until="closed")

        def cancel(doomed: Chain = doomed) -> None:
            app.cancel_chain(doomed)

        together(name, cancel, app.drain)
    app.drain()
    assert len(join) == rounds
    assert not app.list_jobs(statuses=["blocked"]).items


def test_two_blockers_that_close_at_once_free_their_join(app: Queuert, join: list[list[str]]) -> None:
    for _ in range(20):
        one, two = app.start_chains([NewChain("work", Order(1), after=3600), NewChain("work", Order(1), after=3600)])
        chain = app.start_chain("join", blockers=[one, two], blockers_until="closed")
        together(lambda one=one: app.cancel_chain(one), lambda two=two: app.cancel_chain(two))
        assert status(app, chain) == "pending"


def test_what_an_older_release_left_undone_is_mended(app: Queuert, join: list[list[str]], failures: list[Failure]) -> None:
    """Its workers write `failed` and nothing else; its retries do not count up."""
    one, two = app.start_chains([NewChain("work", Order(0)), NewChain("work", Order(1), after=3600)])
    chain = app.start_chain("join", blockers=[one, two], blockers_until="closed")
    place = "?" if app.dialect == "sqlite" else "%s"
    with app.transaction() as tx:
        tx.execute(f"UPDATE queuert_job SET status = 'failed', error_code = 'OLD:ONE' WHERE id = {place}", (one.id,))
    app.cancel_chain(two)
    assert status(app, chain) == "blocked"
    with app.worker():
        eventually(lambda: status(app, chain) == "completed" and failures, timeout=20)
    assert [(f.job_id, f.error_code) for f in failures] == [(one.id, "OLD:ONE")]
    assert join == [["failed", "cancelled"]]
    # A blocker that it retried is not counted twice.
    one, two = app.start_chains([NewChain("work", Order(0)), NewChain("work", Order(1), after=3600)])
    chain = app.start_chain("join", blockers=[one, two], blockers_until="closed")
    app.drain()
    with app.transaction() as tx:
        tx.execute(f"UPDATE queuert_job SET status = 'pending', attempts_forgiven = attempt WHERE id = {place}", (one.id,))
    app.drain()
    assert status(app, chain) == "blocked"
    app.cancel_chain(two)
    assert status(app, chain) == "pending"


# Finishing a failed chain by hand


def test_a_failed_chain_can_be_finished_by_hand(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    waiting = app.start_chain("join", blockers=[bad])
    closed = app.start_chain("join", blockers=[bad], blockers_until="closed")
    app.drain()
    assert join == [["failed"]]
    with app.complete_chain(bad) as tail:
        assert tail.status == "failed"
        tail.finish(3)
    job = job_of(app, bad)
    assert (job.status, job.output, job.completed_by, job.error_code) == ("completed", 3, None, None)
    app.drain()
    assert join == [["failed"], ["completed"]]
    assert (status(app, waiting), status(app, closed)) == ("completed", "completed")
    with app.complete_chain(bad) as tail, pytest.raises(JobAlreadyCompletedError):
        tail.finish(4)


def test_a_failed_chain_can_go_on_by_hand(app: Queuert, join: list[list[str]]) -> None:
    bad = app.start_chain("work", Order(0))
    later = app.start_chain("work", Order(1), after=3600)
    closed = app.start_chain("join", blockers=[bad, later], blockers_until="closed")
    app.drain()
    with app.complete_chain(bad) as tail:
        tail.continue_with("work", Order(9))
    app.cancel_chain(later)
    assert status(app, closed) == "blocked"  # open again
    app.drain()
    found = app.get_chain(bad.id)
    assert found is not None
    assert found.output == 9
    assert join == [["completed", "cancelled"]]


def test_a_cancelled_chain_cannot_be_finished(app: Queuert, failures: list[Failure]) -> None:
    chain = app.cancel_chain(app.start_chain("work", Order(1)))
    with app.complete_chain(chain) as tail, pytest.raises(JobStateError):
        tail.finish(1)


def test_a_failure_and_its_chain_are_one_transaction(app: Queuert, failures: list[Failure]) -> None:
    """Nobody ever sees a failed job without its chain."""
    chains = app.start_chains([NewChain("work", Order(0)) for _ in range(50)])
    stop = threading.Event()
    torn: list[str] = []

    def look() -> None:
        while not stop.is_set():
            for job in app.list_jobs(types=["work"], statuses=["failed"], limit=100):
                if job.failure_chain_id is None or app.get_chain(job.failure_chain_id) is None:
                    torn.append(job.id)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with app.worker(concurrency=4):
            eventually(lambda: len(failures) == len(chains))
    finally:
        stop.set()
        watcher.join()
    assert torn == []

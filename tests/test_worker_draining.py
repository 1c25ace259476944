"""drain(): everything due, in the calling thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support import found
from support.inside import context_of

from queuert import (
    Backoff,
    Lease,
    NewChain,
    Queuert,
    RunningJob,
    TransactionRequiredError,
    UnknownJobTypeError,
)


def test_it_runs_everything_due_until_nothing_is(app: Queuert) -> None:
    threads = set()

    @app.job("step")
    def step(job: RunningJob[int]) -> Any:
        threads.add(threading.current_thread())
        return job.continue_with("step", job.input - 1) if job.input else "end"

    chains = app.start_chains([NewChain("step", n) for n in range(5)])
    late = app.start_chain("step", 0, after=3600)
    assert app.drain() == 5 + 4 + 3 + 2 + 1
    assert [found(app.get_chain(chain.id)).output for chain in chains] == ["end"] * 5
    assert found(app.get_chain(late.id)).status == "pending"
    assert threads == {threading.current_thread()}
    assert app.drain() == 0


def test_it_counts_failed_attempts_and_does_not_wait_for_the_backoff(app: Queuert) -> None:
    @app.job("failing")
    def failing(job: RunningJob[None]) -> None:
        raise RuntimeError

    @app.job("quick", backoff=Backoff(initial=0), max_attempts=3)
    def quick(job: RunningJob[None]) -> None:
        raise RuntimeError

    slow, fast = app.start_chain(failing), app.start_chain(quick)
    started = time.monotonic()
    assert app.drain() == 4
    assert time.monotonic() - started < 5
    assert found(app.get_chain(slow.id)).status == "pending"
    assert found(app.get_chain(fast.id)).status == "failed"


def test_what_unblocks_is_run_too(app: Queuert) -> None:
    app.job("part")(lambda job: job.input)

    @app.job("total")
    def total(job: RunningJob[None]) -> int:
        return sum(chain.output for chain in job.blockers)

    parts = [app.start_chain("part", n) for n in range(10)]
    chain = app.start_chain("total", blockers=parts)
    assert app.drain() == 11
    assert found(app.get_chain(chain.id)).output == 45


def test_only_the_types_asked_for_and_those_with_a_handler(app: Queuert) -> None:
    app.job("mine")(lambda job: None)
    app.job("yours")(lambda job: None)
    app.declare("nobodys")
    for name in ("mine", "yours", "nobodys"):
        app.start_chain(name)
    assert app.drain(types=["mine"]) == 1
    assert app.drain(types=["nobodys"]) == 0
    assert app.drain() == 1
    with pytest.raises(UnknownJobTypeError):
        app.drain(types=["who"])
    with pytest.raises(TypeError):
        app.drain(types="mine")
    with pytest.raises(ValueError, match="timeout"):
        app.drain(timeout=-1)


def test_its_time_ends(app: Queuert) -> None:
    app.job("slow")(lambda job: job.signal.wait(0.1))  # by the clock, as its time is
    chains = [app.start_chain("slow") for _ in range(50)]
    started = time.monotonic()
    ran = app.drain(timeout=0.5)
    assert time.monotonic() - started < 3
    assert 1 <= ran < 50
    states = [app.get_job(chain.id) for chain in chains]
    assert sum(job.status == "completed" for job in states if job) == ran
    for job in states:
        assert job is not None
        if job.status != "completed":
            assert (job.status, job.attempt, job.leased_by) == ("pending", 0, None)


def test_an_interrupt_gives_everything_back(app: Queuert) -> None:
    app.job("quick")(lambda job: None)
    for _ in range(40):
        app.start_chain("quick", priority=1)

    @app.job("interrupted", max_attempts=1)
    def interrupted(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            raise KeyboardInterrupt

    chain = app.start_chain(interrupted)
    rest = [app.start_chain("quick") for _ in range(40)]
    with pytest.raises(KeyboardInterrupt):
        app.drain()
    for each in [chain, *rest]:
        job = app.get_job(each.id)
        assert job is not None
        assert (job.status, job.leased_by) == ("pending", None)
    assert app.drain() == 41
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["rescheduled", "succeeded"]


def test_it_refuses_to_run_inside_a_transaction(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    with app.transaction() as tx:
        chain = app.start_chain("job", conn=tx)
        with pytest.raises(TransactionRequiredError):
            app.drain()
    assert app.drain() == 1
    assert found(app.get_chain(chain.id)).status == "completed"


def test_suspects_and_lost_jobs_are_run_too(app: Queuert) -> None:
    app.job("job", backoff=Backoff(initial=0), lease=Lease(duration=30))(lambda job: f"attempt {job.attempt}")
    app.start_chain("job")
    context = context_of(app)
    context.database.run(
        lambda session: context.repository.claim_jobs(session, worker="dead", token=1, leases={"job": 30.0}, limit=1)
    )
    assert app.drain() == 0
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET leased_until = '2001-01-01T00:00:00.000000Z'")
    assert app.drain() == 1
    [job] = app.list_jobs().items
    assert job.output == "attempt 2"
    assert [attempt.outcome for attempt in app.attempts(job.id)] == ["lost", "succeeded"]


def test_results_are_visible_to_the_next_batch(app: Queuert) -> None:
    seen = []

    @app.job("first")
    def first(job: RunningJob[None]) -> Any:
        return job.continue_with("second")

    @app.job("second", entry=False)
    def second(job: RunningJob[None]) -> None:
        earlier = app.get_job(job.chain_id)
        assert earlier is not None
        seen.append(earlier.status)

    app.start_chain(first)
    app.drain()
    assert seen == ["completed"]


def test_a_job_keeps_its_lease_while_others_of_its_batch_run(app: Queuert) -> None:
    app.job("job", lease=Lease(duration=0.4))(lambda job: job.signal.wait(0.05))  # by the clock, as leases are
    for _ in range(30):
        app.start_chain("job")
    with app.worker(types=[app.declare("nothing")], reap_interval=0.05):
        assert app.drain(timeout=20) == 30
    outcomes = {attempt.outcome for job in app.list_jobs().items for attempt in app.attempts(job.id)}
    assert outcomes == {"succeeded"}

"""How far a chain is: what its handler tells, and what it waits for."""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Any

import pytest
from support.waiting import eventually

from queuert import Backoff, Chain, ChainNotFoundError, Job, Lease, NewChain, Progress, Queuert, RunningJob
from queuert.ids import Ids

MORE = 30
NOW = Backoff(initial=0, jitter=0)


def job_of(app: Queuert, chain: Chain) -> Job:
    found = app.get_job(chain.id)
    assert found is not None
    return found


def told(app: Queuert, chain: Chain) -> tuple[float | None, str | None]:
    job = job_of(app, chain)
    return job.progress_fraction, job.progress_message


def count_renewals(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The items of each renewal from now on, those without jobs left out."""
    repository, seen = app._context.repository, []
    renew, renew_and_sign = repository.renew_leases, repository.renew_and_sign

    def counted(session: Any, worker: str, items: Any) -> set[str]:
        seen.append(list(items))
        return renew(session, worker, items)

    def counted_with_sign(session: Any, worker: str, items: Any, sign: Any, rates: Any) -> set[str]:
        if items and repository.signs_in_one_statement:  # otherwise it goes on to the other
            seen.append(list(items))
        return renew_and_sign(session, worker, items, sign, rates)

    monkeypatch.setattr(repository, "renew_leases", counted)
    monkeypatch.setattr(repository, "renew_and_sign", counted_with_sign)
    return seen


def test_an_unknown_chain_is_an_error(app: Queuert) -> None:
    with pytest.raises(ChainNotFoundError):
        app.progress(Ids(None, None, None).new())


def test_a_chain_that_nobody_told_anything_of_is_at_its_beginning(app: Queuert) -> None:
    app.job("silent")(lambda job: None)
    chain = app.start_chain("silent")
    assert app.progress(chain) == app.progress(chain.id) == Progress(0, 0, 0, 0.0, None)
    app.drain()
    assert app.progress(chain) == Progress(0, 0, 0, 1.0, None)


def test_what_a_running_handler_tells_is_seen_long_before_its_lease_is_due(app: Queuert) -> None:
    go_on = threading.Event()

    @app.job("long", lease=Lease(3600))
    def long(job: RunningJob[None]) -> None:
        job.progress(0.25, "one of four")
        assert go_on.wait(MORE)
        job.progress(1)

    chain = app.start_chain(long)
    with app.worker():
        eventually(lambda: app.progress(chain) == Progress(0, 0, 0, 0.25, "one of four"))
        assert told(app, chain) == (0.25, "one of four")
        go_on.set()
        app.wait_for(chain, timeout=MORE)
    assert app.progress(chain) == Progress(0, 0, 0, 1.0, None)


def test_a_report_without_a_message_takes_the_last_one_away(app: Queuert) -> None:
    next_step, steps = threading.Event(), threading.Event()

    @app.job("long")
    def long(job: RunningJob[None]) -> None:
        job.progress(0.5, "half")
        assert next_step.wait(MORE)
        job.progress(0.6)
        assert steps.wait(MORE)

    chain = app.start_chain(long)
    with app.worker():
        eventually(lambda: told(app, chain) == (0.5, "half"))
        next_step.set()
        eventually(lambda: told(app, chain) == (0.6, None))
        steps.set()


def test_ten_thousand_reports_are_a_few_renewals(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    renewals = count_renewals(app, monkeypatch)
    go_on = threading.Event()

    @app.job("busy", lease=Lease(3600))
    def busy(job: RunningJob[None]) -> None:
        for number in range(10_000):
            job.progress(number / 10_000, f"{number} of 10,000")
        job.progress(0.5, "waiting")
        assert go_on.wait(MORE)

    chain = app.start_chain(busy)
    with app.worker():
        eventually(lambda: told(app, chain) == (0.5, "waiting"))
        go_on.set()
        app.wait_for(chain, timeout=MORE)
    assert len(renewals) < 10


def test_a_renewal_brings_only_what_is_new(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    renewals = count_renewals(app, monkeypatch)
    go_on = threading.Event()

    @app.job("steady", lease=Lease(duration=30, renew_every=0.05))
    def steady(job: RunningJob[None]) -> None:
        job.progress(0.5, "half")
        while not go_on.wait(0.01):
            job.progress(0.5, "half")

    chain = app.start_chain(steady)
    with app.worker() as worker:
        eventually(lambda: told(app, chain) == (0.5, "half"))
        worker.events.watch()
        worker.events.wait("renewed", count=3)
        go_on.set()
        app.wait_for(chain, timeout=MORE)
    items = [item for renewal in renewals for item in renewal]
    assert len([item for item in items if "fraction" in item]) == 1
    assert len(items) >= 3


def test_a_report_that_could_not_be_written_comes_with_the_next_renewal(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is not renewed the first time, as when somebody else has locked it."""
    repository, refused, go_on = app._context.repository, threading.Event(), threading.Event()
    renew_and_sign, renew = repository.renew_and_sign, repository.renew_leases

    def nothing_first(session: Any, worker: str, items: Any) -> set[str]:
        if items and not refused.is_set():
            refused.set()
            return set()
        return renew(session, worker, items)

    def sign_alone(session: Any, worker: str, items: Any, sign: Any, rates: Any) -> set[str]:
        renew_and_sign(session, worker, (), sign, rates)
        return repository.renew_leases(session, worker, items) if items else set()

    monkeypatch.setattr(repository, "renew_leases", nothing_first)
    monkeypatch.setattr(repository, "renew_and_sign", sign_alone)

    @app.job("long", lease=Lease(3600))
    def long(job: RunningJob[None]) -> None:
        job.progress(0.75, "nearly")
        assert go_on.wait(MORE)

    chain = app.start_chain(long)
    with app.worker():
        eventually(lambda: told(app, chain) == (0.75, "nearly"))
        go_on.set()
    assert refused.is_set()


@pytest.mark.parametrize("end", ["raise", "reschedule", "fail", "complete"])
@pytest.mark.parametrize("by", ["worker", "drain"])
def test_the_end_of_an_attempt_stores_the_last_report(app: Queuert, end: str, by: str) -> None:
    @app.job("once", backoff=Backoff(initial=1000, jitter=0))
    def once(job: RunningJob[None]) -> None:
        job.progress(0.1)
        if end == "complete":
            with job.complete():
                job.progress(0.4, "in the block")
                raise RuntimeError
        job.progress(0.4, "in the block")
        if end == "reschedule":
            job.reschedule(after=1000)
        if end == "fail":
            job.fail("NO:MORE")
        raise RuntimeError

    chain = app.start_chain(once)
    if by == "drain":
        app.drain()
    else:
        with app.worker():
            eventually(lambda: job_of(app, chain).attempt == 1 and job_of(app, chain).status != "running")
    assert app.progress(chain) == Progress(0, 0, 0, 0.4, "in the block")


def test_it_stays_over_a_retry_and_the_next_attempt_can_read_it(app: Queuert) -> None:
    seen = []

    @app.job("twice", backoff=NOW)
    def twice(job: RunningJob[None]) -> None:
        seen.append((job.progress_fraction, job.progress_message))
        if job.attempt == 1:
            job.progress(0.3, "so far")
            raise RuntimeError
        job.reschedule(after=1000)

    chain = app.start_chain(twice)
    app.drain()
    assert seen == [(None, None), (0.3, "so far")]
    assert app.progress(chain) == Progress(0, 0, 0, 0.3, "so far")


def test_a_worker_that_lost_the_job_stores_nothing(app: Queuert) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @app.job("lost", lease=Lease(3600))
    def lost(job: RunningJob[None]) -> None:
        entered.set()
        assert go_on.wait(MORE)
        job.progress(0.9, "too late")
        raise RuntimeError

    chain = app.start_chain(lost)
    with app.worker():
        assert entered.wait(MORE)
        app.cancel_chain(chain)
        go_on.set()
    assert told(app, chain) == (None, None)


def test_while_it_waits_its_blockers_count_and_failed_ones_are_not_done(app: Queuert) -> None:
    app.job("good")(lambda job: None)
    app.job("bad")(lambda job: job.fail("NO:GOOD"))
    app.job("join")(lambda job: None)
    parts = app.start_chains([NewChain("good"), NewChain("good"), NewChain("bad"), NewChain("good"), NewChain("good")])
    chain = app.start_chain("join", blockers=parts)
    assert app.progress(chain) == Progress(0, 5, 0, 0.0, None)
    app.cancel_chain(parts[3])
    app.drain(types=["bad"])
    assert app.progress(chain) == Progress(0, 5, 2, 0.0, None)
    app.drain()
    assert app.progress(chain) == Progress(3, 5, 2, 0.6, None)
    app.retry_chain(parts[3])
    app.drain(types=["good"])
    assert app.progress(chain) == Progress(4, 5, 1, 0.8, None)


def test_a_join_that_runs_tells_what_its_handler_reports(app: Queuert) -> None:
    app.job("part")(lambda job: None)

    @app.job("join")
    def join(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            job.reschedule(after=0)
        job.progress(0.5, "joining")
        job.reschedule(after=1000)

    chain = app.start_chain(join, blockers=app.start_chains([NewChain("part"), NewChain("part")]))
    app.drain(types=["part"])
    assert app.progress(chain) == Progress(2, 2, 0, 1.0, None)
    app.drain()
    assert app.progress(chain) == Progress(2, 2, 0, 0.5, "joining")


def test_a_chain_is_as_far_as_its_newest_job(app: Queuert) -> None:
    @app.job("first")
    def first(job: RunningJob[None]) -> Any:
        job.progress(0.9, "first")
        return job.continue_with("second")

    app.job("second")(lambda job: None)
    chain = app.start_chain(first)
    app.drain(types=["first"])
    assert app.progress(chain) == Progress(0, 0, 0, 0.0, None)
    app.drain()
    assert app.progress(chain).fraction == 1.0


def test_what_is_no_progress_is_refused_and_what_was_told_before_stays(app: Queuert) -> None:
    errors: list[str] = []

    @app.job("wrong")
    def wrong(job: RunningJob[None]) -> None:
        job.progress(Fraction(1, 4), "quarter\x00")  # type: ignore[arg-type]  # a number all the same
        for arguments in [(1.01,), (-0.1,), (float("nan"),), ("half",), (None,), (True,), (0.5, 7), (0.5, "x" * 1_001)]:
            with pytest.raises((TypeError, ValueError)) as raised:
                job.progress(*arguments)  # type: ignore[arg-type]
            errors.append(str(raised.value))
        job.reschedule(after=1000)

    chain = app.start_chain(wrong)
    app.drain()
    assert told(app, chain) == (0.25, "quarter")
    assert errors == [
        "progress takes a number from 0 to 1, not 1.01.",
        "progress takes a number from 0 to 1, not -0.1.",
        "progress takes a number from 0 to 1, not nan.",
        "progress takes a number from 0 to 1, not str.",
        "progress takes a number from 0 to 1, not NoneType.",
        "progress takes a number from 0 to 1, not bool.",
        "The message of progress must be a string, not int.",
        "The message of progress may have 1,000 characters, not 1,001.",
    ]

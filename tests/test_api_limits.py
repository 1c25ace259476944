"""Limits: concurrency, keys, rates, turns, strict order, throttling, and what operators set."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support import eventually

from queuert import Backoff, Continuation, Dedup, JobTypeValidationError, Limit, NewChain, Queuert, RunningJob

SLOW_POLL = 60.0


@dataclass
class Call:
    account: str | None
    number: int = 0


class Ledger:
    """Who runs at the same time: the largest overlap ever seen of each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ran: list[tuple[str, int]] = []

    @contextmanager
    def running(self, key: str, number: int = 0) -> Iterator[None]:
        with self._lock:
            self._now[key] += 1
            self.most[key] = max(self.most[key], self._now[key])
            self.ran.append((key, number))
        try:
            yield
        finally:
            with self._lock:
                self._now[key] -= 1


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def define(app: Queuert, ledger: Ledger, limit: Limit, name: str = "call", pause: float = 0.005, **options: Any) -> None:
    @app.job(name, limit=limit, **options)
    def call(job: RunningJob[Call]) -> int:
        with ledger.running(str(job.input.account), job.input.number):
            job.signal.wait(pause)
        return job.input.number


def start(app: Queuert, accounts: str, name: str = "call", **options: Any) -> list[Any]:
    return app.start_chains([NewChain(name, Call(account, n), **options) for n, account in enumerate(accounts)])


def work_off(app: Queuert, ledger: Ledger, number: int, workers: int = 2, concurrency: int = 4) -> None:
    started = [app.worker(concurrency=concurrency, poll_interval=SLOW_POLL) for _ in range(workers)]
    for worker in started:
        worker.start()
    try:
        eventually(lambda: app.stats().by_status.get("completed", 0) == number, timeout=30)
    finally:
        for worker in started:
            worker.stop()


def test_no_more_of_a_type_run_than_its_limit_allows(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(2))
    start(app, "x" * 30)
    work_off(app, ledger, 30)
    assert ledger.most["x"] == 2


def test_each_key_has_a_limit_of_its_own(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account"))
    start(app, "aaaaabbbbbccccc" * 2)
    work_off(app, ledger, 30)
    assert ledger.most == {"a": 1, "b": 1, "c": 1}


def test_a_key_of_none_means_no_limit(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account"), pause=0.2)
    app.start_chains([NewChain("call", Call(None)) for _ in range(4)])
    work_off(app, ledger, 4, workers=1)
    assert ledger.most["None"] > 1


def test_a_function_may_give_the_key_and_so_may_the_call(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key=lambda call: f"{call.account}!"))
    jobs = [app.start_chain("call", Call("a")), app.start_chain("call", Call("a"), limit_key="b")]
    found = [app.get_job(chain.id) for chain in jobs]
    assert [(job.limit_name, job.limit_key) for job in found if job] == [("call", "a!"), ("call", "b")]


def test_types_share_a_named_limit(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, name="stripe"), "charge")
    define(app, ledger, Limit(1, name="stripe"), "refund")
    start(app, "x" * 10, "charge")
    start(app, "x" * 10, "refund")
    work_off(app, ledger, 20)
    assert ledger.most["x"] == 1


def test_a_free_place_is_taken_at_once_by_another_worker(app: Queuert) -> None:
    """With a poll interval of a minute."""
    first, second = threading.Event(), threading.Event()
    begun: list[int] = []

    @app.job(limit=Limit(1))
    def wait(job: RunningJob[int]) -> None:
        begun.append(job.input)
        (first, second)[job.input].wait(20)

    app.start_chains([NewChain(wait, n) for n in range(2)])
    with app.worker(poll_interval=SLOW_POLL), app.worker(poll_interval=SLOW_POLL):
        eventually(lambda: begun == [0])
        first.set()
        eventually(lambda: begun == [0, 1])
        second.set()


def test_keys_take_turns(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(key="account"), pause=0)
    start(app, "a" * 100)
    app.drain(timeout=0.001)
    start(app, "b")
    app.drain()
    before = [key for key, _ in ledger.ran].index("b")
    assert before < 60, "it waited for all the others"


def test_a_saturated_key_holds_up_no_other(app: Queuert, ledger: Ledger) -> None:
    release = threading.Event()
    done: list[str] = []

    @app.job(limit=Limit(1, key="account"))
    def call(job: RunningJob[Call]) -> None:
        if job.input.account == "a":
            release.wait(20)
        done.append(str(job.input.account))

    start(app, "a" * 200 + "b")
    with app.worker(concurrency=2, poll_interval=SLOW_POLL):
        eventually(lambda: "b" in done)
        assert done == ["b"]
        release.set()


# Rates


def test_a_rate_lets_a_burst_start_and_no_more(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(rate=1, per=3600, burst=3), pause=0)
    start(app, "x" * 10)
    assert app.drain() == 3
    (status,) = app.limits()
    assert (status.name, status.key, status.running, status.waiting, status.rate, status.per) == ("call", None, 0, 7, 1, 3600)
    assert status.next_at is not None


def test_without_a_burst_all_may_start_at_once(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(rate=5, per=3600), pause=0)
    start(app, "x" * 10)
    assert app.drain() == 5


def test_what_waits_for_a_rate_starts_when_its_time_comes(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(rate=10, per=1, burst=1), pause=0)
    start(app, "x" * 6)
    began = time.monotonic()
    work_off(app, ledger, 6)
    assert time.monotonic() - began >= 0.5


def test_a_key_has_a_rate_of_its_own(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(rate=2, per=3600, key="account"), pause=0)
    start(app, "aaaabbbb")
    assert app.drain() == 4
    assert Counter(key for key, _ in ledger.ran) == {"a": 2, "b": 2}


# Strict order


def test_jobs_of_a_key_run_in_the_order_in_which_they_were_started(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account", order="strict"), pause=0.001)
    for n in range(20):
        app.start_chain("call", Call("ab"[n % 2], n), priority=n)
    work_off(app, ledger, 20)
    for key in "ab":
        numbers = [number for name, number in ledger.ran if name == key]
        assert numbers == sorted(numbers)
        assert ledger.most[key] == 1


def test_an_open_head_holds_its_key(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(key="account", order="strict"), pause=0)
    head = app.start_chain("call", Call("a", 0), after=3600)
    start(app, "aab")
    app.drain()
    assert ledger.ran == [("b", 2)]
    app.cancel_chain(head)
    app.drain()
    assert ledger.ran == [("b", 2), ("a", 0), ("a", 1)]


def test_a_retried_chain_goes_to_the_end(app: Queuert) -> None:
    ran: list[int] = []

    @app.job(limit=Limit(key="account", order="strict"))
    def call(job: RunningJob[Call]) -> None:
        ran.append(job.input.number)
        if job.input.number == 0 and ran.count(0) == 1:
            job.fail("A:B")

    first = app.start_chain("call", Call("a", 0))
    app.drain()
    for n in (1, 2):
        app.start_chain("call", Call("a", n))
    app.retry_chain(first)
    app.drain()
    assert ran == [0, 1, 2, 0]


# What the other side wants


def test_a_throttled_key_starts_nothing_until_it_is_over(app: Queuert) -> None:
    ran: list[tuple[str, int]] = []

    @app.job(limit=Limit(key="account"))
    def call(job: RunningJob[Call]) -> None:
        ran.append((str(job.input.account), job.attempt))
        if job.input.account == "a" and len([r for r in ran if r[0] == "a"]) == 1:
            job.throttle(3600)

    first = app.start_chain("call", Call("a"))
    app.drain()
    start(app, "aab")
    app.drain()
    assert ran == [("a", 1), ("b", 1)]
    (attempt,) = app.attempts(first.id)
    assert (attempt.outcome, attempt.error_code) == ("rescheduled", None)
    job = app.get_job(first.id)
    assert job is not None
    assert job.attempts_used == 0


def test_a_throttle_that_is_over_wakes_workers(app: Queuert) -> None:
    ran: list[int] = []

    @app.job(limit=Limit(5))
    def call(job: RunningJob[int]) -> None:
        ran.append(job.input)
        if len(ran) == 1:
            job.throttle(0.3)

    app.start_chain(call, 1)
    with app.worker(poll_interval=SLOW_POLL):
        eventually(lambda: ran == [1, 1])


# What operators set


def test_an_operators_numbers_win_at_once(app: Queuert, ledger: Ledger) -> None:
    gate = threading.Event()

    @app.job(limit=Limit(1))
    def call(job: RunningJob[int]) -> None:
        with ledger.running("x"):
            gate.wait(20)

    app.start_chains([NewChain(call, n) for n in range(3)])
    with app.worker(concurrency=4, poll_interval=SLOW_POLL):
        eventually(lambda: ledger.most["x"] == 1)
        app.set_limit("call", concurrency=2, actor="ann")
        eventually(lambda: ledger.most["x"] == 2)
        (status,) = app.limits()
        assert (status.concurrency, status.running, status.waiting, status.set_by) == (2, 2, 1, "ann")
        app.reset_limit("call")
        (status,) = app.limits()
        assert (status.concurrency, status.set_by) == (1, None)
        gate.set()
    assert ledger.most["x"] == 2


@pytest.mark.parametrize("numbers", [{}, {"concurrency": 0}, {"rate": 0}, {"per": 0}, {"burst": 0}, {"concurrency": -1}])
def test_bad_numbers_are_refused(app: Queuert, numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        app.set_limit("call", **numbers)


# With everything else


def test_what_waits_for_a_retry_or_the_future_holds_no_place(app: Queuert) -> None:
    ran: list[int] = []

    @app.job(limit=Limit(1), backoff=Backoff(initial=3600))
    def call(job: RunningJob[int]) -> None:
        ran.append(job.input)
        if job.input == 0:
            raise ValueError

    app.start_chain(call, 0)
    app.start_chain(call, 1, after=3600)
    app.drain()
    app.start_chain(call, 2)
    app.drain()
    assert ran == [0, 2]


def test_a_lost_workers_place_is_free_again(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1), pause=0, backoff=Backoff(initial=0))
    start(app, "xx")
    with app.transaction() as tx:
        past = "'2000-01-01T00:00:00.000000Z'"
        tx.execute(
            "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'gone', lease_token = 1, "
            f"leased_until = {past}, last_attempt_at = {past} WHERE id = (SELECT min(id::text) FROM queuert_job)::uuid"
            if app.dialect == "postgres"
            else "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'gone', lease_token = 1, "
            f"leased_until = {past}, last_attempt_at = {past} WHERE id = (SELECT min(id) FROM queuert_job)"
        )
    assert app.drain() == 2
    assert ledger.most["x"] == 1


def test_priorities_count_within_a_key(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account"), pause=0)
    for n, priority in enumerate((0, 5, -5, 5)):
        app.start_chain("call", Call("a", n), priority=priority)
    app.start_chain("call", Call("a", 9), priority=50, after=3600)
    app.drain()
    assert [number for _, number in ledger.ran] == [1, 3, 0, 2]


def test_pauses_blockers_and_deduplication(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account"), pause=0)
    one = app.start_chain("call", Call("a", 1), dedup=Dedup("k"))
    assert app.start_chain("call", Call("a", 1), dedup=Dedup("k")).id == one.id
    two = app.start_chain("call", Call("a", 2), blockers=[one])
    app.pause("call")
    assert app.drain() == 0
    app.resume("call")
    assert app.drain() == 2
    assert [number for _, number in ledger.ran] == [1, 2]
    assert app.wait_for(two, timeout=5).output == 2


def test_a_continuation_counts_for_its_own_type(app: Queuert, ledger: Ledger) -> None:
    define(app, ledger, Limit(1, key="account"))

    @app.job
    def first(job: RunningJob[str]) -> Continuation:
        return job.continue_with("call", Call(job.input))

    app.start_chains([NewChain(first, "a") for _ in range(10)])
    with app.worker(concurrency=4, poll_interval=SLOW_POLL):
        eventually(lambda: len(ledger.ran) == 10)
    assert ledger.most["a"] == 1


def test_other_types_run_beside_a_saturated_one(app: Queuert) -> None:
    gate, done = threading.Event(), []

    @app.job(limit=Limit(1))
    def heavy(job: RunningJob[int]) -> None:
        gate.wait(20)

    @app.job
    def light(job: RunningJob[int]) -> None:
        done.append(job.input)

    app.start_chains([NewChain(heavy, n) for n in range(50)])
    app.start_chains([NewChain(light, n) for n in range(50)])
    with app.worker(concurrency=3, poll_interval=SLOW_POLL):
        eventually(lambda: len(done) == 50)
        assert app.stats().by_type["heavy"]["running"] == 1
        app.cancel_chains([chain.id for chain in app.list_chains(types=["heavy"], limit=100)])
        gate.set()


def test_jobs_from_before_the_limit_run_without_it(app: Queuert, ledger: Ledger, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("the database lives in one app, which has the limit")
    with Queuert(target) as older:
        older.declare("call")
        older.start_chain("call", {"account": "a", "number": 1})
    define(app, ledger, Limit(1, key="account"), pause=0)
    assert app.drain() == 1


# What is refused


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concurrency": 0},
        {"concurrency": True},
        {"rate": 5},
        {"per": 5},
        {"burst": 5},
        {"rate": 0, "per": 5},
        {"concurrency": 1, "burst": 2},
        {"concurrency": 1, "order": "strict"},
        {"concurrency": 2, "key": "a", "order": "strict"},
        {"concurrency": 1, "order": "some"},
        {"concurrency": 1, "key": 5},
        {"concurrency": 1, "name": ""},
    ],
)
def test_a_bad_limit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Limit(**options)


def test_one_name_stands_for_one_limit(app: Queuert) -> None:
    app.declare("a", limit=Limit(1, name="x"))
    app.declare("b", limit=Limit(1, name="x"))
    with pytest.raises(ValueError, match="one name"):
        app.declare("c", limit=Limit(2, name="x"))
    with pytest.raises(TypeError):
        app.declare("d", limit=5)  # type: ignore[call-overload]


def test_a_key_that_cannot_be_is_refused_before_anything_is_written(app: Queuert) -> None:
    app.declare("plain")
    app.declare("all", limit=Limit(1))
    app.declare("keyed", limit=Limit(1, key="account"))
    for name in ("plain", "all"):
        with pytest.raises(ValueError, match="limit_key"):
            app.start_chain(name, limit_key="x")
    for input_ in ({}, 5, {"account": ""}, {"account": "x" * 2000}):
        with pytest.raises(JobTypeValidationError):
            app.start_chain("keyed", input_)
    assert not app.list_jobs().items

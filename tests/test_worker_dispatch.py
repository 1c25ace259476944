"""When jobs start: on a notice, on time, in order, and never held back by others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from support import eventually
from support.clocks import make_older
from support.inside import context_of, database_of, dispatcher_of, notifier_of
from support.outages import Gone, outage

from queuert import Backoff, NewChain, Queuert, RunningJob
from queuert.postgres.repository import PostgresRepository
from queuert.sqlite.repository import SqliteRepository
from queuert.storage.records import Level
from queuert.storage.repository import Repository
from queuert.worker.claimer import Claimer
from queuert.worker.dispatcher import CLAIM_SIZE, OUTAGE_PAUSE

FOREVER = 3600


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every claim asked for and got, and when."""
    made: list[dict[str, Any]] = []

    def record(kind: type[Repository], name: str) -> None:
        claim = getattr(kind, name)

        def recording(self: Repository, session: Any, **options: Any) -> Any:
            claimed = claim(self, session, **options)
            found = {"at": time.monotonic(), "got": len(self.claimed_jobs(claimed)), "short": name == "claim_head"}
            made.append({"levels": (), **options, **found})
            return claimed

        monkeypatch.setattr(kind, name, recording)

    record(SqliteRepository, "claim")
    record(PostgresRepository, "claim")
    record(PostgresRepository, "claim_head")
    return made


def hears_of_others(app: Queuert) -> bool:
    """Whether notices from other processes arrive, if there can be any."""
    notifier: Any = notifier_of(app)
    watcher = notifier.buses.get()._watcher
    return watcher is None or watcher._works_since < math.inf


def started_after(app: Queuert, start: Callable[[], Any]) -> float:
    """Seconds from the call to the start of the handler, with a worker that does not poll."""
    at: list[float] = []
    app.job("job")(lambda job: at.append(time.monotonic()))
    worker = app.worker(poll_interval=FOREVER)
    worker.events.watch()
    with worker:
        # It has looked on its own account, has heard that notices arrive, and has looked once more: now it sleeps.
        worker.events.wait("looked")
        eventually(lambda: hears_of_others(app))
        dispatcher_of(worker).scheduled("job")
        worker.events.wait("looked", count=2)
        before = time.monotonic()
        start()
        eventually(lambda: at)
    return at[0] - before


def test_a_commit_wakes_the_worker(app: Queuert) -> None:
    assert started_after(app, lambda: app.start_chain("job")) < 1


def test_the_commit_of_a_block_wakes_the_worker(app: Queuert) -> None:
    def start() -> None:
        with app.transaction() as tx:
            app.start_chain("job", conn=tx)

    assert started_after(app, start) < 1


def test_an_idle_worker_on_postgres_claims_what_it_hears_of_from_the_head_of_the_line(
    pg_url: str, claims: list[dict[str, Any]]
) -> None:
    with Queuert(pg_url) as app:
        started_after(app, lambda: app.start_chain("job"))
    (made,) = [made for made in claims if made["got"]]
    assert (made["short"], made["type_name"]) == (True, "job")


def test_a_short_claim_that_finds_nothing_is_followed_by_one_that_looks_at_everything(
    pg_url: str, claims: list[dict[str, Any]]
) -> None:
    with Queuert(pg_url) as app, Queuert(pg_url) as other:
        other.declare("job")
        other.start_chains([NewChain("job", after=FOREVER, priority=50) for _ in range(30)])
        assert started_after(app, lambda: app.start_chain("job")) < 1
    assert [made["short"] for made in claims if made["got"]] == [False]
    assert any(made["short"] for made in claims)


def test_news_of_several_types_are_looked_for_together(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        ran: list[str] = []
        for name in ("a", "b"):
            app.job(name)(lambda job: ran.append(job.type_name))
        with app.worker(poll_interval=FOREVER):
            for _ in range(20):
                before = len(ran)
                app.start_chains([NewChain("a"), NewChain("b")])
                eventually(lambda: len(ran) == before + 2)  # noqa: B023 - called before the next turn
        assert sorted(ran) == ["a"] * 20 + ["b"] * 20


def test_what_was_due_and_locked_is_not_passed_over_for_what_is_heard_of(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        order: list[str] = []
        for name in ("locked", "heard"):
            app.job(name)(lambda job: order.append(job.type_name))
        app.start_chain("locked", priority=10)
        with psycopg.connect(pg_url) as conn:
            conn.execute("SELECT 1 FROM queuert_job FOR UPDATE")
            worker = app.worker(poll_interval=FOREVER)
            worker.events.watch()
            worker.start()
            worker.events.wait("looked", count=4)  # by now it pauses between one look and the next
        app.start_chain("heard")
        eventually(lambda: len(order) == 2)
        worker.stop()
        assert order == ["locked", "heard"]


def test_where_others_claim_at_the_same_time_a_claim_looks_further(pg_url: str, claims: list[dict[str, Any]]) -> None:
    with Queuert(pg_url) as app:
        app.job("job")(lambda job: None)
        app.start_chains([NewChain("job", n) for n in range(60)])
        claimer = Claimer(context_of(app), "w1", None, None)
        with psycopg.connect(pg_url) as conn:
            conn.execute("SELECT 1 FROM queuert_job ORDER BY scheduled_at, id LIMIT 8 FOR UPDATE")
            assert len(claimer.claim(10)) == 2, "what it finds beside locked ones is enough for now"
            assert claimer.more
            assert claims[-1]["window"] == 1.0
            assert len(claimer.claim(10)) == 10, "the next steps over them"
            assert claims[-1]["window"] > 1.0
            while claims[-1]["window"] > 1.0 and claimer.more:
                claimer.claim(1)
            assert claims[-1]["window"] == 1.0, "with nobody in the way it gets less again"
            while claimer.more:
                claimer.claim(10)
        assert len(claimer.claim(10)) == 8


def test_a_scheduled_job_starts_on_time(app: Queuert) -> None:
    waited = started_after(app, lambda: app.start_chain("job", after=0.7))
    assert 0.65 < waited < 1.7


def test_a_job_that_was_scheduled_before_the_worker_started_starts_on_time(app: Queuert) -> None:
    at: list[float] = []
    app.job("job")(lambda job: at.append(time.monotonic()))
    before = time.monotonic()
    app.start_chain("job", after=0.7)
    app.start_chain("job", after=FOREVER, priority=50)
    with app.worker(poll_interval=FOREVER):
        eventually(lambda: at)
    assert 0.65 < at[0] - before < 1.7


def test_a_trigger_and_an_unblocking_wake_the_worker(app: Queuert) -> None:
    app.job("job")(lambda job: "ran")
    later = app.start_chain("job", after=FOREVER)
    blocker = app.start_chain(app.declare("other"))
    blocked = app.start_chain("job", blockers=[blocker])
    with app.worker(poll_interval=FOREVER):
        app.trigger_job(later.id)
        assert app.wait_for(later, timeout=5).output == "ran"
        with app.complete_chain(blocker.id) as tail:
            tail.finish()
        assert app.wait_for(blocked, timeout=5).output == "ran"


def test_a_retry_after_a_backoff_starts_on_time(app: Queuert) -> None:
    at: list[float] = []

    @app.job("job", backoff=Backoff(initial=0.5, jitter=0))
    def handler(job: RunningJob[None]) -> None:
        at.append(time.monotonic())
        if job.attempt == 1:
            raise RuntimeError

    with app.worker(poll_interval=FOREVER):
        app.wait_for(app.start_chain("job"), timeout=10)
    assert 0.45 < at[1] - at[0] < 1.5


def test_the_highest_priority_first_then_the_longest_due(app: Queuert) -> None:
    order: list[str] = []

    @app.job("job")
    def handler(job: RunningJob[str]) -> None:
        order.append(job.input)

    for age, (name, priority) in enumerate((("high", 5), ("second", 0), ("first", 0), ("low", -5))):
        chain = app.start_chain("job", name, priority=priority)
        make_older(app, chain.id, timedelta(seconds=age))
    with app.worker():
        eventually(lambda: len(order) == 4)
    assert order == ["high", "first", "second", "low"]


def test_short_jobs_are_claimed_in_large_batches(app: Queuert, claims: list[dict[str, Any]]) -> None:
    app.job("job")(lambda job: None)
    app.start_chains([NewChain("job", n) for n in range(2000)])
    with app.worker(concurrency=10):
        eventually(lambda: not app.list_jobs(statuses=["pending", "running"], limit=1).items, timeout=60)
    assert max(made["got"] for made in claims) >= 50
    assert all(made["limit"] <= CLAIM_SIZE for made in claims)


def test_slow_jobs_are_not_prefetched(app: Queuert, claims: list[dict[str, Any]]) -> None:
    app.job("job")(lambda job: job.signal.wait(0.15))  # by the clock, as the dispatcher measures it
    app.start_chains([NewChain("job", n) for n in range(12)])
    with app.worker(concurrency=3):
        eventually(lambda: not app.list_jobs(statuses=["pending", "running"], limit=1).items, timeout=60)
    assert all(made["limit"] <= 4 for made in claims if made["got"])


def test_jobs_that_wait_behind_a_slow_one_go_to_others(app: Queuert) -> None:
    leave, stuck = threading.Event(), threading.Event()
    where: dict[int, str] = {}

    @app.job("job")
    def handler(job: RunningJob[int]) -> None:
        where[job.input] = threading.current_thread().name
        if job.input == 150:
            stuck.set()
            leave.wait(30)

    app.start_chains([NewChain("job", n) for n in range(300)])
    with app.worker(name="slow", concurrency=1) as slow:
        slow.events.watch()
        assert stuck.wait(20)
        slow.events.wait("returned")
        with app.worker(name="quick"):
            eventually(lambda: len(where) == 300, timeout=20)
        leave.set()
    assert where[299].startswith("queuert-quick")
    assert {attempt.attempt for job in app.list_jobs(limit=300).items for attempt in app.attempts(job.id)} == {1}


def test_an_idle_worker_does_not_ask(app: Queuert, claims: list[dict[str, Any]]) -> None:
    app.job("job")(lambda job: None)
    worker = app.worker(poll_interval=FOREVER, reap_interval=0.05)
    worker.events.watch()
    with worker:
        worker.events.wait("looked")
        app.wait_for(app.start_chain("job"), timeout=10)
        worker.events.wait("looked", count=2)
        before = len(claims)
        # Another of its threads is busy all the while.
        worker.events.wait("reaped", count=worker.events.count("reaped") + 20)
        assert len(claims) - before <= 1


def pauses_between(claims: list[dict[str, Any]]) -> list[float]:
    """Seconds between one look for jobs and the next; each is followed by a look for suspects."""
    at = [made["at"] for made in claims if not made.get("suspect")]
    return [later - earlier for earlier, later in pairwise(at)]


def test_a_due_job_that_cannot_be_had_is_asked_for_less_and_less(pg_url: str, claims: list[dict[str, Any]]) -> None:
    with Queuert(pg_url) as app:
        app.job("job")(lambda job: "ran")
        chain = app.start_chain("job")
        worker = app.worker(poll_interval=FOREVER)
        with app.transaction() as tx:
            tx.execute("SELECT 1 FROM queuert_job FOR UPDATE")
            worker.start()
            eventually(lambda: min(pauses_between(claims)[-2:], default=0) > 0.5)
            asked = len(claims)
        try:
            assert app.wait_for(chain, timeout=5).output == "ran"
        finally:
            worker.stop()
        assert 4 < asked < 30


def test_on_postgres_the_next_claim_starts_where_the_last_one_ended(pg_url: str, claims: list[dict[str, Any]]) -> None:
    with Queuert(pg_url) as app:
        order: list[int] = []

        @app.job("job")
        def handler(job: RunningJob[int]) -> None:
            order.append(job.input)

        app.start_chains([NewChain("job", n) for n in range(1500)])
        with app.worker(concurrency=5):
            eventually(lambda: len(order) == 1500, timeout=60)
        assert sorted(order) == list(range(1500))
        hinted = [made for made in claims if made["levels"]]
        assert hinted
        assert all(isinstance(level, Level) for made in hinted for level in made["levels"])
        short = [n for n, made in enumerate(claims) if made["levels"] and made["got"] < made["limit"]]
        assert not any(claims[n + 1]["levels"] for n in short), "one that came back short is made again from the start"


@pytest.mark.parametrize("dear", [True, False])
def test_the_dearer_it_is_to_look_from_the_start_the_longer_the_hint_is_kept(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, claims: list[dict[str, Any]], dear: bool
) -> None:
    for name, value in {"HINT_LASTS": 0.0, "HINT_LASTS_AT_LEAST": 0.0, "PART_FROM_START": 1e-9 if dear else 1e9}.items():
        monkeypatch.setattr(f"queuert.worker.claimer.{name}", value)
    with Queuert(pg_url) as app:
        app.job("job")(lambda job: None)
        app.start_chains([NewChain("job") for _ in range(20)])
        claimer = Claimer(context_of(app), "w1", None, None)
        assert [len(claimer.claim(4)) for _ in range(2)] == [4, 4]
        assert bool(claims[-1]["levels"]) is dear
        claimer.news()
        assert len(claimer.claim(4)) == 4
        assert bool(claims[-1]["levels"]) is dear
        assert len(claimer.claim(10)) == 8
        claimer.claim(1)
        assert not claims[-1]["levels"], "one that came back short ends it in any case"


def test_a_hint_does_not_hide_a_higher_priority(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        order: list[str] = []
        urgent = threading.Event()

        @app.job("job")
        def handler(job: RunningJob[str]) -> None:
            order.append(job.input)
            if job.input == "urgent":
                urgent.set()
            urgent.wait(0.001)

        app.start_chains([NewChain("job", "usual") for _ in range(6000)])
        with app.worker(concurrency=2):
            eventually(lambda: len(order) > 500)
            app.start_chain("job", "urgent", priority=10)
            assert urgent.wait(3)
            assert len(order) < 6000


@pytest.mark.parametrize("suspect", [False, True], ids=["usual jobs", "suspects"])
@pytest.mark.parametrize("claimed", [True, False], ids=["it had claimed", "it had not"])
def test_a_claim_whose_answer_is_lost_costs_no_attempt(
    pg_url: str, claimed: bool, suspect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is long: if nobody remembered the claim, its jobs would wait for the end of it."""
    from queuert.postgres.session import PostgresSession

    run, lost = PostgresSession.run, threading.Event()

    def losing(self: PostgresSession, query: Any, params: Any) -> Any:
        if query.name != "claim_jobs" or params["suspect"] != suspect or lost.is_set() or not waiting.is_set():
            return run(self, query, params)
        lost.set()
        if claimed:
            run(self, query, params)
        self.raw.pgconn.finish()
        raise psycopg.OperationalError("the connection is lost")

    with Queuert(pg_url) as app:
        waiting = threading.Event()
        app.job("job", max_attempts=1)(lambda job: job.attempt)
        chains = app.start_chains([NewChain("job") for _ in range(1 if suspect else 5)])
        if suspect:
            with app.transaction() as tx:
                tx.execute("UPDATE queuert_job SET suspect = true")
        waiting.set()
        monkeypatch.setattr(PostgresSession, "run", losing)
        with app.worker():
            assert {app.wait_for(chain, timeout=20).output for chain in chains} == {1}
        assert lost.is_set()
        assert all(app.attempts(chain.id)[0].outcome == "succeeded" for chain in chains)


def test_an_outage_that_lets_claims_through_does_not_slow_them_down(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @app.job("job")
    def handler(job: RunningJob[int]) -> None:
        ran.append(job.input)

    def failing(self: Claimer) -> None:
        raise Gone

    with outage(app, database_of(app).run), app.worker(poll_interval=FOREVER) as worker:
        dispatcher = dispatcher_of(worker)
        monkeypatch.setattr(Claimer, "next_due", failing)
        for number in range(8):
            app.start_chain("job", number)
            eventually(lambda: len(ran) == number + 1)  # noqa: B023 - called before the next turn
        assert dispatcher._outage._pause <= OUTAGE_PAUSE
        monkeypatch.undo()

"""Pausing and resuming: in the claim itself, in every worker, until a time or until somebody resumes."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.clocks import database_now
from support.waiting import eventually

from queuert import NewChain, Queuert, QueuertError, RunningJob
from queuert.app import context_of
from queuert.worker.claimer import Claimer

NEVER = 3600.0  # seconds: a worker that polls so rarely must be woken
MORE = 20.0


def define(app: Queuert, *names: str) -> list[str]:
    """Types whose handlers note that they ran."""
    ran: list[str] = []

    def handle(job: RunningJob[Any]) -> None:
        ran.append(job.type_name)

    for name in names:
        app.job(name)(handle)
    return ran


def claim(app: Queuert, limit: int = 10, **options: Any) -> list[str]:
    claimer = Claimer(context_of(app), "test", None, None)
    return [held.job.type_name for held in claimer.claim(limit, **options)]


def paused(app: Queuert) -> list[str | None]:
    return [pause.type_name for pause in app.pauses()]


# What is paused


def test_a_pause_says_what_since_when_until_when_why_and_by_whom(app: Queuert) -> None:
    before, until = database_now(app), datetime.now(timezone.utc) + timedelta(hours=1)
    charge = app.declare("charge")
    app.pause(charge, until=until, reason="the bank is down", actor="ada")
    app.pause("ship")
    found, other = app.pauses()
    assert (found.type_name, found.until, found.reason, found.actor) == ("charge", until, "the bank is down", "ada")
    assert before <= found.since <= database_now(app)
    assert (other.type_name, other.until, other.reason, other.actor) == ("ship", None, None, None)


def test_a_second_pause_changes_the_first_and_keeps_its_beginning(app: Queuert) -> None:
    app.pause("charge", reason="first")
    [first] = app.pauses()
    app.pause("charge", reason="second", actor="ada")
    [second] = app.pauses()
    assert (second.since, second.reason, second.actor) == (first.since, "second", "ada")


def test_resume_names_types_or_lifts_every_pause(app: Queuert) -> None:
    app.pause("a", "b")
    app.pause()
    assert paused(app) == [None, "a", "b"]
    app.resume("a", actor="ada")
    assert paused(app) == [None, "b"]
    app.resume("a")
    app.resume()
    assert paused(app) == []


def test_a_pause_is_part_of_the_callers_transaction(app: Queuert) -> None:
    def pause_and_fail() -> None:
        with app.transaction() as tx:
            app.pause("a", conn=tx)
            assert [pause.type_name for pause in app.pauses(conn=tx)] == ["a"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pause_and_fail()
    assert paused(app) == []
    with app.transaction() as tx:
        app.pause("a", conn=tx)
    assert paused(app) == ["a"]


@pytest.mark.parametrize(
    "options",
    [
        {"until": datetime(2030, 1, 1)},
        {"until": "tomorrow"},
        {"until": datetime(2020, 1, 1, tzinfo=timezone.utc)},
        {"reason": ""},
        {"reason": 7},
        {"reason": "a\0b"},
        {"actor": ""},
    ],
)
def test_a_bad_option_pauses_nothing(app: Queuert, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        app.pause("a", **options)
    with pytest.raises((TypeError, ValueError)):
        app.pause(7)  # type: ignore[arg-type]
    assert paused(app) == []


# In the claim


def test_what_is_paused_is_not_claimed(app: Queuert) -> None:
    define(app, "a", "b")
    app.start_chain("a")
    app.pause("a")
    assert claim(app, only="a") == []
    app.start_chain("b")
    assert claim(app) == ["b"]
    app.start_chain("b")
    app.pause()
    assert claim(app) == claim(app, only="b") == []
    app.resume("a")
    assert claim(app) == []
    app.resume()
    assert sorted(claim(app)) == ["a", "b"]


def test_a_claim_that_goes_on_from_a_hint_sees_the_pause(app: Queuert) -> None:
    define(app, "a")
    app.start_chains([NewChain("a") for _ in range(30)])
    claimer = Claimer(context_of(app), "test", None, None)
    assert len(claimer.claim(10)) == 10
    app.pause("a")
    assert claimer.claim(10) == []


def test_a_suspect_is_not_claimed_either(app: Queuert) -> None:
    define(app, "a")
    app.start_chain("a")
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = (1 = 1)")
    app.pause("a")
    assert claim(app, suspect=True) == []
    app.resume("a")
    assert claim(app, suspect=True) == ["a"]


def test_a_pause_between_the_look_and_the_claim_holds(sqlite_path: Any) -> None:
    """On SQLite another process may come between the two statements of a claim."""
    url = f"sqlite:///{sqlite_path}"
    with Queuert(url) as app, Queuert(url) as other:
        app.migrate()
        define(app, "a", "b")
        app.start_chains([NewChain("a"), NewChain("b")])
        repository, database = context_of(app).repository, context_of(app).database
        run = repository._run

        def look_and_let_in(session: Any, query: str, /, **params: object) -> Any:
            rows = run(session, query, **params)
            if query == "find_due":
                other.pause("a")
            return rows

        repository._run = look_and_let_in  # type: ignore[method-assign]
        options = {"worker": "w", "token": 7, "leases": {"a": 60.0, "b": 60.0}, "limit": 10}
        jobs = database.run(lambda session: repository.claim_jobs(session, **options), single=True)
        assert [job.type_name for job in jobs] == ["b"]
        assert [job.status for job in app.list_jobs(types=["a"])] == ["pending"]


def test_the_end_of_a_pause_ends_it(app: Queuert) -> None:
    define(app, "a")
    app.start_chain("a")
    app.pause("a", until=datetime.now(timezone.utc) + timedelta(hours=1))
    assert claim(app) == []
    context = context_of(app)
    context.database.run(lambda session: context.repository.make_older(session, 7200.0))
    assert paused(app) == []
    assert claim(app) == ["a"]


# Drain and workers


def test_drain_respects_pauses(app: Queuert) -> None:
    ran = define(app, "a", "b")
    app.start_chains([NewChain("a"), NewChain("b")])
    app.pause("a")
    assert app.drain() == 1
    assert ran == ["b"]
    app.resume("a")
    assert app.drain() == 1


def test_what_runs_goes_on(app: Queuert) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.job("a")
    def handle(job: RunningJob[Any]) -> str:
        started.set()
        assert go_on.wait(MORE)
        return "done"

    chain = app.start_chain("a")
    with app.worker():
        assert started.wait(MORE)
        app.pause()
        go_on.set()
        assert app.wait_for(chain, timeout=MORE).output == "done"


@pytest.mark.parametrize("names", [("a",), ()], ids=["a type", "everything"])
def test_resume_wakes_a_worker_at_once(app: Queuert, names: tuple[str, ...]) -> None:
    define(app, "a")
    app.pause(*names)
    with app.worker(poll_interval=NEVER) as worker:
        chain = app.start_chain("a")
        worker.events.watch()
        app.start_chain("a", after=0)
        worker.events.wait("looked", timeout=MORE)
        assert app.get_chain(chain).status == "pending"  # type: ignore[union-attr]
        app.resume(*names)
        app.wait_for(chain, timeout=MORE)


def test_resume_wakes_a_worker_of_another_process(target: str) -> None:
    if "memory" in target:
        pytest.skip("a database in memory has one process")
    with Queuert(target) as app, Queuert(target) as other:
        app.migrate()
        define(app, "a")
        app.pause()
        with app.worker(poll_interval=NEVER):
            chain = app.start_chain("a")
            other.resume()
            app.wait_for(chain, timeout=MORE)


def test_the_end_of_a_pause_wakes_workers(app: Queuert) -> None:
    define(app, "a")
    app.pause("a", until=database_now(app) + timedelta(seconds=NEVER))
    app.pause(until=database_now(app) + timedelta(seconds=NEVER))
    with app.worker(poll_interval=NEVER):
        chain = app.start_chain("a")
        # Both end sooner than they were going to.
        app.pause("a", until=database_now(app) + timedelta(seconds=0.5))
        app.pause(until=database_now(app) + timedelta(seconds=0.3))
        app.wait_for(chain, timeout=MORE)


def test_a_worker_does_not_ask_again_and_again_for_what_is_paused(app: Queuert) -> None:
    define(app, "a")
    app.pause("a")
    app.start_chain("a")
    context = context_of(app)
    with context.database.read() as session:
        assert context.repository.next_due(session, ["a"]) is None
    until = database_now(app) + timedelta(seconds=NEVER)
    app.pause("a", until=until)
    with context.database.read() as session:
        due = context.repository.next_due(session, ["a"])
    assert due is not None
    assert 0 < due <= NEVER + 1


# Schedules


def look(app: Queuert) -> None:
    app._ticker._look_at = 0
    app._ticker.run_if_due(threading.Event(), "test")


def older(app: Queuert, by: float) -> None:
    context = context_of(app)
    context.database.run(lambda session: context.repository.make_older(session, by))


def started(app: Queuert) -> int:
    return len(app.list_chains(limit=1000))


@pytest.mark.parametrize(("missed", "chains"), [("once", 1), ("all", 4), ("skip", 0)])
def test_a_paused_schedule_does_not_tick_and_its_missed_ticks_follow_its_rule(app: Queuert, missed: Any, chains: int) -> None:
    app.periodic(1000, missed=missed)(app.declare("report"))
    look(app)
    app.pause_periodic("report", reason="too many", actor="ada")
    [status] = app.periodics()
    assert status.pause is not None
    assert (status.pause.reason, status.pause.actor) == ("too many", "ada")
    assert app.pauses() == []
    older(app, 4000)
    look(app)
    assert started(app) == 0
    app.resume_periodic("report")
    assert app.periodics()[0].pause is None
    look(app)
    assert started(app) == chains
    look(app)
    assert started(app) == chains


@pytest.mark.parametrize(("missed", "chains"), [("once", 1), ("skip", 0)])
def test_ticks_missed_by_a_short_pause_were_missed_all_the_same(app: Queuert, missed: Any, chains: int) -> None:
    app.periodic(1, missed=missed)(app.declare("report"))
    look(app)
    app.pause_periodic("report")
    older(app, 3)
    app.resume_periodic("report")
    look(app)
    assert started(app) <= chains + 1  # and the tick of this very second
    assert started(app) >= chains


def test_a_tick_that_is_under_way_meets_the_pause(app: Queuert) -> None:
    app.periodic(1000)(app.declare("report"))
    look(app)
    older(app, 1000)
    tick = app._ticker._tick

    def pause_first(*args: Any) -> datetime:
        app.pause_periodic("report")
        return tick(*args)

    app._ticker._tick = pause_first  # type: ignore[method-assign]
    look(app)
    assert started(app) == 0


def test_only_a_schedule_that_somebody_knows_can_be_paused(app: Queuert, target: str) -> None:
    with pytest.raises(QueuertError, match="no schedule 'report'"):
        app.pause_periodic("report")
    app.periodic(1000)(app.declare("report"))
    app.pause_periodic("report", until=datetime.now(timezone.utc) + timedelta(hours=1))
    if "memory" not in target:
        look(app)
        with Queuert(target) as other:
            other.resume_periodic("report")
    else:
        app.resume_periodic("report")
    eventually(lambda: app.periodics()[0].pause is None)

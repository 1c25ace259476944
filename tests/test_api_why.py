"""Why a job does not run: a code for each reason, right in every state, in order."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from queuert import Backoff, JobNotFoundError, Limit, NewChain, Queuert, RunningJob
from queuert.app import context_of
from queuert.ids import Ids
from queuert.worker.claimer import Claimer

MORE = 20.0


def codes(app: Queuert, job_id: str) -> list[str]:
    return [reason.code for reason in app.why(job_id).reasons]


def sign(app: Queuert, worker: str, **facts: Any) -> None:
    """A worker that is there, of another process."""
    context = context_of(app)
    who: dict[str, Any] = {"name": worker, "host": "h", "pid": 1, "version": "1", "concurrency": 1, "busy": 0, "waiting": 0}
    who |= {"zombies": 0, "stopping": False, "types": ["a"], **facts}
    context.database.run(lambda session: context.repository.renew_and_sign(session, worker, (), who, ()))


def older(app: Queuert, by: float) -> None:
    context = context_of(app)
    context.database.run(lambda session: context.repository.make_older(session, by))


@pytest.fixture
def a(app: Queuert) -> Queuert:
    """An app whose type `a` can be claimed."""
    app.job("a", backoff=Backoff(initial=1000, jitter=0))(lambda job: 1 / 0)
    return app


def test_an_unknown_job_is_an_error(app: Queuert) -> None:
    with pytest.raises(JobNotFoundError):
        app.why(Ids(None, None, None).new())


def test_a_closed_job_is_closed(a: Queuert) -> None:
    chain = a.start_chain("a")
    a.cancel_chain(chain)
    why = a.why(chain.id)
    assert (why.job_id, why.status, [reason.code for reason in why.reasons]) == (chain.id, "cancelled", ["closed"])
    failed = a.start_chain("a", max_attempts=1)
    a.drain()
    assert codes(a, failed.id) == ["closed"]
    assert "ZeroDivisionError" in a.why(failed.id).reasons[0].text


def test_a_running_job_runs(a: Queuert) -> None:
    started, go_on = threading.Event(), threading.Event()

    @a.job("slow")
    def slow(job: RunningJob[Any]) -> None:
        started.set()
        assert go_on.wait(MORE)

    chain, other = a.start_chain("slow"), a.start_chain("slow")
    with a.worker(name="mill"):
        assert started.wait(MORE)
        running = chain if codes(a, chain.id) == ["running"] else other
        assert "mill" in a.why(running.id).reasons[0].text
        assert codes(a, (other if running is chain else chain).id) == ["workers_busy"]
        go_on.set()


def test_a_job_that_is_claimed_and_not_started_waits_for_a_slot(a: Queuert) -> None:
    a.start_chains([NewChain("a", priority=number) for number in range(3)])
    sign(a, "w", concurrency=2)
    held = Claimer(context_of(a), "w", None, None).claim(3)
    assert [codes(a, each.job.id) for each in held] == [["running"], ["running"], ["workers_busy"]]
    sign(a, "w", concurrency=2, zombies=1)
    assert [codes(a, each.job.id) for each in held] == [["running"], ["workers_busy"], ["workers_busy"]]


def test_a_lease_that_has_ended_is_told(a: Queuert) -> None:
    chain = a.start_chain("a")
    Claimer(context_of(a), "w", None, None).claim(1)
    older(a, 100)
    assert "its lease ended" in a.why(chain.id).reasons[0].text


def test_a_job_that_is_not_due(a: Queuert) -> None:
    sign(a, "w")
    chain = a.start_chain("a", after=1000)
    [reason] = a.why(chain.id).reasons
    assert (reason.code, reason.until) == ("not_due", a.get_job(chain.id).scheduled_at)  # type: ignore[union-attr]


def test_a_job_that_backs_off(a: Queuert) -> None:
    sign(a, "w")
    chain = a.start_chain("a")
    a.drain()
    [reason] = a.why(chain.id).reasons
    assert (reason.code, reason.until) == ("backoff", a.get_job(chain.id).scheduled_at)  # type: ignore[union-attr]
    assert "ZeroDivisionError" in reason.text


def test_a_blocked_job_names_what_it_waits_for_and_what_strands_it(a: Queuert) -> None:
    sign(a, "w")
    first, second = a.start_chain("a", after=1000), a.start_chain("a", after=1000)
    waiting = a.start_chain("a", blockers=[first, second])
    [reason] = a.why(waiting.id).reasons
    assert (reason.code, reason.ids) == ("blocked", (first.id, second.id))
    a.cancel_chain(first)
    stranded, blocked = a.why(waiting.id).reasons
    assert (stranded.code, stranded.ids) == ("stranded", (first.id,))
    assert (blocked.code, blocked.ids) == ("blocked", (second.id,))


def test_a_paused_type_and_a_pause_of_everything(a: Queuert) -> None:
    sign(a, "w")
    chain = a.start_chain("a")
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    a.pause("a", until=until, reason="the bank is down", actor="ada")
    [reason] = a.why(chain.id).reasons
    assert (reason.code, reason.until) == ("paused", until)
    assert "ada" in reason.text
    assert "the bank is down" in reason.text
    a.pause()
    [reason] = a.why(chain.id).reasons
    assert (reason.code, reason.until) == ("paused", None)
    a.resume()
    assert codes(a, chain.id) == []


def test_a_suspect(a: Queuert) -> None:
    sign(a, "w")
    chain = a.start_chain("a")
    with a.transaction() as tx:
        tx.execute("UPDATE queuert_job SET suspect = (1 = 1)")
    assert codes(a, chain.id) == ["suspect"]


def test_no_worker_is_there_for_it(a: Queuert) -> None:
    chain = a.start_chain("a")
    assert codes(a, chain.id) == ["no_worker"]
    sign(a, "w", types=["b"])
    sign(a, "leaving", stopping=True)
    assert codes(a, chain.id) == ["no_worker"]
    sign(a, "v")
    assert codes(a, chain.id) == []
    older(a, 20)
    assert codes(a, chain.id) == ["no_worker"]


def test_all_workers_are_busy(a: Queuert) -> None:
    chain = a.start_chain("a")
    sign(a, "w", zombies=1)
    assert codes(a, chain.id) == ["workers_busy"]
    sign(a, "v", concurrency=2, zombies=1)
    assert codes(a, chain.id) == []


def test_reasons_stand_in_the_order_in_which_they_must_be_lifted(a: Queuert) -> None:
    chain = a.start_chain("a", after=1000)
    a.pause()
    assert codes(a, chain.id) == ["paused", "not_due", "no_worker"]
    waiting = a.start_chain("a", blockers=[chain, a.start_chain("a")])
    a.cancel_chain(chain)
    assert codes(a, waiting.id) == ["stranded", "blocked", "paused", "no_worker"]


# Limits


def test_a_limit_names_what_runs(app: Queuert) -> None:
    app.job("a", limit=Limit(1))(lambda job: None)
    sign(app, "w", concurrency=5)
    first = app.start_chain("a")
    assert codes(app, first.id) == []
    Claimer(context_of(app), "w", None, None).claim(5)
    second = app.start_chain("a")
    [reason] = app.why(second.id).reasons
    assert (reason.code, reason.until, reason.ids) == ("limit", None, (first.id,))
    assert "1 run, and the limit 'a' lets 1 run at a time" in reason.text
    app.set_limit("a", concurrency=2)
    assert codes(app, second.id) == []


def test_a_rate_says_when_the_next_may_start(app: Queuert) -> None:
    app.job("a", limit=Limit(rate=1, per=3600))(lambda job: None)
    sign(app, "w", concurrency=5)
    first, second = app.start_chain("a"), app.start_chain("a")
    assert codes(app, first.id) == []
    app.drain()
    waiting = second if app.get_chain(first.id).status == "completed" else first  # type: ignore[union-attr]
    [reason] = app.why(waiting.id).reasons
    [status] = app.limits()
    assert (reason.code, reason.until, reason.ids) == ("rate", status.next_at, ())
    assert reason.until is not None
    assert "1 in 3600 s" in reason.text


def test_a_throttle_is_told_as_a_rate(app: Queuert) -> None:
    @app.job("a", limit=Limit(5))
    def a(job: RunningJob[Any]) -> None:
        job.throttle(3600)

    sign(app, "w", concurrency=5)
    app.start_chain("a")
    app.drain()
    [reason] = app.why(app.start_chain("a").id).reasons
    assert (reason.code, reason.until) == ("rate", app.limits()[0].next_at)
    assert "The other side wants a pause" in reason.text


def test_strict_order_names_the_one_before(app: Queuert) -> None:
    app.job("a", limit=Limit(key=lambda who: who, order="strict"))(lambda job: None)
    sign(app, "w", concurrency=5)
    first = app.start_chain("a", "ann", after=1000)
    second, other = app.start_chain("a", "ann"), app.start_chain("a", "bob")
    assert codes(app, first.id) == ["not_due"]
    [reason] = app.why(second.id).reasons
    assert (reason.code, reason.until, reason.ids) == ("order", None, (first.id,))
    assert "'ann'" in reason.text
    assert codes(app, other.id) == []
    app.cancel_chain(first)
    assert codes(app, second.id) == []

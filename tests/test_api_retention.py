"""Cleaning up: what is old enough goes, what others still need stays."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.clocks import make_older

from queuert import BlockerReferenceError, Chain, Dedup, NewChain, Queuert, Retention, RunningJob

DAYS = timedelta(days=1)


@pytest.fixture(autouse=True)
def _types(app: Queuert) -> None:
    app.declare("work")

    @app.job
    def broken(job: RunningJob[None]) -> None:
        job.fail("NO:GOOD")


def closed(app: Queuert, how: str, age: timedelta) -> Chain:
    """A chain that was closed some time ago."""
    chain = app.start_chain("broken" if how == "failed" else "work")
    if how == "failed":
        app.drain()
    elif how == "cancelled":
        app.cancel_chain(chain.id)
    else:
        with app.complete_chain(chain.id) as tail:
            tail.finish()
    make_older(app, chain.id, age)
    return chain


def there(app: Queuert, chains: list[Chain]) -> list[bool]:
    return [app.get_chain(chain.id) is not None for chain in chains]


def test_the_default_keeps_a_month_and_failures_for_three(app: Queuert) -> None:
    ages = [
        ("completed", 29),
        ("completed", 31),
        ("cancelled", 29),
        ("cancelled", 31),
        ("failed", 89),
        ("failed", 91),
    ]
    chains = [closed(app, how, age * DAYS) for how, age in ages]
    assert app.cleanup() == {"completed": 1, "failed": 1, "cancelled": 1}
    assert there(app, chains) == [True, False] * 3
    assert app.cleanup() == {"completed": 0, "failed": 0, "cancelled": 0}, "it can be run again"


def test_a_policy_may_be_given_and_none_keeps_forever(app: Queuert) -> None:
    chains = [closed(app, how, 1000 * DAYS) for how in ("completed", "failed", "cancelled")]
    assert app.cleanup(Retention(None, None, None)) == {"completed": 0, "failed": 0, "cancelled": 0}
    assert app.cleanup(Retention(completed=None, failed=3600, cancelled=None))["failed"] == 1
    assert there(app, chains) == [True, False, True]
    with pytest.raises(TypeError):
        app.cleanup(30)  # type: ignore[arg-type]  # wrong on purpose


def test_the_policy_of_the_app_is_the_default(target: str) -> None:
    with Queuert(target, retention=Retention(completed=2 * DAYS)) as app:
        app.migrate()
        app.declare("work")
        chains = [closed(app, "completed", age * DAYS) for age in (1, 3)]
        assert app.cleanup()["completed"] == 1
        assert there(app, chains) == [True, False]


def test_zero_lets_everything_go_that_is_closed(app: Queuert) -> None:
    chains = [closed(app, "completed", timedelta(seconds=1)), app.start_chain("work")]
    assert app.cleanup(Retention(0, 0, 0))["completed"] == 1
    assert there(app, chains) == [False, True]


def test_age_counts_from_the_tails_end_and_open_chains_stay(app: Queuert) -> None:
    old_and_open = app.start_chain("work")
    make_older(app, old_and_open.id, 1000 * DAYS)
    continued = app.start_chain("work")
    with app.complete_chain(continued.id) as tail:
        tail.continue_with("work")
    make_older(app, continued.id, 1000 * DAYS)
    just_closed = app.start_chain("work")
    with app.complete_chain(just_closed.id) as tail:
        tail.continue_with("work")
    make_older(app, just_closed.id, 1000 * DAYS)
    with app.complete_chain(just_closed.id) as tail:
        tail.finish()
    assert sum(app.cleanup().values()) == 0
    assert there(app, [old_and_open, continued, just_closed]) == [True, True, True]


def test_what_delete_would_refuse_is_kept(app: Queuert) -> None:
    blocker, freed = closed(app, "completed", 100 * DAYS), closed(app, "completed", 100 * DAYS)
    other = app.start_chain("work")
    waiting = app.start_chain("work", blockers=[blocker, other])
    done = app.start_chain("work", blockers=[freed])
    with app.complete_chain(done.id) as tail:
        tail.finish()
    with pytest.raises(BlockerReferenceError):
        app.delete_chain(blocker.id)
    assert app.cleanup()["completed"] == 1
    assert there(app, [blocker, freed, waiting]) == [True, False, True]
    app.cancel_chain(waiting.id)
    assert app.cleanup()["completed"] == 1
    assert there(app, [blocker]) == [False]


def test_nothing_is_left_of_what_goes(app: Queuert) -> None:
    chain = app.start_chain("broken", dedup=Dedup("k"))
    app.drain()
    app.retry_chain(chain.id)
    app.drain()
    make_older(app, chain.id, 100 * DAYS)
    app.cleanup()
    with app.transaction() as tx:
        for table in ("job", "job_attempt", "job_event", "job_blocker", "job_key"):
            assert tx.execute(f"SELECT count(*) FROM queuert_{table}").fetchone()[0] == 0, table


def test_many_go_in_batches_that_report_progress_and_can_be_interrupted(app: Queuert) -> None:
    chains = app.start_chains([NewChain("work", n) for n in range(450)])
    app.cancel_chains([chain.id for chain in chains])
    with app.transaction() as tx:
        old = "completed_at - interval '100 days'" if "Postgres" in repr(app) else "'2001-01-01T00:00:00.000000Z'"
        tx.execute(f"UPDATE queuert_job SET completed_at = {old}, created_at = {old}, chain_created_at = {old}")
    seen: list[int] = []

    def interrupt(done: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.cleanup(progress=interrupt)
    assert 0 < len(seen) < 450
    left = app.stats().by_status["cancelled"]
    assert left == 450 - seen[0]
    assert sum(app.cleanup(max_seconds=0).values()) == 0
    seen.clear()
    assert app.cleanup(progress=seen.append, max_seconds=60)["cancelled"] == left
    assert seen == sorted(seen)
    assert seen[-1] == left
    assert app.list_chains().items == []

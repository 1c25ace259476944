"""Retention by rows: long chains go in steps, and what stays open for ever keeps a bounded history."""

from __future__ import annotations

from typing import Any

import pytest
from support import eventually

from queuert import Backoff, Queuert, Retention, Status
from queuert.app import context_of
from queuert.chains import retention

NOTHING = Retention(completed=None, failed=None, cancelled=None, attempts=None)


def _long_chain(app: Queuert, jobs: int) -> str:
    @app.job("step")
    def step(job: Any) -> Any:
        if job.chain_index + 1 < jobs:
            return job.continue_with("step")
        return job.chain_index

    chain = app.start_chain("step")
    app.drain(timeout=60)
    return chain.id


def test_a_long_chain_is_deleted_in_steps_of_bounded_size(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 10)
    chain_id = _long_chain(app, 45)
    repository = context_of(app).repository
    sizes: list[int] = []
    before = repository.delete_middles

    def watched(session: Any, ids: Any, keep: int, limit: int) -> int:
        gone = before(session, ids, keep, limit)
        sizes.append(gone)
        if gone >= limit:  # in between the chain is closed as before, and whole for whoever looks at it
            session.hooks.on_commit(lambda: states.append(app.get_chain(chain_id)))
        return gone

    states: list[Any] = []
    monkeypatch.setattr(repository, "delete_middles", watched)
    eventually(lambda: app.cleanup(Retention(completed=0))["completed"] == 1)  # not in the millisecond in which it closed
    assert sizes == [10, 10, 10, 10, 3]
    assert [(state.status, state.output) for state in states] == [(Status.COMPLETED, 44)] * 4
    assert not app.list_jobs().items
    with app.transaction() as tx:
        for table in ("job", "job_attempt", "job_event", "job_blocker"):
            assert tx.execute(f"SELECT count(*) FROM queuert_{table}").fetchone()[0] == 0


def test_a_cleanup_that_is_cut_short_between_the_steps_goes_on_later(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 10)
    chain_id = _long_chain(app, 45)
    context = context_of(app)
    assert context.database.run(lambda session: context.repository.delete_middles(session, [chain_id], 0, 10)) == 10
    assert app.get_chain(chain_id).status is Status.COMPLETED
    assert app.get_chain(chain_id).output == 44
    eventually(lambda: app.cleanup(Retention(completed=0))["completed"] == 1)
    assert not app.list_jobs().items


def test_a_job_that_is_tried_for_ever_keeps_its_last_attempts(app: Queuert) -> None:
    @app.job("fails", max_attempts=None, backoff=Backoff(initial=0, jitter=0))
    def fails(job: Any) -> None:
        if job.attempt < 30:
            raise ValueError
        job.reschedule(after=3600)

    chain = app.start_chain("fails")
    app.drain(timeout=60)
    assert len(app.attempts(chain.id)) == 30
    app.cleanup(Retention(attempts=5))
    assert [attempt.attempt for attempt in app.attempts(chain.id)] == [26, 27, 28, 29, 30]
    assert app.get_job(chain.id).status is Status.PENDING
    app.cleanup(NOTHING)
    assert len(app.attempts(chain.id)) == 5


def test_attempts_and_the_timeline_come_in_pages(app: Queuert) -> None:
    @app.job("fails", max_attempts=12, backoff=Backoff(initial=0, jitter=0))
    def fails(job: Any) -> None:
        raise ValueError

    chain = app.start_chain("fails")
    app.drain(timeout=60)
    last = app.attempts(chain.id, limit=5)
    assert [attempt.attempt for attempt in last] == [8, 9, 10, 11, 12]
    assert [attempt.attempt for attempt in app.attempts(chain.id, limit=5, before=8)] == [3, 4, 5, 6, 7]
    assert [attempt.attempt for attempt in app.attempts(chain.id, before=3)] == [1, 2]
    numbers = {entry.detail.get("attempt") for entry in app.timeline(chain.id, limit=2)} - {None}
    assert numbers == {11, 12}
    for bad in (0, -1, 10**20):
        with pytest.raises(ValueError, match="limit"):
            app.attempts(chain.id, limit=bad)
        with pytest.raises(ValueError, match="before"):
            app.timeline(chain.id, before=bad)


def test_a_chain_that_goes_on_for_ever_keeps_its_last_jobs(app: Queuert) -> None:
    @app.job("tick")
    def tick(job: Any) -> Any:
        return job.continue_with("tick", after=3600 if job.chain_index == 30 else 0)

    chain = app.start_chain("tick")
    app.drain(timeout=60)
    app.cleanup(Retention(open_chain_jobs=5))
    left = app.list_chain_jobs(chain.id, limit=100).items
    assert sorted(job.chain_index for job in left) == [0, 27, 28, 29, 30, 31]
    assert app.get_chain(chain.id).status is Status.PENDING
    app.trigger_job(app.get_chain(chain.id).tail_id)
    app.drain(timeout=60)
    assert app.cancel_chain(chain.id).status is Status.CANCELLED
    app.delete_chain(chain.id)
    assert not app.list_jobs().items


def test_what_is_kept_must_be_a_number() -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            Retention(attempts=bad)
    with pytest.raises(TypeError, match="whole number"):
        Retention(open_chain_jobs="all")  # type: ignore[arg-type]

"""Rows that this library has not written: their jobs fail, the others run, and they can be shown, cancelled and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from support import eventually

from queuert import Queuert, Status

MAXIMUM = 2**31 - 1

TIMES = {
    "created at infinity": "created_at = 'infinity'",
    "created before Christ": "created_at = '0044-03-15 12:00:00+00 BC'",
    "scheduled at minus infinity": "scheduled_at = '-infinity'",
    "scheduled before Christ": "scheduled_at = '0044-03-15 12:00:00+00 BC'",
    "chain of the year 10000": "chain_created_at = '10000-01-01 00:00:00+00'",
    "attempt at its maximum": f"attempt = {MAXIMUM}",
}
ANYTHING = {
    "created at infinity": "created_at = 'infinity'",
    "a time that is not ISO": "created_at = '18.11.2026 12:00'",
    "scheduled at a number": "scheduled_at = '17'",
    "a text as priority": "priority = 'high'",
    "a text as attempt": "attempt = 'many'",
    "a blob as key": "deduplication_key = x'00ff'",
    "a blob as input": "input = x'00ff'",
    "attempt at its maximum": f"attempt = {MAXIMUM}",
    "a text as max_attempts": "max_attempts = 'some'",
}


def _spoil(app: Queuert, job_id: str, change: str) -> None:
    with app.transaction() as tx:
        if not hasattr(tx, "in_transaction"):  # PostgreSQL refuses most of this now; older rows may have it
            tx.execute("ALTER TABLE queuert_job DROP CONSTRAINT IF EXISTS queuert_job_readable")
        tx.execute(f"UPDATE queuert_job SET {change} WHERE id = '{job_id}'")


def _kinds(app: Queuert) -> dict[str, str]:
    with app.transaction() as tx:
        return ANYTHING if hasattr(tx, "in_transaction") else TIMES


def test_an_unreadable_row_fails_its_job_and_nobody_elses(app: Queuert) -> None:
    ran: list[int] = []

    @app.job("work")
    def work(job: Any) -> None:
        ran.append(job.input)

    kinds = _kinds(app)
    spoiled = {}
    for number, (name, change) in enumerate(kinds.items()):
        app.start_chain("work", number)
        spoiled[name] = app.start_chain("work", 1000 + number).id
        _spoil(app, spoiled[name], change)
    with app.worker(concurrency=2, poll_interval=0.1) as worker:
        eventually(lambda: len(ran) == len(kinds))
        for job_id in spoiled.values():
            eventually(lambda job_id=job_id: app.get_job(job_id).status is Status.FAILED)
        again = app.start_chain("work", 5000)
        app.wait_for(again, timeout=20)
        assert worker.running
    assert all(number < 1000 or number == 5000 for number in ran)
    for name, job_id in spoiled.items():
        job = app.get_job(job_id)
        assert (job.error_code or "").startswith("INVALID_INPUT:"), name
        assert app.attempts(job_id)[-1].outcome == "failed"


@pytest.mark.parametrize("name", sorted({*TIMES, *ANYTHING}))
def test_reads_show_what_can_be_shown_and_cancel_and_delete_work(app: Queuert, name: str) -> None:
    change = _kinds(app).get(name)
    if change is None:
        return  # the other database has it
    app.declare("work")
    chain, other = app.start_chain("work", 1), app.start_chain("work", 2)
    _spoil(app, chain.id, change)
    assert app.get_job(chain.id).id == chain.id
    assert app.get_chain(chain.id).status is Status.PENDING
    shown = {other.id} if name == "created at infinity" else {chain.id, other.id}  # a page ends before the end of time
    assert {job.id for job in app.list_jobs(limit=10).items} == shown
    assert {found.id for found in app.list_chains(limit=10).items} >= shown
    assert app.timeline(chain.id)[0].event == "ENQUEUED"
    assert app.stats().by_status["pending"] == 2
    assert app.cancel_chain(chain.id).status is Status.CANCELLED
    assert app.delete_chain(chain.id) is not None
    assert app.get_job(chain.id) is None


def test_a_running_row_without_the_time_of_its_attempt_is_shown_and_taken_back(app: Queuert) -> None:
    @app.job("work")
    def work(job: Any) -> None: ...

    chain = app.start_chain("work")
    past = "2000-01-01T00:00:00.000000Z"
    running = (
        f"status = 'running', last_attempt_at = NULL, leased_by = 'gone', lease_token = 7, leased_until = '{past}', attempt = 1"
    )
    _spoil(app, chain.id, running)
    assert app.stats().longest_running[0].job_id == chain.id
    with app.worker(poll_interval=0.1, reap_interval=0.1):
        eventually(lambda: app.attempts(chain.id) and app.attempts(chain.id)[0].outcome == "lost")
    app.cancel_chain(chain.id)


def test_postgresql_refuses_a_time_that_nobody_can_read(pg_url: str) -> None:
    import psycopg

    with Queuert(pg_url) as app:
        app.declare("work")
        chain = app.start_chain("work")
        for change in (*list(TIMES.values())[:5], "last_attempt_at = 'infinity'", "attempt = -1"):
            with pytest.raises(psycopg.errors.CheckViolation), app.transaction() as tx:
                tx.execute(f"UPDATE queuert_job SET {change} WHERE id = '{chain.id}'".encode())

"""What is done for speed with the help of psycopg's private parts can be switched off, and everything works without it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg_pool
import pytest

from queuert import Continuation, Dedup, NewChain, Queuert, RunningJob
from queuert.postgres import direct, stack
from queuert.postgres.direct import DirectConnection
from queuert.postgres.stack import lend_last_used


@pytest.fixture(params=["straight to libpq", "last used first", "both"])
def switched_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "last used first":
        monkeypatch.setattr(direct, "ENABLED", False)
    if request.param != "straight to libpq":
        monkeypatch.setattr(stack, "ENABLED", False)


@pytest.mark.usefixtures("switched_off")
def test_the_library_works_without_it(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE ledger (n integer)")

        @app.job("first", continues_with=["second"])
        def first(job: RunningJob[int]) -> Continuation:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))
                return job.continue_with(second, job.input)

        @app.job("second", entry=False)
        def second(job: RunningJob[int]) -> int:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))
            return job.input

        @app.job("cancelled")
        def cancelled(job: RunningJob[None]) -> None:
            app.cancel_chain(job.id)
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (-1)")

        chains = [app.start_chain(first, n) for n in range(5)]
        chains += app.start_chains([NewChain(first, n) for n in range(5, 10)])
        assert app.start_chain(first, 0, dedup=Dedup("k")).id == app.start_chain(first, 0, dedup=Dedup("k")).id
        lost = app.start_chain(cancelled)
        with app.worker(concurrency=4):
            assert [app.wait_for(chain, timeout=30).output for chain in chains] == list(range(10))
            assert app.wait_for(lost, timeout=30, raise_on_failure=False).status == "cancelled"
        with app.transaction() as tx:
            found = [row[0] for row in tx.execute("SELECT n FROM ledger ORDER BY n").fetchall()]
        assert found.count(0) == 4
        assert set(found) == set(range(10))


def test_a_pool_with_other_insides_is_left_alone() -> None:
    class Pool:
        _pool: Any = []

    lend_last_used(Pool)
    assert Pool._pool == []


def test_the_last_used_connection_is_lent_first(pg_url: str) -> None:
    with psycopg_pool.ConnectionPool(pg_url, min_size=3, open=False) as pool:
        lend_last_used(pool)
        pool.open(wait=True)
        lent = [pool.getconn() for _ in range(3)]
        for conn in lent:
            pool.putconn(conn)
        assert pool.getconn() is lent[-1]
        assert isinstance(pool._pool, deque)


@pytest.fixture
def app(pg_url: str) -> Iterator[Queuert]:
    with Queuert(pg_url) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE ledger (n integer)")
        yield app


def ledger(app: Queuert) -> list[int]:
    with app.transaction() as tx:
        return [row[0] for row in tx.execute("SELECT n FROM ledger").fetchall()]


@pytest.mark.parametrize("committed", [True, False], ids=["it had committed", "it had not"])
def test_the_answer_to_a_prepared_commit_that_went_along_is_lost(
    app: Queuert, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job completes once, its writes are there once, and no attempt is used up for nothing."""
    ran: list[int] = []
    lost: list[bool] = []

    @app.job("work")
    def work(job: RunningJob[int]) -> None:
        ran.append(job.attempt)
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))

    original = DirectConnection._send_with_commit

    def losing(self: DirectConnection, *args: Any) -> Any:
        if lost:
            return original(self, *args)
        lost.append(True)
        if committed:
            original(self, *args)
        self.pgconn.finish()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(DirectConnection, "_send_with_commit", losing)
    with app.worker():
        chain = app.wait_for(app.start_chain(work, 7), timeout=20)
    assert ledger(app) == [7]
    assert ran == ([1] if committed else [1, 2])
    job = app.get_job(chain.id)
    assert job is not None
    assert job.attempts_used == 1

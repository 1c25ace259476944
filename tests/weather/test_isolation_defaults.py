"""A database whose default is REPEATABLE READ or SERIALIZABLE: nobody is stranded, and nothing is read in another way."""

# ruff: noqa: PT012 - what a block does when its body raises is what is tested

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from support import eventually
from support.postgres import temporary_database

from queuert import Queuert, StaleSnapshotError, Status, UnsupportedDatabaseError
from queuert.postgres import settings
from queuert.postgres.database import PostgresDatabase
from queuert.storage.loader import Query

LEVELS = ["repeatable read", "serializable"]
SHOW = Query("show", ("SELECT current_setting('transaction_isolation')",))
Open = Callable[[str], Any]


@pytest.fixture(params=LEVELS)
def url(request: pytest.FixtureRequest, postgres_url: str, postgres_template: str) -> Iterator[str]:
    with temporary_database(postgres_url, postgres_template) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"ALTER DATABASE \"{conn.info.dbname}\" SET default_transaction_isolation = '{request.param}'")
        yield url


@pytest.fixture(params=["url", "behind a pooler", "pool"])
def app(request: pytest.FixtureRequest, url: str) -> Iterator[Queuert]:
    if request.param == "pool":
        with ConnectionPool(url, min_size=1, max_size=10, open=True) as pool, Queuert(pool) as app:
            yield app
    else:
        with Queuert(url, prepared_statements=request.param == "url") as app:
            yield app


def test_a_dependant_committed_after_its_blocker_closed_is_freed(app: Queuert, url: str) -> None:
    app.declare("join")

    @app.job("part")
    def part(job: Any) -> None:
        """A plain return: it is completed by a statement that commits by itself."""

    blocker = app.start_chain("part")
    with psycopg.connect(url) as conn:  # at the database's level, with its snapshot from here on
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        joined = app.start_chain("join", blockers=[blocker], conn=conn)
        with app.worker(poll_interval=0.1):
            with psycopg.connect(url, autocommit=True) as other:
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                eventually(lambda: other.execute(waiting).fetchone() != (0,))
            conn.commit()
            assert app.wait_for(blocker, timeout=20).status is Status.COMPLETED
        assert app.get_chain(joined.id).status is Status.PENDING
    assert app.stats().stranded == 0


def test_single_statements_of_a_database_run_at_read_committed(url: str) -> None:
    with ConnectionPool(url, min_size=1, open=True) as pool:
        for target, options in ((url, {}), (url, {"prepared_statements": False}), (pool, {})):
            database = PostgresDatabase(target, **options)
            assert database.run(lambda session: session.run(SHOW, {}), single=True) == [("read committed",)]
            with database.block() as session:
                assert session.run(SHOW, {}) == [("read committed",)]
            database.close()
        with pool.connection() as conn:  # the user's own is as it was
            assert conn.execute("SHOW default_transaction_isolation").fetchone() != ("read committed",)


def test_a_users_pool_is_asked_for_its_level_once_for_each_connection(pg_url: str) -> None:
    with ConnectionPool(pg_url, min_size=1, max_size=1, open=True) as pool:
        database = PostgresDatabase(pool)
        for _ in range(3):
            database.run(lambda session: session.run(SHOW, {}), single=True)
        with pool.connection() as conn:
            assert settings._known_levels[conn] is True


def test_a_completion_with_a_fixed_snapshot_is_refused_before_it_writes(app: Queuert, url: str) -> None:
    app.declare("part")
    blocker = app.start_chain("part")
    app.declare("join")
    with psycopg.connect(url) as conn:
        conn.execute("SELECT 1 FROM queuert_job")
        app.start_chain("join", blockers=[blocker])
        with app.complete_chain(blocker.id, conn=conn) as tail, pytest.raises(StaleSnapshotError):
            tail.finish()
        # Also for whoever swallows the error and commits.
        conn.commit()
    assert app.get_chain(blocker.id).status is Status.PENDING


def test_a_raised_level_in_our_own_block_is_refused_before_it_writes(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        app.declare("part")
        chain = app.start_chain("part")
        with pytest.raises(StaleSnapshotError), app.transaction() as tx:
            tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            with app.complete_chain(chain.id, conn=tx) as tail:
                tail.finish()
        assert app.get_chain(chain.id).status is Status.PENDING


def test_our_connections_have_the_settings_that_we_rely_on(postgres_url: str, postgres_template: str) -> None:
    with temporary_database(postgres_url, postgres_template) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            for name, value in (
                ("TimeZone", "Asia/Kolkata"),
                ("DateStyle", "German"),
                ("IntervalStyle", "sql_standard"),
                ("extra_float_digits", "-15"),
            ):
                conn.execute(f"ALTER DATABASE \"{conn.info.dbname}\" SET {name} = '{value}'")
        with Queuert(url) as app:
            app.declare("job")
            chain = app.start_chain("job", after=3600)
            assert (app.get_job(chain.id).scheduled_at - chain.created_at).total_seconds() >= 3599
            with app.transaction() as tx:
                for name, value in settings.NEEDED_SETTINGS.items():
                    assert tx.execute(f"SHOW {name}").fetchone() == (value,)
            # A connection that is not ours is not changed: it is refused before anything is written.
            with psycopg.connect(url) as conn, pytest.raises(UnsupportedDatabaseError, match="DateStyle"):
                app.start_chain("job", conn=conn)
        with ConnectionPool(url, min_size=1, open=True) as pool, Queuert(pool) as app:
            app.declare("job")
            with pytest.raises(UnsupportedDatabaseError, match="SET DateStyle"):
                app.start_chain("job")


def test_a_setting_that_the_server_refuses_is_said(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(settings.NEEDED_SETTINGS, "no_such_setting", "1")
    with caplog.at_level(logging.WARNING, "queuert.postgres"), Queuert(pg_url) as app:
        app.declare("job")
        app.start_chain("job")
        with app.transaction() as tx:
            assert tx.execute("SHOW DateStyle").fetchone() == ("ISO, MDY",)
    assert "does not let this connection set no_such_setting to '1'" in caplog.text

"""The app itself: targets, options, ids, table names, transactions, migrations, closing."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from support import eventually
from support.inside import database_of

from queuert import (
    DatabaseUnavailableError,
    Dedup,
    DuplicateJobIdError,
    InvalidJobIdError,
    Job,
    NewChain,
    Queuert,
    QueuertError,
    RunningJob,
    SchemaVersionError,
)

numbers = itertools.count(1)


def exercise(app: Queuert) -> None:
    """A bit of everything that names tables or ids."""

    @app.job
    def work(job: RunningJob[int]) -> int:
        return job.input

    app.declare("part")
    part = app.start_chain("part", dedup=Dedup("k"))
    chains = app.start_chains([NewChain(work, n) for n in range(3)])
    waiting = app.start_chain(work, 9, blockers=[*chains, part], priority=3)
    assert waiting.status == "blocked"
    with app.complete_chain(part.id) as tail:
        tail.continue_with("part")
    with app.complete_chain(part.id) as tail:
        tail.finish("part")
    assert app.drain() == 4
    assert app.wait_for(waiting, timeout=5).output == 9
    assert [c.id for c in app.get_job_blockers(waiting.id)] == [*(c.id for c in chains), part.id]
    assert {c.id for c in app.connected_chains(part.id)} == {waiting.id, *(c.id for c in chains)}
    assert len(app.list_chains(limit=2, cursor=app.list_chains(limit=2).next_cursor)) == 2
    assert len(app.list_jobs(chain_ids=[part])) == 2
    assert [j.chain_index for j in app.list_chain_jobs(part.id)] == [0, 1]
    cancelled = app.cancel_chain(app.start_chain(work, 1, after=60).id)
    app.retry_chain(cancelled.id)
    app.trigger_job(cancelled.id)
    assert app.drain() == 1
    assert [e.event for e in app.timeline(cancelled.id)][:2] == ["ENQUEUED", "CANCELLED"]
    assert app.stats().by_status["completed"] == 7
    app.delete_chain(waiting.id, cascade=True)
    assert [c.id for c in app.list_chains()] == [cancelled.id]


# Targets


def test_constructing_connects_to_nothing(tmp_path: Path) -> None:
    Queuert(f"sqlite:///{tmp_path}/none.db").close()
    Queuert("postgresql://nobody@127.0.0.1:1/none").close()
    assert list(tmp_path.iterdir()) == []


def test_a_path_and_every_spelling_of_a_url_is_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target in (tmp_path / "a.db", f"sqlite:////{str(tmp_path).lstrip('/')}/b.db", "sqlite:///c.db", Path("d.db")):
        with Queuert(target) as app:
            app.migrate()
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".db"} == {"a.db", "b.db", "c.db", "d.db"}


def test_a_database_in_memory_belongs_to_its_app() -> None:
    with Queuert("sqlite:///:memory:") as one, Queuert("sqlite:///:memory:") as other:
        for app in (one, other):
            app.migrate()
            app.declare("work")
        one.start_chain("work")
        assert (len(one.list_chains()), len(other.list_chains())) == (1, 0)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_users_pool_is_a_target_and_is_not_closed(pg_url: str, autocommit: bool) -> None:
    with psycopg_pool.ConnectionPool(pg_url, min_size=1, max_size=4, kwargs={"autocommit": autocommit}) as pool:
        with Queuert(pool) as app:
            app.migrate()
            exercise(app)
        assert not pool.closed
        with pool.connection() as conn:
            assert conn.autocommit is autocommit
            assert conn.execute("SELECT 1").fetchone() == (1,)


def test_a_database_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    for target in ("postgresql://nobody:secret@127.0.0.1:1/none", f"sqlite:///{tmp_path}/missing/none.db"):
        with Queuert(target) as app, pytest.raises(DatabaseUnavailableError) as raised:
            app.migrate()
        assert "secret" not in str(raised.value)
        assert "secret" not in repr(app)


# Names and ids


def test_tables_may_have_another_prefix(target: str) -> None:
    with Queuert(target, table_prefix="jobs_of_shop_") as app:
        app.migrate()
        exercise(app)
        with app.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM jobs_of_shop_job").fetchone()[0] == 1


def test_two_apps_share_a_database_under_different_names(target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has one app")
    with Queuert(target) as one, Queuert(target, table_prefix="other_") as other:
        for app in (one, other):
            app.migrate()
            app.declare("work")
        one.start_chain("work")
        assert (len(one.list_chains()), len(other.list_chains())) == (1, 0)


def test_tables_may_be_in_another_schema(empty_pg_url: str) -> None:
    with Queuert(empty_pg_url, schema="Queue", table_prefix="q_") as app:
        app.migrate()
        exercise(app)
    with psycopg.connect(empty_pg_url) as conn:
        found = conn.execute("SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name LIKE 'q\\_%'")
        assert found.fetchall() == [("Queue",)]


@pytest.mark.parametrize(
    ("id_type", "make"),
    [
        ("text", None),
        ("text", lambda: f"job {next(numbers)}"),
        ("TEXT", lambda: f"job-{next(numbers)}"),
        ("varchar(40)", lambda: f"{next(numbers):030d}"),
        ("bigint", lambda: next(numbers)),
        ("bigint", lambda: -(2**63) + next(numbers)),
        ("integer", lambda: next(numbers)),
        ("uuid", uuid.uuid4),
        (None, lambda: str(uuid.uuid4()).upper()),
    ],
)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_ids_of_every_type_work_everywhere(
    database: str, id_type: str | None, make: Callable[[], Any] | None, request: pytest.FixtureRequest
) -> None:
    target = "sqlite:///:memory:" if database == "sqlite" else request.getfixturevalue("empty_pg_url")
    with Queuert(target, id_type=id_type, generate_id=make) as app:
        app.migrate()
        exercise(app)
        for chain in app.list_chains():
            assert isinstance(chain.id, str)


def test_integer_ids_are_accepted_as_numbers_and_as_text(empty_target: str) -> None:
    with Queuert(empty_target, id_type="bigint", generate_id=lambda: next(numbers)) as app:
        app.migrate()
        app.declare("work")
        top = 2**63 - 1
        chain = app.start_chain("work", id=top)
        assert chain.id == str(top)
        assert app.get_chain(top) == app.get_chain(str(top)) == chain
        with pytest.raises(DuplicateJobIdError):
            app.start_chain("work", id=f"{top}")
        for bad in (2**63, "1.5", 1.5, True, "", "one", "1_000", " 1"):
            with pytest.raises(InvalidJobIdError):
                app.get_chain(bad)


def test_text_ids_are_free(empty_target: str) -> None:
    with Queuert(empty_target, id_type="text") as app:
        app.migrate()
        app.declare("work")
        for free in ("order-17", "Ünïcode ✓", "a" * 255, "1"):
            assert app.start_chain("work", id=free).id == free
            assert app.get_chain(free) is not None
        uuid.UUID(app.start_chain("work").id)
        for bad in ("", "a" * 256, "a\x00", "line\nbreak", "\ud800", 5, None, b"x"):
            with pytest.raises(InvalidJobIdError):
                app.get_chain(bad)


def test_ids_may_be_validated(empty_target: str) -> None:
    with Queuert(empty_target, id_type="text", generate_id=lambda: f"job-{next(numbers)}", validate_id=_is_ours) as app:
        app.migrate()
        app.declare("work")
        assert app.start_chain("work").id.startswith("job-")
        with pytest.raises(InvalidJobIdError):
            app.start_chain("work", id="order-1")


def _is_ours(text: str) -> bool:
    return text.startswith("job-")


def test_ids_that_are_made_by_default_grow_with_time(app: Queuert) -> None:
    app.declare("work")
    ids = [chain.id for chain in app.start_chains([NewChain("work") for _ in range(200)])]
    assert ids == sorted(ids)
    assert {uuid.UUID(i).version for i in ids} == {7}


def test_a_column_default_for_rows_inserted_by_hand(empty_pg_url: str) -> None:
    with Queuert(empty_pg_url, id_default="gen_random_uuid()") as app:
        app.migrate()
        with app.transaction() as tx:
            default = (
                "SELECT column_default FROM information_schema.columns WHERE table_name = 'queuert_job' AND column_name = 'id'"
            )
            assert tx.execute(default).fetchone()[0] == "gen_random_uuid()"
        exercise(app)


# Transactions, migrations, closing


def test_a_transaction_commits_or_rolls_back(app: Queuert) -> None:
    app.declare("work")
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (id) VALUES (1)")
        kept = app.start_chain("work", conn=tx)
    with suppress(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders (id) VALUES (2)")
        app.start_chain("work", conn=tx)
        raise ZeroDivisionError
    with app.transaction() as tx:
        assert tx.execute("SELECT id FROM orders").fetchall() == [(1,)]
    assert [c.id for c in app.list_chains()] == [kept.id]


def test_the_connection_is_the_drivers(app: Queuert, target: str) -> None:
    with app.transaction() as tx:
        assert isinstance(tx, sqlite3.Connection if target.startswith("sqlite") else psycopg.Connection)


def test_migrating_twice_changes_nothing(empty_target: str) -> None:
    with Queuert(empty_target) as app:
        before = app.migration_status()
        assert before.applied == ()
        assert before.pending
        assert app.migrate().pending == ()
        after = app.migration_status()
        assert (after.applied, after.pending) == (before.pending, ())
        app.declare("work")
        chain = app.start_chain("work")
        assert app.migrate() == after
        assert app.get_chain(chain.id) == chain


def test_without_tables_the_error_names_migrate(empty_target: str) -> None:
    with Queuert(empty_target) as app:
        app.declare("work")
        for call in (lambda: app.start_chain("work"), lambda: app.list_chains(), lambda: app.stats(), lambda: app.drain()):
            with pytest.raises(SchemaVersionError, match="migrate"):
                call()


def test_closing_is_idempotent_ends_all_threads_and_a_later_call_opens_again(app: Queuert, target: str) -> None:
    before = set(threading.enumerate())
    app.declare("work")
    chain = app.start_chain("work")
    with suppress(QueuertError):
        app.wait_for(chain, timeout=0.01)
    app.close()
    app.close()
    eventually(lambda: not [t for t in set(threading.enumerate()) - before if t.is_alive()])
    if ":memory:" not in target:
        assert app.get_chain(chain.id) == chain


def test_the_app_is_a_context_manager(target: str) -> None:
    with Queuert(target) as app:
        assert app.migrate().pending == ()
        assert isinstance(app, Queuert)


def test_vacuum_runs_on_every_database(app: Queuert) -> None:
    app.declare("work")
    app.delete_chains([c.id for c in app.start_chains([NewChain("work", "x" * 5_000) for _ in range(300)])])
    app.vacuum()
    app.vacuum(full=True)
    app.start_chain("work")


def test_vacuum_makes_a_file_smaller(sqlite_path: Path) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.declare("work")
        chains = app.start_chains([NewChain("work", "x" * 5_000) for _ in range(500)])
        database: Any = database_of(app)
        database.checkpoint()
        large = os.path.getsize(sqlite_path)
        app.delete_chains([c.id for c in chains])
        app.vacuum()
        database.checkpoint()
        assert os.path.getsize(sqlite_path) < large / 2


def test_a_job_has_every_column_as_an_attribute(app: Queuert, target: str) -> None:
    app.declare("work")
    job = app.get_job(app.start_chain("work").id)
    with app.transaction() as tx:
        cursor = tx.execute("SELECT * FROM queuert_job")
        columns = {column[0] for column in cursor.description}
        cursor.fetchall()
    assert columns == {field.name for field in dataclasses.fields(Job)}
    assert all(hasattr(job, column) for column in columns)


def test_closing_the_app_stops_its_workers(target: str) -> None:
    before = set(threading.enumerate())
    app = Queuert(target)
    app.migrate()
    worker = app.worker(concurrency=2)
    worker.start()
    app.close()
    assert not worker.running
    assert not [thread.name for thread in set(threading.enumerate()) - before]

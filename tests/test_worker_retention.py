"""Retention without being asked for: a live worker cleans up, one process at a time, and stops in the middle when told to."""

from __future__ import annotations

import logging
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.clocks import database_now, is_postgres, stored
from support.inside import cleaner_of, database_of, look_now
from support.racing import together
from support.waiting import eventually

from queuert import Dedup, NewChain, Queuert, Retention, RunningJob
from queuert.chains.retention import BATCH, EVERY, TASK

OLD = timedelta(days=100)


@pytest.fixture
def app(app: Queuert) -> Queuert:
    @app.job
    def work(job: RunningJob[Any]) -> None: ...

    @app.job
    def broken(job: RunningJob[Any]) -> None:
        job.fail("NO:GOOD")

    return app


@pytest.fixture(autouse=True)
def _whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("queuert.chains.retention.LONG", 60.0)


def execute(app: Queuert, sql: str, *params: object) -> list[Any]:
    with app.transaction() as tx:
        done = tx.execute(sql.replace("?", "%s") if is_postgres(app) else sql, params)
        return list(done.fetchall()) if done.description else []


def make_all_older(app: Queuert, by: timedelta = OLD) -> None:
    """Whatever is closed was closed long ago."""
    moment = stored(app, database_now(app) - by)
    execute(app, "UPDATE queuert_job SET created_at = ?, chain_created_at = ?", moment, moment)
    execute(app, "UPDATE queuert_job SET completed_at = ? WHERE completed_at IS NOT NULL", moment)


def many_old(app: Queuert, number: int) -> None:
    chains = app.start_chains([NewChain("work", n) for n in range(number)])
    app.cancel_chains([chain.id for chain in chains])
    make_all_older(app)


def left(app: Queuert) -> int:
    return int(execute(app, "SELECT count(*) FROM queuert_job")[0][0])


def run(app: Queuert, owner: str = "test", stop: threading.Event | None = None) -> None:
    """What a worker does about once a second, at once."""
    look_now(cleaner_of(app))
    cleaner_of(app).run_if_due(stop or threading.Event(), owner)


def due(app: Queuert, seconds: float = 0) -> None:
    moment = stored(app, database_now(app) + timedelta(seconds=seconds))
    execute(app, "UPDATE queuert_singleton SET next_run_at = ? WHERE name = ?", moment, TASK)
    look_now(cleaner_of(app))


def orphans(app: Queuert) -> int:
    found = 0
    for table in ("job_attempt", "job_event", "job_blocker"):
        rows = execute(app, f"SELECT count(*) FROM queuert_{table} WHERE job_id NOT IN (SELECT id FROM queuert_job)")
        found += rows[0][0]
    keys = execute(
        app,
        "SELECT count(*) FROM queuert_job_key k WHERE NOT EXISTS "
        "(SELECT 1 FROM queuert_job j WHERE j.deduplication_key = k.deduplication_key)",
    )
    return found + int(keys[0][0])


def test_a_worker_cleans_up_by_itself(app: Queuert, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuert")
    gone = [app.start_chain("work", dedup=Dedup("k")), app.start_chain("broken"), app.start_chain("work", after=3600)]
    app.drain()
    app.retry_chain(gone[1])
    app.drain()
    app.cancel_chain(gone[2])
    blocker, waiting_for = app.start_chain("work"), app.start_chain("work", after=3600)
    app.drain()
    make_all_older(app)
    waiting = app.start_chain("work", blockers=[blocker, waiting_for])
    young = app.start_chain("work")
    with app.worker():
        eventually(lambda: all(app.get_chain(chain.id) is None for chain in gone))
        app.wait_for(young, timeout=10)
    for chain in (blocker, waiting_for, waiting, young):
        assert app.get_chain(chain.id) is not None
    assert orphans(app) == 0
    [record] = [each for each in caplog.records if each.name == "queuert.retention"]
    assert record.__dict__["deleted"] == {"completed": 1, "failed": 1, "cancelled": 1}


def test_it_is_done_by_one_at_a_time_and_once_a_minute(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []
    clean = cleaner_of(app).clean
    monkeypatch.setattr(cleaner_of(app), "clean", lambda **options: cleaned.append(1) or clean(**options))
    together(*(lambda n=n: run(app, f"worker-{n}") for n in range(6)))
    assert len(cleaned) == 1
    [(until,)] = execute(app, "SELECT leased_until FROM queuert_singleton WHERE name = ?", TASK)
    assert until is None
    due(app, EVERY)
    run(app)
    assert len(cleaned) == 1
    due(app)
    run(app)
    assert len(cleaned) == 2


def test_while_another_process_is_at_it_nobody_else_is(app: Queuert) -> None:
    many_old(app, 3)
    run(app)
    many_old(app, 3)
    due(app)
    soon, over = (stored(app, database_now(app) + timedelta(seconds=n)) for n in (60, -1))
    lease = "UPDATE queuert_singleton SET leased_by = 'another', leased_until = ? WHERE name = ?"
    execute(app, lease, soon, TASK)
    run(app)
    assert left(app) == 3
    execute(app, lease, over, TASK)
    run(app)
    assert left(app) == 0, "it has died, or forgotten"


def test_without_a_policy_no_chain_is_deleted(target: str) -> None:
    with Queuert(target, retention=Retention(None, None, None)) as app:
        app.migrate()
        app.declare("work")
        many_old(app, 3)
        run(app)
        assert left(app) == 3


def test_a_worker_that_stops_leaves_the_rest_for_the_next(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 3 * BATCH + 10
    many_old(app, number)
    stop = threading.Event()
    delete = cleaner_of(app)._delete

    def stopping(*arguments: Any) -> Any:
        stop.set()
        return delete(*arguments)

    monkeypatch.setattr(cleaner_of(app), "_delete", stopping)
    run(app, stop=stop)
    assert left(app) == number - BATCH
    assert orphans(app) == 0
    monkeypatch.undo()
    due(app)
    with app.worker() as worker:
        eventually(lambda: left(app) == 0)
        assert worker.running


def test_one_that_is_cut_short_is_taken_up_where_it_ended(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        app.declare(name)
    chains = [app.start_chain(name) for name in ("a", "b", "c")]
    app.cancel_chains(chains)
    make_all_older(app)
    waiting = app.start_chain("work", blockers=[chains[0], app.start_chain("work")])
    looked: list[str] = []
    batches = cleaner_of(app)._batches

    def look(type_name: str, status: str, age: float) -> Any:
        if status == "cancelled":
            looked.append(type_name)
            if type_name == "b" and looked.count("b") == 1:
                stop.set()  # time is up
        return batches(type_name, status, age)

    monkeypatch.setattr(cleaner_of(app), "_batches", look)
    stop = threading.Event()
    cleaner_of(app).clean(stop=stop)
    assert looked == ["a", "b"]
    assert cleaner_of(app).clean() == {"completed": 0, "failed": 0, "cancelled": 2}
    assert looked[2:4] == ["b", "c"]
    looked.clear()
    cleaner_of(app).clean()
    assert looked[0] == "a", "the one before was not cut short"
    assert app.get_chain(waiting.id) is not None


def test_one_that_breaks_in_the_middle_is_followed_by_another(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    many_old(app, 2 * BATCH)
    delete = cleaner_of(app)._delete

    def breaking(*arguments: Any) -> Any:
        if left(app) == BATCH:
            raise OSError("the disk is gone")
        return delete(*arguments)

    monkeypatch.setattr(cleaner_of(app), "_delete", breaking)
    with pytest.raises(OSError, match="the disk is gone"):
        run(app, "first")
    assert left(app) == BATCH, "each batch is committed for itself"
    monkeypatch.undo()
    run(app, "second")
    assert left(app) == BATCH, "its turn is not over for all anybody knows"
    over = stored(app, database_now(app) - timedelta(seconds=1))
    execute(app, "UPDATE queuert_singleton SET leased_until = ? WHERE name = ?", over, TASK)
    run(app, "second")
    assert left(app) == 0


def test_jobs_run_while_much_is_deleted(app: Queuert) -> None:
    many_old(app, 5 * BATCH)
    with app.worker(concurrency=2):
        chains = app.start_chains([NewChain("work", n) for n in range(50)])
        for chain in chains:
            app.wait_for(chain, timeout=20)
        eventually(lambda: left(app) == 50, 20)


def test_a_chain_named_as_blocker_at_the_last_moment_stays(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    many_old(app, 2)
    first, second = app.list_chains()
    delete = cleaner_of(app)._delete
    waiting: list[Any] = []

    def first_name_it(*arguments: Any) -> Any:
        waiting.append(app.start_chain("work", blockers=[first]))
        return delete(*arguments)

    monkeypatch.setattr(cleaner_of(app), "_delete", first_name_it)
    run(app)
    assert app.get_chain(first.id) is not None
    assert app.get_chain(second.id) is None
    assert [chain.id for chain in app.get_job_blockers(waiting[0].id)] == [first.id]


def engine_on(path: Path) -> object:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from queuert.contrib.sqlalchemy import SQLAlchemyProvider

    return SQLAlchemyProvider(sqlalchemy.create_engine(f"sqlite:///{path}"))


@pytest.mark.parametrize("lent", [False, True], ids=["own connections", "an engine's"])
def test_on_a_file_the_space_is_given_back(sqlite_path: Path, lent: bool) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()  # so that the file is one of ours, with incremental auto-vacuum
    with Queuert(engine_on(sqlite_path) if lent else sqlite_path) as app:
        app.migrate()
        app.declare("work")
        app.start_chains([NewChain("work", "x" * 1000) for _ in range(1000)])
        app.cancel_chains([chain.id for chain in app.list_chains(limit=1000)])
        make_all_older(app)
        database: Any = database_of(app)
        database.checkpoint()
        size, wal = sqlite_path.stat().st_size, Path(f"{sqlite_path}-wal")
        run(app)
        assert left(app) == 0
        assert wal.stat().st_size < 100_000
        database.checkpoint()
        assert sqlite_path.stat().st_size < size / 2


def test_cleanup_truncates_the_log_and_tells_how_far_it_is(sqlite_path: Path) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.declare("work")
        many_old(app, 2 * BATCH + 1)
        seen: list[int] = []
        assert app.cleanup(progress=seen.append) == {"completed": 0, "failed": 0, "cancelled": 2 * BATCH + 1}
        assert seen == [BATCH, 2 * BATCH, 2 * BATCH + 1]
        assert Path(f"{sqlite_path}-wal").stat().st_size == 0


def test_a_file_that_cannot_be_vacuumed_in_passing_is_complained_of_once(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = sqlite3.connect(sqlite_path)
    plain.execute("CREATE TABLE mine (n)")
    plain.close()
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.declare("work")
        for _ in range(2):
            many_old(app, 1)
            assert app.cleanup()["cancelled"] == 1
    assert caplog.text.count("incremental auto-vacuum") == 1

"""Transactions on a SQLite file that follow one another share a COMMIT, and none of them notices."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import eventually

from queuert import Chain, NewChain, Queuert, RunningJob, Status
from queuert.notify.base import Channel, Notice
from queuert.storage.guard import GuardedConnection
from queuert.storage.sqlite import SqliteDatabase


@pytest.fixture
def database(sqlite_path: Path) -> Any:
    database = SqliteDatabase(sqlite_path)
    with database.block() as session:
        session.raw.execute("CREATE TABLE made (n INTEGER PRIMARY KEY)")
    yield database
    database.close()


def committed(database: SqliteDatabase) -> set[int]:
    """What another process would see."""
    conn = sqlite3.connect(database.path)
    try:
        return {row[0] for row in conn.execute("SELECT n FROM made")}
    finally:
        conn.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every COMMIT that reaches SQLite."""
    seen: list[str] = []
    original = GuardedConnection.own

    def own(self: GuardedConnection, statement: str) -> None:
        if statement.startswith("COMMIT"):
            seen.append(statement)
        original(self, statement)

    monkeypatch.setattr(GuardedConnection, "own", own)
    return seen


def test_blocks_that_wait_for_each_other_share_a_commit_and_return_only_after_it(
    database: SqliteDatabase, commits: list[str]
) -> None:
    missing: list[int] = []

    def insert(n: int) -> None:
        with database.block() as session:
            session.raw.execute("INSERT INTO made VALUES (?)", (n,))
        if n not in committed(database):
            missing.append(n)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(insert, range(400)))
    assert missing == []
    assert committed(database) == set(range(400))
    assert len(commits) < 300, "hardly any of 400 concurrent blocks shared a commit"


def test_a_block_that_raises_undoes_its_own_work_and_nobody_elses(database: SqliteDatabase) -> None:
    def insert(n: int) -> None:
        with database.block() as session:
            session.raw.execute("INSERT INTO made VALUES (?)", (n,))
            if n % 3 == 0:
                raise ValueError(n)

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(insert, n) for n in range(300)]
    failed = {n for n, future in enumerate(futures) if isinstance(future.exception(), ValueError)}
    assert failed == {n for n in range(300) if n % 3 == 0}
    assert committed(database) == set(range(300)) - failed


def test_the_library_s_own_transactions_join_and_commit_what_was_handed_over(database: SqliteDatabase) -> None:
    def insert(n: int) -> None:
        if n % 2:
            database.run(lambda session: _plain(session, n))
        else:
            with database.block() as session:
                session.raw.execute("INSERT INTO made VALUES (?)", (n,))
        assert n in committed(database)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(insert, range(300)))
    assert committed(database) == set(range(300))


def _plain(session: Any, n: int) -> None:
    sqlite3.Cursor(session.raw).execute("INSERT INTO made VALUES (?)", (n,))


def test_when_sqlite_rolls_everything_back_every_member_of_the_group_gets_an_error(database: SqliteDatabase) -> None:
    """`OR ROLLBACK` in one block takes the work of the blocks before it along: none of them may return as if saved."""
    first_is_in, second_waits = threading.Event(), threading.Event()
    outcome: dict[str, BaseException | None] = {}

    def first() -> None:
        try:
            with database.block() as session:
                session.raw.execute("INSERT INTO made VALUES (1)")
                first_is_in.set()
                second_waits.wait(10)
            outcome["first"] = None
        except BaseException as error:
            outcome["first"] = error

    def second() -> None:
        first_is_in.wait(10)
        try:
            with database.block() as session:
                session.raw.execute("INSERT INTO made VALUES (2)")
                session.raw.execute("INSERT OR ROLLBACK INTO made VALUES (2)")
            outcome["second"] = None
        except BaseException as error:
            outcome["second"] = error

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    eventually(lambda: database._lock.waiting_writers == 1)
    second_waits.set()
    for thread in threads:
        thread.join(10)
    assert isinstance(outcome["second"], sqlite3.IntegrityError)
    # Either the first had committed alone before, or it was in the group that was rolled back, and knows.
    assert (outcome["first"] is None) == (committed(database) == {1})
    if outcome["first"] is not None:
        assert committed(database) == set()
        assert database.is_transient(outcome["first"]), "it is not the first one's fault"


def test_closing_commits_what_was_handed_over(database: SqliteDatabase) -> None:
    def insert(n: int) -> None:
        with database.block() as session:
            session.raw.execute("INSERT INTO made VALUES (?)", (n,))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(insert, n) for n in range(200)]
        database.close()
        for future in futures:
            future.result(30)
    assert committed(database) == set(range(200))


def test_a_group_that_nobody_ends_is_ended_by_a_member_that_waits(database: SqliteDatabase) -> None:
    """The thread that the transaction is handed over to leaves without touching it."""
    entered, go_on = threading.Event(), threading.Event()

    def insert() -> None:
        with database.block() as session:
            session.raw.execute("INSERT INTO made VALUES (1)")
            entered.set()
            go_on.wait(10)

    def pass_by() -> None:
        entered.wait(10)
        with database._lock.write():
            pass

    threads = [threading.Thread(target=insert), threading.Thread(target=pass_by)]
    for thread in threads:
        thread.start()
    eventually(lambda: database._lock.waiting_writers == 1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert committed(database) == {1}


# Slots, which do not wait for the disk.


@pytest.fixture
def app(sqlite_path: Path) -> Any:
    with Queuert(sqlite_path) as app:
        app.migrate()
        with app.transaction() as conn:
            conn.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
            conn.execute(
                "CREATE TABLE made (n INTEGER PRIMARY KEY REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED, job_id TEXT)"
            )
        yield app


def test_a_single_slot_fills_groups_and_nothing_is_told_before_it_is_saved(app: Queuert, commits: list[str]) -> None:
    @app.job("write")
    def write(job: RunningJob[int]) -> int:
        with job.complete() as conn:
            conn.execute("INSERT INTO parent VALUES (?)", (job.input,))
        return job.input

    chains = app.start_chains([NewChain(write, n) for n in range(300)])
    unsaved: list[str] = []

    def look(notice: Notice) -> None:
        conn = sqlite3.connect(app._database.path)  # type: ignore[attr-defined]  # a file's
        found = conn.execute("SELECT 1 FROM queuert_job WHERE id = ? AND status = 'completed'", (notice.payload,)).fetchone()
        conn.close()
        if notice.payload and not found:
            unsaved.append(notice.payload)

    commits.clear()
    with app._engine.notifier.subscribe(look, channels={Channel.CHAIN_CLOSED}), app.worker(concurrency=1):
        for chain in chains:
            app.wait_for(chain, timeout=30)
    assert unsaved == []
    assert len(commits) < 290, "hardly any of 300 blocks shared a commit"


def test_a_handler_whose_writes_the_commit_refuses_costs_the_others_in_its_group_no_attempt(app: Queuert) -> None:
    """A deferred foreign key is checked by the COMMIT, which cannot tell whose row it was."""

    @app.job("write", max_attempts=2, backoff=lambda attempt: 0.01)
    def write(job: RunningJob[int]) -> None:
        with job.complete() as conn:
            if job.input % 20:
                conn.execute("INSERT OR IGNORE INTO parent VALUES (?)", (job.input,))
            conn.execute("INSERT INTO made VALUES (?, ?)", (job.input, job.id))

    chains = app.start_chains([NewChain(write, n) for n in range(60)])
    with app.worker(concurrency=10, poll_interval=0.05):
        ended = {n: _ended(app, chain) for n, chain in enumerate(chains)}
    assert {n for n, status in ended.items() if status is Status.FAILED} == {0, 20, 40}
    with app.transaction() as conn:
        saved = {row[0] for row in conn.execute("SELECT n FROM made")}
        used = dict(conn.execute("SELECT status, max(attempt - attempts_forgiven) FROM queuert_job GROUP BY status"))
    assert saved == {n for n in range(60) if n % 20}
    assert used == {"completed": 1, "failed": 2}


def _ended(app: Queuert, chain: Chain) -> Status:
    def look() -> Status | None:
        found = app.get_chain(chain)
        return found.status if found is not None and found.status in (Status.COMPLETED, Status.FAILED) else None

    return eventually(look, timeout=60) or Status.RUNNING


def test_a_group_that_a_slot_left_is_committed_by_the_next_writer_and_by_a_close(database: SqliteDatabase) -> None:
    def leave(n: int) -> Any:
        block = database.block()
        session = block.__enter__()
        session.raw.execute("INSERT INTO made VALUES (?)", (n,))
        return block.leave()  # type: ignore[attr-defined]  # on a file

    first = leave(1)
    assert committed(database) == set()
    database.run(lambda session: _plain(session, 2))
    assert committed(database) == {1, 2}
    first.wait()
    second, third = leave(3), leave(4)
    database.close()
    assert committed(database) == {1, 2, 3, 4}
    second.wait()
    third.wait()
    fourth = leave(5)
    fourth.wait()
    assert committed(database) == {1, 2, 3, 4, 5}

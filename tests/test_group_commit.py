"""Transactions on a SQLite file that follow one another share a COMMIT, and none of them notices."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import eventually

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
        assert database.is_transient(outcome["first"]) or isinstance(outcome["first"], sqlite3.IntegrityError)


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

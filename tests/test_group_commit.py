"""Transactions on a SQLite file that follow one another share a COMMIT, and none of them notices."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support import eventually
from support.inside import database_of, lock_of, notifier_of

from queuert import Chain, ChainNotFoundError, NewChain, Queuert, RunningJob, Status
from queuert.notify.protocol import Channel, Notice
from queuert.sqlite.database import SqliteDatabase
from queuert.sqlite.errors import SharedCommitError
from queuert.sqlite.guard import GuardedConnection
from queuert.sqlite.rwlock import RWLock
from queuert.worker.results import ResultWriter


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
        with database.block(shared=True) as session:
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
        with database.block(shared=True) as session:
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
            with database.block(shared=True) as session:
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
            with database.block(shared=True) as session:
                session.raw.execute("INSERT INTO made VALUES (1)")
                first_is_in.set()
                second_waits.wait(10)
            outcome["first"] = None
        except BaseException as error:
            outcome["first"] = error

    def second() -> None:
        first_is_in.wait(10)
        try:
            with database.block(shared=True) as session:
                session.raw.execute("INSERT INTO made VALUES (2)")
                session.raw.execute("INSERT OR ROLLBACK INTO made VALUES (2)")
            outcome["second"] = None
        except BaseException as error:
            outcome["second"] = error

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    eventually(lambda: lock_of(database).waiting_writers == 1)
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
        with database.block(shared=True) as session:
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
        with lock_of(database).write():
            pass

    threads = [threading.Thread(target=insert), threading.Thread(target=pass_by)]
    for thread in threads:
        thread.start()
    eventually(lambda: lock_of(database).waiting_writers == 1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert committed(database) == {1}


# Slots, which do not wait for a COMMIT that is somebody else's turn.


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


def test_slots_share_commits_and_nothing_is_told_before_it_is_saved(app: Queuert, commits: list[str]) -> None:
    @app.job("write")
    def write(job: RunningJob[int]) -> int:
        with job.complete() as conn:
            conn.execute("INSERT INTO parent VALUES (?)", (job.input,))
        return job.input

    chains = app.start_chains([NewChain(write, n) for n in range(300)])
    unsaved: list[str] = []

    def look(notice: Notice) -> None:
        conn = sqlite3.connect(path(app))
        found = conn.execute("SELECT 1 FROM queuert_job WHERE id = ? AND status = 'completed'", (notice.payload,)).fetchone()
        conn.close()
        if notice.payload and not found:
            unsaved.append(notice.payload)

    commits.clear()
    with notifier_of(app).subscribe(look, channels={Channel.CHAIN_CLOSED}), app.worker(concurrency=10):
        for chain in chains:
            app.wait_for(chain, timeout=30)
    assert unsaved == []
    assert len(commits) < 250, "hardly any of 300 blocks shared a commit"


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


class Left:
    """A block that is left while somebody waits to write: it is handed over, and waits until it is let on."""

    def __init__(self, database: SqliteDatabase, *statements: str) -> None:
        self._on = threading.Event()
        block = database.block(shared=True)
        session = block.__enter__()
        for statement in statements:
            session.raw.execute(statement)
        self._waiter = threading.Thread(target=self._pass_by, args=(lock_of(database),))
        self._waiter.start()
        eventually(lambda: lock_of(database).waiting_writers == 1)
        self.commit = block.commit()

    def _pass_by(self, lock: RWLock) -> None:
        with lock.write():
            self._on.wait(10)

    def let_on(self) -> None:
        """The one it was handed over to leaves without touching it."""
        self._on.set()
        self._waiter.join(10)


def test_a_block_that_is_left_commits_at_once_unless_somebody_waits_to_go_on_in_it(database: SqliteDatabase) -> None:
    """Otherwise the file would be locked for other processes while the slot's next handler runs."""
    block = database.block(shared=True)
    with_block = block.__enter__()
    with_block.raw.execute("INSERT INTO made VALUES (1)")
    commit = block.commit()
    assert commit.ended
    assert committed(database) == {1}
    commit.wait()

    left = Left(database, "INSERT INTO made VALUES (2)")
    assert not left.commit.ended
    assert committed(database) == {1}
    left.let_on()
    left.commit.wait()
    assert committed(database) == {1, 2}


def test_a_block_whose_commit_failed_is_not_left_twice(database: SqliteDatabase) -> None:
    block = database.block(shared=True)
    block.__enter__().raw.execute("CREATE TABLE child (n INTEGER REFERENCES made (n) DEFERRABLE INITIALLY DEFERRED)")
    block.session.raw.execute("INSERT INTO child VALUES (9)")
    with pytest.raises(sqlite3.IntegrityError) as refused:
        block.commit().wait()
    with database.block() as session:
        block.__exit__(refused.type, refused.value, None)
        session.raw.execute("INSERT INTO made VALUES (1)")
    database.run(lambda session: _plain(session, 2))
    assert committed(database) == {1, 2}


def test_a_group_that_was_left_is_committed_by_the_next_writer_and_by_a_close(database: SqliteDatabase) -> None:
    first = Left(database, "INSERT INTO made VALUES (1)")
    first.let_on()
    database.run(lambda session: _plain(session, 2))
    assert committed(database) == {1, 2}
    first.commit.wait()
    second = Left(database, "INSERT INTO made VALUES (3)")
    second.let_on()
    database.close()
    assert committed(database) == {1, 2, 3}
    second.commit.wait()


REFUSED = "INSERT INTO made (n) VALUES (7)"
"""Breaks a deferred foreign key, which the COMMIT checks."""


def test_what_a_group_fails_with_is_not_told_to_those_who_only_commit_it(app: Queuert) -> None:
    database = database_of(app)
    assert isinstance(database, SqliteDatabase)

    def own_error() -> None:
        with app.transaction():
            raise LookupError

    for act, error in (
        (own_error, LookupError),
        (lambda: app.retry_chain("0190a0a0-0000-7000-8000-000000000000"), ChainNotFoundError),
        (lambda: app.vacuum(), None),
        (lambda: database.checkpoint(), None),
        (lambda: app.close(), None),
    ):
        left = Left(database, REFUSED)
        left.let_on()
        with pytest.raises(error) if error is not None else nullcontext():
            act()
        with pytest.raises(sqlite3.IntegrityError):
            left.commit.wait()


def test_a_transaction_of_the_user_shares_no_commit_and_gets_its_own_error(app: Queuert) -> None:
    database = database_of(app)
    assert isinstance(database, SqliteDatabase)
    left = Left(database, "INSERT INTO parent VALUES (1)")
    left.let_on()
    with pytest.raises(sqlite3.IntegrityError), app.transaction() as conn:
        conn.execute(REFUSED)
    left.commit.wait()
    with app.transaction() as conn:
        assert conn.execute("SELECT n FROM parent").fetchall() == [(1,)]


def test_deferring_foreign_keys_ends_with_the_block(app: Queuert) -> None:
    database = database_of(app)
    assert isinstance(database, SqliteDatabase)
    with app.transaction() as conn:
        conn.execute("CREATE TABLE child (n INTEGER REFERENCES parent (n))")
    for n in (1, 2):  # also where the statement was prepared before
        deferring = "PRAGMA defer_foreign_keys = ON"
        left = Left(database, deferring, f"INSERT INTO child VALUES ({n})", f"INSERT INTO parent VALUES ({n})")
        left.let_on()
        with database.block(shared=True) as session, pytest.raises(sqlite3.IntegrityError):
            session.raw.execute("INSERT INTO child VALUES (99)")
        left.commit.wait()


def test_an_interrupt_that_comes_with_the_answer_to_a_commit_fails_nobody(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(database, "INSERT INTO made VALUES (1)")
    left.let_on()
    original = GuardedConnection.own

    def own(self: GuardedConnection, statement: str) -> None:
        original(self, statement)
        if statement.startswith("COMMIT"):
            raise KeyboardInterrupt

    monkeypatch.setattr(GuardedConnection, "own", own)
    with pytest.raises(KeyboardInterrupt):
        database.run(lambda session: _plain(session, 2))
    left.commit.wait()
    assert committed(database) == {1, 2}


def test_an_interrupt_before_a_commit_undoes_the_group_and_is_for_one_thread_only(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(database, "INSERT INTO made VALUES (1)")
    left.let_on()
    original = GuardedConnection.own

    def own(self: GuardedConnection, statement: str) -> None:
        if statement.startswith("COMMIT"):
            raise KeyboardInterrupt
        original(self, statement)

    with monkeypatch.context() as patch:
        patch.setattr(GuardedConnection, "own", own)
        with pytest.raises(KeyboardInterrupt):
            database.run(lambda session: _plain(session, 2))
    with pytest.raises(SharedCommitError) as told:
        left.commit.wait()
    assert database.is_transient(told.value)
    assert committed(database) == set()


@pytest.mark.parametrize("handed_over", [False, True], ids=["it had begun", "it was handed over"])
def test_an_interrupt_at_the_beginning_of_a_block_leaves_no_transaction_open(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    left = None
    if handed_over:
        left = Left(database, "INSERT INTO made VALUES (1)")
        left.let_on()
    original = GuardedConnection.own

    def own(self: GuardedConnection, statement: str) -> None:
        if statement.startswith("SAVEPOINT"):
            raise KeyboardInterrupt
        original(self, statement)

    with monkeypatch.context() as patch:
        patch.setattr(GuardedConnection, "own", own)
        with pytest.raises(KeyboardInterrupt), database.block(shared=True):
            pass
    other = sqlite3.connect(database.path, timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    if left is not None:
        left.commit.wait()
    assert committed(database) == ({1} if handed_over else set())


def test_a_worker_whose_completer_died_leaves_no_transaction_open(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @app.job("slow")
    def slow(job: RunningJob[None]) -> None:
        entered.set()
        go_on.wait(10)
        with job.complete() as conn:
            conn.execute("INSERT INTO parent VALUES (1)")
            waiter.start()
            eventually(lambda: lock_of(database_of(app)).waiting_writers == 1)  # type: ignore[attr-defined]  # a file's

    @app.job("plain")
    def plain(job: RunningJob[None]) -> None:
        return None

    def pass_by() -> None:
        with lock_of(database_of(app)).write():  # type: ignore[attr-defined]  # a file's
            pass

    def die(*_: object, **__: object) -> None:
        raise SystemError

    waiter = threading.Thread(target=pass_by)
    worker = app.worker(concurrency=2)
    worker.start()
    app.start_chain(slow)
    assert entered.wait(10)
    monkeypatch.setattr(ResultWriter, "write", die)
    app.start_chain(plain)
    eventually(lambda: not any("completer" in thread.name for thread in threading.enumerate()))
    go_on.set()
    with pytest.raises(SystemError):
        worker.stop()
    waiter.join(10)
    conn = sqlite3.connect(path(app), timeout=0, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    assert conn.execute("SELECT n FROM parent").fetchall() == [(1,)]
    conn.close()


def path(app: Queuert) -> str:
    database = database_of(app)
    assert isinstance(database, SqliteDatabase)
    return database.path

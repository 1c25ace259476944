"""Transactions for handlers on PostgreSQL: a COMMIT that goes along with the completion, and what user code does inside."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support import eventually
from support.inside import context_of
from support.proxy import Proxy

from queuert import Continuation, Queuert, RunningJob
from queuert.postgres import direct
from queuert.postgres.block import PostgresBlock
from queuert.postgres.database import PostgresDatabase


@pytest.fixture
def app(pg_url: str) -> Iterator[Queuert]:
    with Queuert(pg_url, pool_size=1) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE ledger (n integer)")
        yield app


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each block that is to be committed, whether the COMMIT goes along with its last query."""
    seen: list[bool] = []
    run_and_commit, commit = PostgresBlock.run_and_commit, PostgresBlock.commit

    def watched_run_and_commit(self: PostgresBlock, *args: Any) -> Any:
        sent = run_and_commit(self, *args)
        if sent is not None:
            seen.append(True)
        return sent

    def watched_commit(self: PostgresBlock) -> Any:
        seen.append(False)
        return commit(self)

    monkeypatch.setattr(PostgresBlock, "run_and_commit", watched_run_and_commit)
    monkeypatch.setattr(PostgresBlock, "commit", watched_commit)
    return seen


@contextmanager
def interrupted_behind(locker: psycopg.Connection[Any], url: str) -> Iterator[None]:
    """Ctrl-C, as soon as a statement waits for a lock; who has it lets go when that one ended, or another waits as well."""

    def interrupt() -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            waiting = (
                "SELECT pid, query_start FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock' ORDER BY 1"
            )
            first = eventually(lambda: admin.execute(waiting).fetchall())
            _thread.interrupt_main()
            eventually(lambda: admin.execute(waiting).fetchall() != first)
            locker.rollback()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join(10)
    assert not thread.is_alive()


def ledger(app: Queuert) -> list[int]:
    with app.transaction() as tx:
        return [row[0] for row in tx.execute("SELECT n FROM ledger ORDER BY n")]


@pytest.mark.parametrize("statement", ["DEALLOCATE ALL", "DROP TABLE IF EXISTS nothing"])
def test_starting_goes_on_after_the_prepared_statements_were_dropped(app: Queuert, statement: Any) -> None:
    app.declare("work")
    for _ in range(3):
        app.start_chain("work")
        with app.transaction() as tx:
            tx.execute(statement)
    assert len(app.list_chains().items) == 3


def test_starting_goes_on_after_psycopg_has_rolled_back(app: Queuert) -> None:
    app.declare("work")
    for _ in range(3):
        app.start_chain("work")
        with app.transaction() as tx:
            for _ in range(8):  # until psycopg has prepared it: then it drops everything after a rollback
                tx.execute("SELECT %s::int", (1,))
            with tx.transaction(force_rollback=True):
                tx.execute("SELECT 1")
            tx.execute("SELECT 1")
    assert len(app.list_chains().items) == 3


@pytest.mark.parametrize("drop", ["DEALLOCATE ALL", "DEALLOCATE ALL; SELECT 1"])
def test_a_handler_that_drops_prepared_statements_completes_and_uses_one_attempt(app: Queuert, drop: Any) -> None:
    @app.job("work")
    def work(job: RunningJob[int]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))
            tx.execute(drop)

    chains = [app.start_chain(work, n) for n in range(6)]
    with app.worker(concurrency=1):
        for chain in chains:
            app.wait_for(chain, timeout=20)
    assert ledger(app) == list(range(6))
    for chain in chains:
        job = app.get_job(chain.id)
        assert job is not None
        assert job.attempts_used == 1


def test_a_handler_may_roll_savepoints_back(app: Queuert) -> None:
    @app.job("work")
    def work(job: RunningJob[int]) -> None:
        with job.complete() as tx:
            for _ in range(8):
                tx.execute("SELECT %s::int", (1,))
            with tx.transaction(force_rollback=True):
                tx.execute("INSERT INTO ledger VALUES (-1)")
            tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))

    chains = [app.start_chain(work, n) for n in range(6)]
    with app.worker(concurrency=2):
        for chain in chains:
            app.wait_for(chain, timeout=20)
    assert ledger(app) == list(range(6))
    assert [app.attempts(chain.id)[0].outcome for chain in chains] == ["succeeded"] * 6


def test_the_commit_goes_along_with_what_ends_the_job_unless_more_has_to_follow(app: Queuert, commits: list[bool]) -> None:
    app.declare("next")

    @app.job("close")
    def close(job: RunningJob[None]) -> None:
        with job.complete():
            pass

    @app.job("proceed")
    def proceed(job: RunningJob[None]) -> Continuation:
        with job.complete():
            return job.continue_with("next")

    @app.job("wait")
    def wait(job: RunningJob[None]) -> Continuation:
        with job.complete():
            return job.continue_with("next", blockers=[blocker])

    blocker = app.start_chain("next")
    for job_type, goes_along in ((close, True), (proceed, True), (wait, False)):
        chain = app.start_chain(job_type)
        commits.clear()
        assert app.drain() == 1
        assert commits == [goes_along]
        job = app.get_job(chain.id)
        assert job is not None
        assert job.status == "completed"


def test_a_lease_that_is_lost_before_the_commit_undoes_everything(app: Queuert, pg_url: str, commits: list[bool]) -> None:
    reasons: list[object] = []

    @app.job("work")
    def work(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            with psycopg.connect(pg_url) as other:  # somebody else has it now
                other.execute("UPDATE queuert_job SET lease_token = 1, leased_by = 'other' WHERE id = %s", (job.id,))
        reasons.append(job.signal)

    chain = app.start_chain(work)
    commits.clear()
    with app.worker():
        eventually(lambda: reasons and commits)
        eventually(lambda: reasons[0].reason == "taken_by_another_worker")  # type: ignore[attr-defined]  # a Signal
    assert ledger(app) == []
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.leased_by) == ("running", "other")
    assert app.attempts(chain.id) == []


def test_a_block_above_read_committed_does_not_complete(app: Queuert) -> None:
    @app.job("work", max_attempts=1)
    def work(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            tx.execute("INSERT INTO ledger VALUES (1)")

    chain = app.start_chain(work)
    assert app.drain() == 1
    [attempt] = app.attempts(chain.id)
    assert "READ COMMITTED" in (attempt.error_detail or "")
    assert ledger(app) == []


def test_a_commit_that_is_refused_fails_the_attempt_and_saves_nothing(app: Queuert) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE parent (n integer PRIMARY KEY)")
        tx.execute("CREATE TABLE child (n integer REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED)")

    @app.job("work", max_attempts=1)
    def work(job: RunningJob[int]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))
            tx.execute("INSERT INTO child VALUES (1)")

    bad = app.start_chain(work, 1)
    assert app.drain() == 1
    job = app.get_job(bad.id)
    assert job is not None
    assert (job.status, job.attempts_used) == ("failed", 1)
    assert ledger(app) == []
    with app.transaction() as tx:
        tx.execute("INSERT INTO parent VALUES (1)")
    app.retry_chain(bad.id)
    assert app.drain() == 1
    assert ledger(app) == [1]


def test_an_interrupt_in_the_middle_of_an_answer_costs_the_connection_only(app: Queuert, pg_url: str) -> None:
    app.declare("work")
    app.start_chain("work")
    with psycopg.connect(pg_url) as other:
        other.execute("LOCK TABLE queuert_job IN EXCLUSIVE MODE")
        with interrupted_behind(other, pg_url):
            app.start_chain("work")
    assert app.start_chain("work").status == "pending"


def test_an_interrupt_in_the_middle_of_a_completion_saves_all_or_nothing(app: Queuert, pg_url: str) -> None:
    """The COMMIT is on its way already: the server may have been told in time to give it up, or not."""
    with psycopg.connect(pg_url) as other:

        @app.job("work")
        def work(job: RunningJob[None]) -> None:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (1)")
                other.execute("SELECT 1 FROM queuert_job WHERE id = %s FOR UPDATE", (job.id,))

        chain = app.start_chain(work)
        with interrupted_behind(other, pg_url):
            app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.attempts_used, ledger(app)) in (("pending", 0, []), ("completed", 1, [1]))


@pytest.mark.parametrize("options", [{"prepared_statements": False}, {}])
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_the_commit_goes_along_on_other_connections_too(
    pg_url: str, options: dict[str, Any], encoding: str, commits: list[bool]
) -> None:
    url = f"{pg_url}{'&' if '?' in pg_url else '?'}client_encoding={encoding}"
    with Queuert(url, **options) as app:
        app.migrate()

        @app.job("work")
        def work(job: RunningJob[str]) -> str:
            with job.complete():
                return job.input * 2

        chain = app.start_chain(work, "é")
        assert app.drain() == 1
        assert app.wait_for(chain).output == "éé"
    assert commits == [True]


def test_a_users_commit_is_refused_inside_a_block_and_fine_outside(app: Queuert) -> None:
    with app.transaction() as tx:
        for end in (tx.commit, tx.rollback):
            with pytest.raises(psycopg.ProgrammingError):
                end()
        tx.execute("INSERT INTO ledger VALUES (1)")
    assert ledger(app) == [1]


@pytest.mark.parametrize("fault", ["lose the answer", "lose the request"])
def test_the_answer_to_a_commit_that_went_along_is_lost(
    app: Queuert, pg_url: str, fault: Any, commits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job completes once, its writes are there once, and no attempt is used up for nothing."""
    monkeypatch.setattr(direct, "ENABLED", False)  # a prepared COMMIT has no words that the proxy could know
    with Proxy(pg_url) as proxy, Queuert(proxy.url) as far:
        ran: list[int] = []

        @far.job("work")
        def work(job: RunningJob[int]) -> None:
            ran.append(job.attempt)
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.input,))
                if job.attempt == 1:
                    proxy.arm(b"COMMIT\0", fault)

        chain = far.start_chain(work, 7)
        with far.worker(concurrency=1):
            far.wait_for(chain, timeout=20)
        assert proxy.cuts == 1
    assert False not in commits
    assert ledger(app) == [7]
    assert ran == ([1] if fault == "lose the answer" else [1, 2])
    job = app.get_job(chain.id)
    assert job is not None
    assert job.attempts_used == 1


def test_a_block_whose_commit_failed_is_not_left_twice(pg_url: str) -> None:
    """Its connection is in the pool again, and may be somebody else's."""
    database = PostgresDatabase(pg_url, pool_size=1)
    block = database.block()
    block.__enter__().raw.execute("CREATE TABLE seen (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    block.session.raw.execute("INSERT INTO seen VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        block.commit()
    with database.block() as session:
        session.raw.execute("CREATE TABLE other (n integer)")
        assert not block.__exit__(refused.type, refused.value, None)
        session.raw.execute("INSERT INTO other VALUES (1)")
    with database.read() as session:
        assert session.raw.execute("SELECT n FROM other").fetchall() == [(1,)]
    database.close()


def test_a_users_pool_keeps_its_isolation_level(pg_url: str) -> None:
    from psycopg_pool import ConnectionPool

    with ConnectionPool(pg_url, min_size=1, max_size=1, open=True) as pool, Queuert(pool) as app:
        app.migrate()
        for level in (None, psycopg.IsolationLevel.SERIALIZABLE):
            with pool.connection() as conn:
                conn.isolation_level = level
            with app.transaction() as tx:
                assert tx.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
            with pool.connection() as conn:
                assert conn.isolation_level is level


def test_a_chain_may_go_on_above_read_committed(app: Queuert) -> None:
    app.declare("next")

    @app.job("work", max_attempts=1)
    def work(job: RunningJob[None]) -> Continuation:
        with job.complete() as tx:
            tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            tx.execute("INSERT INTO ledger VALUES (1)")
            return job.continue_with("next")

    chain = app.start_chain(work)
    assert app.drain() == 1
    found = app.get_chain(chain.id)
    assert found is not None
    assert found.tail_type_name == "next"
    assert ledger(app) == [1]


@pytest.mark.parametrize("leave_open", ["transaction", "pipeline"])
def test_what_a_handler_leaves_open_harms_nobody(app: Queuert, leave_open: str) -> None:
    @app.job("careless", max_attempts=1)
    def careless(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            opened.append(getattr(tx, leave_open)())
            opened[-1].__enter__()

    @app.job("work")
    def work(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (2)")

    opened: list[Any] = []
    bad = app.start_chain(careless)
    app.drain()
    saved = app.wait_for(bad, raise_on_failure=False).status == "completed"
    for _ in range(3):
        app.start_chain(work)
    assert app.drain() == 3
    assert ledger(app) == ([1] if saved else []) + [2, 2, 2]


def test_tables_that_a_rollback_took_back_are_not_remembered(app: Queuert) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE shape (a integer)")
    undone = RuntimeError()
    with pytest.raises(RuntimeError), app.transaction() as tx:
        _alter_and_read(tx, undone)
    with app.transaction() as tx:
        assert [column.name for column in tx.execute("SELECT * FROM shape").description] == ["a"]


def _alter_and_read(tx: Any, error: Exception) -> None:
    tx.execute("ALTER TABLE shape ADD b integer")
    for _ in range(8):  # until psycopg has prepared it
        tx.execute("SELECT * FROM shape")
    raise error


def test_an_interrupt_after_the_handler_leaves_no_transaction_open(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job("work")
    def work(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    app.start_chain(work)
    with monkeypatch.context() as patch:
        patch.setattr(context_of(app).payloads, "encode_output", interrupt)
        with pytest.raises(KeyboardInterrupt):
            app.drain()
    assert ledger(app) == []

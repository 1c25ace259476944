"""Four ways in which claims of other systems become slow or stop, each on a backlog that would show it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from support.operations import OPERATIONS
from support.planning import PostgresPlans, SqlitePlans
from support.seeding import DUE, TYPES, job_id
from support.store import Store

from queuert.model import Job
from queuert.storage.records import Level
from queuert.storage.repository import CLAIM_WINDOW

pytestmark = pytest.mark.slow

Planner = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def own_postgres(pg_url: str) -> Iterator[Store]:
    store = Store(pg_url)
    store.migrate()
    yield store
    store.close()


# 1. Sorting the backlog


@pytest.mark.parametrize(
    ("types", "name"), [(1, "claim 10 of 1 type"), (5, "claim 10 of 5 types"), (20, "claim 10 of 20 types")]
)
def test_a_claim_never_sorts_the_backlog(types: int, name: str, big: Store, planned: Planner, kind: str) -> None:
    with planned() as session:
        assert len(OPERATIONS[name](big, session)) == 10
    if kind == "sqlite":
        assert session.cost.steps < 2_500 * types + 6_000
        return
    # At most a window for each type and each of the four priorities that it has.
    assert session.cost.sorted <= types * 4 * 10 * CLAIM_WINDOW
    assert session.cost.indexes <= {"queuert_job_claim_idx", "queuert_job_pkey"}


def test_a_claim_from_the_head_reads_a_few_rows_of_the_backlog(big_postgres: Store) -> None:
    for generic in (False, True):
        with closing(big_postgres.database.open_listener()) as conn, conn.transaction(force_rollback=True):
            due = "SELECT id FROM queuert_job WHERE type_name = 't00' AND status = 'pending' AND scheduled_at < now() LIMIT 15"
            conn.execute(f"UPDATE queuert_job SET priority = 100 WHERE id IN ({due})")  # before those of the future
            session = PostgresPlans(big_postgres.database.join(conn), generic=generic)
            assert len(big_postgres.claim_head(10, TYPES[0], session=session)) == 10
        assert session.cost.sorted <= 10 * CLAIM_WINDOW
        assert session.cost.rows <= 3 * 10 * CLAIM_WINDOW
        assert session.cost.indexes <= {"queuert_job_claim_idx", "queuert_job_pkey"}


# 2. Locking more than is taken


def test_while_a_claim_is_not_committed_others_still_get_jobs_of_every_type(big_postgres: Store) -> None:
    store = big_postgres
    with ExitStack() as open_transactions:

        def session() -> Any:
            conn = open_transactions.enter_context(closing(store.database.open_listener()))
            conn.execute("SET lock_timeout = '2s'")
            open_transactions.enter_context(conn.transaction(force_rollback=True))
            return store.database.join(conn)

        taken = [job.id for job in store.claim(10, TYPES, session=session())]
        for name in TYPES:
            (job,) = store.claim(1, [name], session=session())
            assert job.type_name == name
            taken.append(job.id)
        # Nor is a row locked that was not taken.
        rows = "SELECT id FROM {job} WHERE status = 'pending' AND type_name = 't00' FOR UPDATE SKIP LOCKED"
        free = store.sql(rows, session())
        pending = store.sql("SELECT count(*) FROM {job} WHERE status = 'pending' AND type_name = 't00'", session())[0][0]
        assert len(free) == pending - sum(store.job(identity).type_name == "t00" for identity in taken)
    assert len(set(taken)) == 10 + len(TYPES)


# 3. Future jobs of a high priority before due ones of a low

FUTURE_POSTGRES = """
    INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, priority, scheduled_at)
    SELECT i, 'a', i, 'a', 10, now() + interval '1 year'
    FROM (SELECT gen_random_uuid() FROM generate_series(1, 100000)) AS n (i)
"""
FUTURE_SQLITE = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, priority, scheduled_at)
    SELECT printf('future %d', i), 'a', printf('future %d', i), 'a', 10, '2999-01-01T00:00:00.000000Z' FROM n
"""


@pytest.mark.parametrize("generic", [False, True])
def test_a_due_job_is_claimed_at_once_behind_100000_future_ones(own_postgres: Store, generic: bool) -> None:
    store = own_postgres
    with closing(store.database.open_listener()) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(FUTURE_POSTGRES)
        conn.execute("VACUUM ANALYZE")
    due = store.start(priority=0)
    with closing(store.database.open_listener()) as conn, conn.transaction(force_rollback=True):
        session = PostgresPlans(store.database.join(conn), generic=generic)
        assert [job.id for job in store.claim(10, session=session)] == [due.id]
        assert session.cost.rows <= 60
        assert session.cost.buffers <= 150
        short = PostgresPlans(store.database.join(conn), generic=generic)
        assert store.claim_head(10, session=short) == [], "it looks at the first few"
        assert short.cost.buffers <= 60
        looking = PostgresPlans(store.database.join(conn), generic=generic)
        assert store.repository.next_due(looking, ["a"]) > 0
        assert looking.cost.buffers <= 60


def test_a_due_job_is_claimed_at_once_behind_100000_future_ones_on_sqlite(sqlite_path: Path) -> None:
    store = Store(f"sqlite:///{sqlite_path}")
    store.migrate()
    due = store.start(priority=0)
    store.close()
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute(FUTURE_SQLITE)
        conn.execute("ANALYZE")
        session = SqlitePlans(conn)
        assert [job.id for job in store.claim(10, session=session)] == [due.id]
        assert session.cost.steps <= 2_000


# 4. A held snapshot that keeps dead rows at the head


def test_under_a_held_snapshot_a_claim_steps_over_what_was_claimed(own_postgres: Store) -> None:
    store = own_postgres
    pending = "INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, scheduled_at) "
    pending += "SELECT i, 'a', i, 'a', now() - interval '1 day' + n * interval '1 second' "
    # In no order, so that neighbours in the index lie on different pages of the table.
    pending += "FROM (SELECT gen_random_uuid(), n FROM generate_series(1, 12000) AS s (n)) AS rows (i, n) ORDER BY random()"
    with closing(store.database.open_listener()) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(pending)
        conn.execute("VACUUM ANALYZE")

    def cost(**options: Any) -> tuple[int, list[Job]]:
        with closing(store.database.open_listener()) as conn, conn.transaction(force_rollback=True):
            session = PostgresPlans(store.database.join(conn), generic=True)
            jobs = store.claim(10, ["a"], session=session, **options)
            return session.cost.buffers, jobs

    before, _ = cost()
    with closing(store.database.open_listener()) as reader, reader.transaction():
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM queuert_job")
        claimed: list[Job] = []
        while len(claimed) < 6_000:
            claimed += store.claim(500, ["a"])
        hint = [Level("a", 0, claimed[-1].scheduled_at)]
        walking, _ = cost()
        hinted, jobs = cost(levels=hint)
        assert len(jobs) == 10
        assert walking > 3 * before, "the snapshot holds nothing: the test shows nothing"
        assert hinted <= before * 1.3
        # What comes back below the hint is found when it is dropped, and not before.
        store.release(claimed[5])
        assert claimed[5].id not in {job.id for job in cost(levels=hint)[1]}
        assert claimed[5].id == cost()[1][0].id


def test_the_backlog_is_as_described(big: Store) -> None:
    """The tests above mean something only on the backlog they speak of."""
    rows = dict(big.sql("SELECT status, count(*) FROM {job} GROUP BY status"))
    assert rows == {
        "pending": 100_000,
        "blocked": 50_000,
        "completed": 50_000,
        "running": 1_000,
        "failed": 1_000,
        "cancelled": 1_000,
    }
    assert big.job(job_id(DUE)).type_name == TYPES[0]

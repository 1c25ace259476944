"""What `migrate()` does to a PostgreSQL database that others use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support import eventually
from support.fleet import Fleet

from queuert.postgres.database import PostgresDatabase
from queuert.postgres.dialect import POSTGRES
from queuert.storage.loader import Script, migrations
from queuert.storage.migrations import migrate, migration_status
from queuert.storage.names import Names

NAMES = Names()
KNOWN = migrations(POSTGRES, NAMES)
INDEX = "queuert_job_open_key_idx"


@pytest.fixture
def database(empty_pg_url: str) -> Iterator[PostgresDatabase]:
    """As the first release made it."""
    database = PostgresDatabase(empty_pg_url)
    migrate(database, NAMES, KNOWN[:1])
    yield database
    database.close()


@pytest.fixture
def conn(empty_pg_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        yield conn


def functions(conn: psycopg.Connection) -> dict[str, tuple[int, str]]:
    rows = conn.execute("SELECT proname, oid::int, xmin::text FROM pg_proc WHERE proname LIKE 'queuert%'").fetchall()
    return {name: (oid, xmin) for name, oid, xmin in rows}


def is_valid(conn: psycopg.Connection) -> list[bool]:
    query = "SELECT indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid WHERE relname = %s"
    return [valid for (valid,) in conn.execute(query, (INDEX,))]


def test_an_index_that_was_left_half_built_is_built_anew(database: PostgresDatabase, conn: psycopg.Connection) -> None:
    """The backend is ended while it waits for a transaction that is older than its index."""
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as other:
        other.execute("UPDATE queuert_job SET priority = 0; SELECT pg_current_xact_id()")
        failed: list[BaseException] = []

        def run() -> None:
            try:
                migrate(database, NAMES)
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        building = "SELECT pid FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
        [(pid,)] = eventually(lambda: is_valid(conn) == [False] and conn.execute(building).fetchall())
        conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
        thread.join(30)
        assert failed
    assert is_valid(conn) == [False]
    assert migration_status(database, NAMES).pending[0] == "0002_open_keys"
    assert migrate(database, NAMES).pending == ()
    assert is_valid(conn) == [True]


def test_a_function_that_differs_is_replaced_and_the_others_are_left_alone(
    database: PostgresDatabase, conn: psycopg.Connection
) -> None:
    migrate(database, NAMES)
    before = functions(conn)
    migrate(database, NAMES)
    assert functions(conn) == before
    conn.execute("COMMENT ON FUNCTION queuert_lock_jobs IS 'queuert of another version'")
    migrate(database, NAMES)
    changed = {name for name, found in functions(conn).items() if found != before[name]}
    assert changed == {"queuert_lock_jobs"}
    assert {"queuert_complete", "queuert_complete_one", "queuert_release"} <= set(before), "for workers of 0.1.0"


def test_a_migration_that_cannot_get_its_lock_lets_others_through(database: PostgresDatabase, conn: psycopg.Connection) -> None:
    migrate(database, NAMES)
    scripts = [*KNOWN, Script("9999_column", ('ALTER TABLE "queuert_job" ADD COLUMN extra text',))]
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as other:
        other.execute("UPDATE queuert_job SET priority = 0")
        thread = threading.Thread(target=migrate, args=(database, NAMES, scripts))
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        eventually(lambda: conn.execute(waiting).fetchall())
        conn.execute("SET statement_timeout = '10s'")
        conn.execute("UPDATE queuert_job SET priority = 0")  # behind the migration, until that gives up
        assert thread.is_alive()
    thread.join(30)
    assert migration_status(database, NAMES, scripts).pending == ()


def test_jobs_are_started_claimed_and_completed_while_an_index_is_being_built(
    database: PostgresDatabase, conn: psycopg.Connection, empty_pg_url: str, last_release: Path, tmp_path: Path
) -> None:
    """By the release that made the database; the index waits for a transaction that is older, for as long as we like."""
    url = empty_pg_url
    fleet = Fleet(tmp_path, Path(__file__).with_name("load.py"), url=url, gate="", stop=str(tmp_path / "stop"))
    conn.execute("CREATE TABLE ledger (job_id text, type_name text)")
    conn.execute("CREATE TABLE orders (chain_id text)")
    crew = [fleet.start(release=last_release, role=role) for role in ("worker", "enqueuer")]
    with fleet.explained(), psycopg.connect(url) as other:
        fleet.marks.wait("started")
        other.execute("UPDATE queuert_job SET priority = 0 WHERE false")  # a lock on the table, and on no row
        thread = threading.Thread(target=migrate, args=(database, NAMES))
        thread.start()
        phase = "SELECT 1 FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
        eventually(lambda: conn.execute(phase).fetchall(), 30)
        so_far = [fleet.marks.count("started"), fleet.marks.count("round")]
        eventually(lambda: fleet.marks.count("started") > so_far[0] + 100 and fleet.marks.count("round") > so_far[1] + 5, 30)
        assert thread.is_alive()
        other.commit()
        thread.join(30)
        (tmp_path / "stop").touch()
        assert [crew[1].wait(), crew[0].stop()] == [0, 0]
    assert migration_status(database, NAMES).pending == ()

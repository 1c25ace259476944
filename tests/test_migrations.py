"""Migrations: in order, recorded, under a lock, each one all or nothing; on every database."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert.errors import SchemaVersionError
from queuert.postgres.database import PostgresDatabase
from queuert.sqlite.database import SqliteDatabase
from queuert.sqlite.dialect import SQLITE
from queuert.storage.loader import Query, Script, migrations, queries
from queuert.storage.migrations import explain, migrate, migration_status
from queuert.storage.names import Names
from queuert.storage.urls import parse_target

NAMES = Names()
FIRST = Script("0001_first", ("CREATE TABLE first (a TEXT)", "INSERT INTO first VALUES ('100% {x} :y')"))
SECOND = Script("0002_second", ("ALTER TABLE first ADD COLUMN b TEXT",))
BROKEN = Script("0003_broken", ("CREATE TABLE third (a TEXT)", "INSERT INTO nowhere VALUES (1)"))
ROWS = Query("rows", ("SELECT * FROM first",))
THIRD = Query("third", ("SELECT * FROM third",))


@pytest.fixture
def database(empty_target: str) -> Iterator[Any]:
    target = parse_target(empty_target)
    database: Any = SqliteDatabase(str(target.path)) if target.dialect == "sqlite" else PostgresDatabase(target)
    yield database
    database.close()


def rows(database: Any) -> list[Any]:
    with database.read() as session:
        found: list[Any] = session.run(ROWS, {})
        return found


def has_third(database: Any) -> bool:
    try:
        with database.read() as session:
            session.run(THIRD, {})
    except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
        return False
    return True


def test_an_empty_database_has_everything_pending_and_stays_empty(database: Any) -> None:
    for _ in range(2):
        status = migration_status(database, NAMES, [FIRST, SECOND])
        assert (status.applied, status.pending) == ((), ("0001_first", "0002_second"))


def test_migrations_run_once_and_in_order(database: Any) -> None:
    assert migrate(database, NAMES, [FIRST]).applied == ("0001_first",)
    assert rows(database) == [("100% {x} :y",)]
    assert migration_status(database, NAMES, [FIRST, SECOND]).pending == ("0002_second",)
    for _ in range(2):
        status = migrate(database, NAMES, [FIRST, SECOND])
        assert (status.applied, status.pending) == (("0001_first", "0002_second"), ())
    assert rows(database) == [("100% {x} :y", None)]


def test_when_a_migration_was_applied_is_recorded(database: Any) -> None:
    migrate(database, NAMES, [FIRST])
    with database.read() as session:
        [(name, applied_at)] = session.run(queries(database.dialect, NAMES)["list_migrations"], {})
    assert name == "0001_first"
    if database.dialect is SQLITE:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", applied_at)
        applied_at = datetime.strptime(applied_at, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    assert applied_at.tzinfo is timezone.utc
    assert abs((datetime.now(timezone.utc) - applied_at).total_seconds()) < 60


def test_a_failed_migration_undoes_itself_and_keeps_those_before_it(database: Any) -> None:
    migrate(database, NAMES, [FIRST])
    with pytest.raises((sqlite3.OperationalError, psycopg.Error)):
        migrate(database, NAMES, [FIRST, SECOND, BROKEN])
    assert rows(database) == [("100% {x} :y", None)]
    status = migration_status(database, NAMES, [FIRST, SECOND, BROKEN])
    assert (status.applied, status.pending) == (("0001_first", "0002_second"), ("0003_broken",))
    assert not has_third(database)
    mended = Script(BROKEN.name, BROKEN.statements[:1])
    assert migrate(database, NAMES, [FIRST, SECOND, mended]).pending == ()
    assert has_third(database)


def test_a_failed_first_migration_leaves_nothing_of_itself(database: Any) -> None:
    with pytest.raises((sqlite3.OperationalError, psycopg.Error)):
        migrate(database, NAMES, [BROKEN])
    assert migration_status(database, NAMES, [BROKEN]).applied == ()
    assert not has_third(database)


def test_a_database_newer_than_the_library_is_refused(database: Any) -> None:
    migrate(database, NAMES, [FIRST, SECOND])
    for act in (migrate, migration_status):
        with pytest.raises(SchemaVersionError, match=r"0002_second.*Upgrade the library"):
            act(database, NAMES, [FIRST])


def test_prefixes_live_side_by_side(database: Any) -> None:
    other = Names(prefix="other_")
    migrate(database, NAMES)
    assert migration_status(database, other).applied == ()
    migrate(database, other)
    assert migration_status(database, other).pending == ()
    assert migration_status(database, NAMES).pending == ()


def test_the_real_migrations_are_applied(database: Any) -> None:
    status = migrate(database, NAMES)
    assert status.applied == tuple(migration.name for migration in migrations(database.dialect, NAMES))
    with database.read() as session:
        assert session.run(Query("q", ('SELECT count(*) FROM "queuert_job"',)), {}) == [(0,)]


def test_a_schema_that_is_not_there_is_made(empty_pg_url: str) -> None:
    database = PostgresDatabase(empty_pg_url)
    names = Names(schema="Jobs")
    migrate(database, names)
    assert migration_status(database, names).pending == ()
    assert migration_status(database, NAMES).applied == ()
    with database.read() as session:
        assert session.run(Query("q", ('SELECT count(*) FROM "Jobs"."queuert_job"',)), {}) == [(0,)]
    database.close()


def test_a_database_whose_default_is_serializable_is_migrated(empty_pg_url: str) -> None:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    assert _race(empty_pg_url, 3) == ["fine"] * 3


RACE = """
    import sys, time
    from queuert.storage.migrations import migrate, migration_status
    from queuert.storage.names import Names
    from queuert.storage.urls import parse_target
    target = parse_target(sys.argv[1])
    if target.dialect == "sqlite":
        from queuert.sqlite.database import SqliteDatabase
        database = SqliteDatabase(target.path, busy_timeout=30)
    else:
        from queuert.postgres.database import PostgresDatabase
        database = PostgresDatabase(target)
    names = Names(schema="raced")
    while time.time() < float(sys.argv[2]):
        pass
    status = migrate(database, names)
    assert status.applied and not status.pending, status
    assert migration_status(database, names) == status
    database.close()
    print("fine")
"""


def _race(url: str, number: int) -> list[str]:
    at = time.time() + 2
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACE), url, str(at)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    outputs = [process.communicate(timeout=90) for process in processes]
    return [out.strip() or err for out, err in outputs]


def test_eight_processes_migrate_one_file(sqlite_path: Path) -> None:
    assert _race(f"sqlite:///{sqlite_path}", 8) == ["fine"] * 8


def test_eight_processes_migrate_one_postgres_database(empty_pg_url: str) -> None:
    assert _race(empty_pg_url, 8) == ["fine"] * 8


def test_missing_tables_are_explained(database: Any) -> None:
    def failure(statement: str) -> BaseException:
        try:
            with database.read() as session:
                session.run(Query("q", (statement,)), {})
        except (sqlite3.Error, psycopg.Error) as error:
            return error
        raise AssertionError("it did not fail")

    missing = explain(failure('SELECT 1 FROM "queuert_job"'), database, NAMES)
    assert isinstance(missing, SchemaVersionError)
    assert "app.migrate()" in str(missing)
    assert explain(failure("SELECT 1 FROM orders"), database, NAMES) is None
    migrate(database, NAMES)
    column = failure('SELECT j.new_thing FROM "queuert_job" AS j')
    assert isinstance(explain(column, database, NAMES, ours=True), SchemaVersionError)
    assert explain(column, database, NAMES) is None
    assert explain(failure("SELECT 1 +"), database, NAMES, ours=True) is None
    assert explain(KeyError("queuert_job"), database, NAMES, ours=True) is None

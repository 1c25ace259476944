"""The SQL file loader, on directories of small files."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert.model import Status
from queuert.postgres.dialect import POSTGRES
from queuert.postgres.session import PostgresSession
from queuert.sqlite.dialect import SQLITE
from queuert.sqlite.session import SqliteSession
from queuert.storage.loader import Dialect, Query, Script, SqlFileError, functions, migrations, queries
from queuert.storage.names import Names

pytestmark = pytest.mark.conformance

Write = Callable[..., Path]

DIALECTS = {dialect.name: dialect for dialect in (SQLITE, POSTGRES)}

GET = """\
-- name: get_job
-- params: id
-- One job.
SELECT * FROM {job} WHERE id = :id;
"""
MORE = "-- name: more\n-- Text.\nSELECT 1;"
TOP = "-- name: q\n-- params: id\n-- A query.\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes query files (one per dialect) and migrations, and returns the directory."""

    def write(
        sqlite: str = GET,
        postgres: str = GET,
        *,
        sqlite_migrations: dict[str, str] | None = None,
        postgres_migrations: dict[str, str] | None = None,
        postgres_functions: dict[str, str] | None = None,
    ) -> Path:
        chosen = {"sqlite": (sqlite, sqlite_migrations), "postgres": (postgres, postgres_migrations)}
        for dialect, (text, numbered) in chosen.items():
            for kind in ("queries", "migrations"):
                (tmp_path / dialect / kind).mkdir(parents=True)
            (tmp_path / dialect / "queries" / "job.sql").write_text(text)
            for name, content in (numbered or {}).items():
                (tmp_path / dialect / "migrations" / name).write_text(content)
        (tmp_path / "postgres" / "functions").mkdir()
        for name, content in (postgres_functions or {}).items():
            (tmp_path / "postgres" / "functions" / name).write_text(content)
        return tmp_path

    return write


def check(root: Path | None = None) -> None:
    """Loads everything, for either dialect."""
    for dialect in DIALECTS.values():
        queries(dialect, Names(), root)
        migrations(dialect, Names(), root)
        functions(dialect, Names(), root)


def both(write: Write, text: str) -> tuple[Query, Query]:
    """The one query of a text, for SQLite and for PostgreSQL."""
    root = write(text, text)
    [sqlite] = queries(SQLITE, Names(), root).values()
    [postgres] = queries(POSTGRES, Names(), root).values()
    return sqlite, postgres


def test_a_query_has_its_name_its_parameters_and_the_configured_table(write: Write) -> None:
    sqlite, postgres = both(write, GET)
    assert sqlite == Query("get_job", ('SELECT * FROM "queuert_job" WHERE id = :id',), ("id",))
    assert postgres.statements == ('SELECT * FROM "public"."queuert_job" WHERE id = $1',)
    assert postgres.source == "postgres/queries/job.sql:1"


def test_casts_literals_and_comments_are_not_parameters(write: Write) -> None:
    _, postgres = both(
        write,
        "-- name: q\n-- params: a\n-- All that looks like a parameter.\n"
        "SELECT :a::text, ':b', 'it''s :c', \"x:d\", now()::date -- :e {f}; 'g\n"
        "  /* :h; ' */ , $x$ :i; $x$, E'\\':j';\n",
    )
    assert postgres.statements == (
        "SELECT $1::text, ':b', 'it''s :c', \"x:d\", pg_catalog.now()::date\n   , $x$ :i; $x$, E'\\':j'",
    )


def test_parameters_are_numbered_in_the_order_of_their_declaration(write: Write) -> None:
    sqlite, postgres = both(write, "-- name: q\n-- params: a, b\n-- Twice.\nSELECT :b, :a, :b WHERE 5 % 2 = 1;\n")
    assert (sqlite.statements, sqlite.params) == (("SELECT :b, :a, :b WHERE 5 % 2 = 1",), ("a", "b"))
    assert (postgres.statements, postgres.params) == (("SELECT $2, $1, $2 WHERE 5 % 2 = 1",), ("a", "b"))


def test_psycopg_runs_what_the_loader_made(write: Write, postgres_url: str) -> None:
    _, postgres = both(
        write,
        "-- name: q\n-- params: n, text\n-- Literals with everything in them.\n"
        "SELECT 5 % :n::int, '100%', '%(n)s', ':n', :text::text, '{}'::jsonb;\n",
    )
    with psycopg.connect(postgres_url) as conn:
        [row] = PostgresSession(conn).run(postgres, {"n": 3, "text": "it's 5%", "unused": 1})
    assert row == (2, "100%", "%(n)s", ":n", "it's 5%", "{}")


def test_sqlite_runs_several_statements_with_the_same_parameters(write: Write) -> None:
    text = (
        "-- name: double\n-- params: ids\n-- Two steps.\n"
        "INSERT INTO {job} SELECT value || 'a;b' FROM json_each(:ids);\n\n"
        "-- The second step; with a comment\nSELECT {job}.id FROM {job}, json_each(:ids) WHERE {job}.id = value || 'a;b';\n"
    )
    one = "-- name: double\n-- params: ids\n-- Nothing alike.\nSELECT :ids;\n"
    query = queries(SQLITE, Names(), write(text, one))["double"]
    assert len(query.statements) == 2
    conn = sqlite3.connect(":memory:")
    conn.execute('CREATE TABLE "queuert_job" (id TEXT)')
    rows = SqliteSession(conn).run(query, {"ids": "[1, 2]"})
    conn.close()
    assert rows == [("1a;b",), ("2a;b",)]


def test_a_block_with_a_direction_becomes_two_queries(write: Write) -> None:
    text = (
        "-- name: list_jobs\n-- params: after\n-- A page.\n"
        "SELECT id FROM {job} WHERE id {beyond} :after ORDER BY id {direction};\n"
    )
    found = queries(SQLITE, Names(), write(text, text))
    assert {name: query.statements for name, query in found.items()} == {
        "list_jobs_asc": ('SELECT id FROM "queuert_job" WHERE id > :after ORDER BY id ASC',),
        "list_jobs_desc": ('SELECT id FROM "queuert_job" WHERE id < :after ORDER BY id DESC',),
    }


def test_times_are_shifted_as_each_dialect_does_it(write: Write, postgres_url: str) -> None:
    sqlite, postgres = both(
        write,
        "-- name: q\n-- params: lease\n-- Later, and earlier.\n"
        "SELECT {now + :lease seconds} > {now}, {now - :lease seconds} < {now};\n",
    )
    conn = sqlite3.connect(":memory:")
    assert SqliteSession(conn).run(sqlite, {"lease": 1.5}) == [(1, 1)]
    conn.close()
    with psycopg.connect(postgres_url) as server:
        assert PostgresSession(server).run(postgres, {"lease": 1.5}) == [(True, True)]


def test_a_query_may_belong_to_one_dialect(write: Write) -> None:
    root = write(GET + MORE, GET + MORE.replace("more", "other"))
    check(root)
    assert set(queries(SQLITE, Names(), root)) == {"get_job", "more"}
    assert set(queries(POSTGRES, Names(), root)) == {"get_job", "other"}


def test_a_query_of_both_dialects_may_declare_its_parameters_in_another_order(write: Write) -> None:
    text = "-- name: q\n-- params: a, b\n-- Sum.\nSELECT :a + :b;\n"
    root = write(text, text.replace("a, b", "b, a"))
    assert queries(SQLITE, Names(), root)["q"].statements == ("SELECT :a + :b",)
    assert queries(POSTGRES, Names(), root)["q"].statements == ("SELECT $2 + $1",)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_either_dialect_refuses_a_shared_name_with_other_parameters(write: Write, dialect: Dialect) -> None:
    with pytest.raises(SqlFileError, match=rf"^{dialect.name}/queries/job.sql:1: query 'get_job' declares other params in "):
        queries(dialect, Names(), write(GET, GET.replace("id", "key")))


def test_parameters_may_be_declared_on_several_lines(write: Write) -> None:
    sqlite, _ = both(write, "-- name: q\n-- params: a,\n-- params: b\n-- Sum.\nSELECT :a + :b;\n")
    assert sqlite.params == ("a", "b")


@pytest.mark.parametrize(
    ("sqlite", "postgres", "problem"),
    [
        (GET + GET, GET, r"sqlite/queries/job.sql:5: query 'get_job' is defined in sqlite/queries/job.sql:1 already"),
        ("-- name:\n-- Text.\nSELECT 1;", GET, r"sqlite/queries/job.sql:1: a query needs a name"),
        ("-- name: a b\n-- Text.\nSELECT 1;", GET, r"job.sql:1: a query needs a name .* not 'a b'"),
        ("SELECT 1;\n" + GET, GET, r"job.sql:1: there is SQL before the first"),
        (GET, TOP + "SELECT :id,\n  :other;", r"postgres/queries/job.sql:5: :other is not declared"),
        (TOP + "SELECT 1;", GET, r"job.sql:1: query 'q' declares id without using it"),
        (TOP + "SELECT ':id';", GET, r"job.sql:1: query 'q' declares id without using it"),
        ("-- name: q\n-- params: a, a\n-- Text.\nSELECT :a;", GET, r"job.sql:1: query 'q' declares a parameter twice"),
        ("-- name: q\n-- params: id\nSELECT :id;", GET, r"job.sql:1: query 'q' needs a line that describes it"),
        ("-- name: q\n-- Text.\n", GET, r"job.sql:1: query 'q' has 0 statements"),
        (GET, TOP + "SELECT :id; SELECT :id;", r"postgres/queries/job.sql:1: query 'q' has 2 statements"),
        (TOP + "SELECT :id FROM\n {jobs};", GET, r"sqlite/queries/job.sql:5: {jobs} is not a known token"),
        (TOP + "SELECT :id, '{nobody}';", GET, r"sqlite/queries/job.sql:4: {nobody} is not a known token"),
        (TOP + "SELECT :id\n-- Why.\n /* And\n how. */ FROM {jobs};", GET, r"sqlite/queries/job.sql:7: {jobs} is not"),
        (TOP + "-- Why.\n\nSELECT :id; -- And\n\nSELECT :other;", GET, r"sqlite/queries/job.sql:8: :other is not declared"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(write: Write, sqlite: str, postgres: str, problem: str) -> None:
    with pytest.raises(SqlFileError, match=problem):
        check(write(sqlite, postgres))


def test_migrations_come_in_order_as_single_statements(write: Write) -> None:
    first = (
        '-- The tables.\nCREATE TABLE {job} (id {id_type}{id_default});\nCREATE INDEX "{prefix}job_x" ON {job} (id);\n'
        "INSERT INTO {job} VALUES ('100%; :y');\n"
    )
    second = "CREATE TYPE {job_status} AS ENUM ('a', 'b'); DO $$ BEGIN PERFORM 1; END $$;"
    root = write(
        sqlite_migrations={"0002_more.sql": "-- Only for PostgreSQL.\n", "0001_start.sql": first},
        postgres_migrations={"0001_start.sql": "SELECT 5 % 2;", "0002_enum.sql": second},
    )
    names = Names("my_", "jobs", id_default="newid(')')")
    start, more = migrations(SQLITE, names, root)
    assert (start.name, more.name, more.statements) == ("0001_start", "0002_more", ())
    assert start.statements == (
        "CREATE TABLE \"my_job\" (id text DEFAULT (newid(')')))",
        'CREATE INDEX "my_job_x" ON "my_job" (id)',
        "INSERT INTO \"my_job\" VALUES ('100%; :y')",
    )
    assert [migration.statements for migration in migrations(POSTGRES, names, root)] == [
        ("SELECT 5 % 2",),
        ("CREATE TYPE \"jobs\".\"my_job_status\" AS ENUM ('a', 'b')", "DO $$ BEGIN PERFORM 1; END $$"),
    ]


@pytest.mark.parametrize(
    ("sqlite", "postgres", "problem"),
    [
        (["0001_a.sql"], [], r"postgres/migrations:1: there is no migration 0001, as sqlite has"),
        (["0001_a.sql"], ["0001_a.sql", "0002_b.sql"], r"sqlite/migrations:1: there is no migration 0002, as postgres has"),
        (["0001_a.sql", "0001_b.sql"], ["0001_a.sql"], r"0001_a.sql:1: a migration has a number of its own"),
        (["1_a.sql"], ["0001_a.sql"], r"sqlite/migrations/1_a.sql:1: a migration has a number of its own: NNNN_name.sql"),
    ],
)
def test_migrations_must_match(write: Write, sqlite: list[str], postgres: list[str], problem: str) -> None:
    root = write(sqlite_migrations=dict.fromkeys(sqlite, "SELECT 1;"), postgres_migrations=dict.fromkeys(postgres, "SELECT 1;"))
    with pytest.raises(SqlFileError, match=problem):
        check(root)


def test_functions_are_loaded_with_the_configured_names(write: Write) -> None:
    body = "$$ BEGIN\n  -- Kept; it is the body's own.\n  x := 5 % 2; PERFORM 1 FROM {job};\nEND $$ LANGUAGE plpgsql"
    text = f"-- Locks.\nCREATE OR REPLACE FUNCTION {{lock_jobs}}() RETURNS void AS {body};\n"
    root = write(postgres_functions={"lock_jobs.sql": text})
    names = Names("my_", "jobs")
    expected = body.replace("{job}", '"jobs"."my_job"')
    assert functions(POSTGRES, names, root) == [
        Script("lock_jobs", (f'CREATE OR REPLACE FUNCTION "jobs"."my_lock_jobs"() RETURNS void AS {expected}',))
    ]
    assert functions(SQLITE, names, root) == []


def test_an_unknown_token_in_a_function_is_refused_with_its_line(write: Write) -> None:
    text = "-- Locks.\nCREATE FUNCTION f() RETURNS void AS $$\n  SELECT 1 FROM {nobody}; $$;"
    with pytest.raises(SqlFileError, match=r"postgres/functions/f.sql:3: {nobody} is not a known token"):
        functions(POSTGRES, Names(), write(postgres_functions={"f.sql": text}))


@pytest.mark.parametrize(
    "options",
    [
        {"prefix": ""},
        {"prefix": "1a"},
        {"prefix": 'a"b'},
        {"prefix": "a-b"},
        {"prefix": "a\n"},
        {"prefix": "ä_"},
        {"prefix": "p" * 31},
        {"prefix": None},
        {"schema": "a.b"},
        {"schema": "s" * 64},
        {"id_type": "uuid; DROP TABLE x"},
        {"id_type": "text primary key"},
        {"id_type": ""},
        {"id_type": 5},
        {"id_default": "1; DROP TABLE x"},
        {"id_default": "1 -- x"},
        {"id_default": "1 /* x"},
        {"id_default": " "},
        {"id_default": 5},
    ],
)
def test_bad_names_are_refused_with_their_value(options: dict[str, Any]) -> None:
    [value] = options.values()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        Names(**options)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("id_type", ["uuid", "text", "bigint", "varchar(36)", "character varying(36)"])
def test_plain_id_types_are_accepted(id_type: str) -> None:
    assert POSTGRES.tokens(Names(id_type=id_type))["id_type"] == id_type


def test_default_id_types() -> None:
    assert (SQLITE.tokens(Names())["id_type"], POSTGRES.tokens(Names())["id_type"]) == ("text", "uuid")
    assert SQLITE.tokens(Names())["id_default"] == ""


def test_a_prefix_and_a_schema_of_the_longest_kind_are_accepted() -> None:
    tokens = POSTGRES.tokens(Names(prefix="p" * 30, schema="s" * 63))
    assert tokens["job"] == f'"{"s" * 63}"."{"p" * 30}job"'


def test_the_files_of_the_library_are_well_formed() -> None:
    check()


def test_a_claim_on_postgres_leaves_out_every_state_but_one() -> None:
    """It names the states that cannot be claimed, so that a new one would have to be added there."""
    (listed,) = re.findall(r"status::text NOT IN \((.*?)\)", queries(POSTGRES, Names())["claim_jobs"].statements[0])
    assert set(re.findall(r"\w+", listed)) == {status.value for status in Status} - {"pending"}

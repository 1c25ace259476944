"""The SQL file loader, on directories of small files."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert.model import Status
from queuert.storage.loader import Query, SqlFileError, check, migrations, queries
from queuert.storage.names import Names

pytestmark = pytest.mark.conformance

Write = Callable[..., Path]

GET = """\
-- name: get_job
-- params: id
-- One job.
SELECT * FROM {job} WHERE id = :id;
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes query files (one per dialect) and migrations, and returns the directory."""

    def write(
        sqlite: str = GET,
        postgres: str = GET,
        *,
        sqlite_migrations: dict[str, str] | None = None,
        postgres_migrations: dict[str, str] | None = None,
    ) -> Path:
        chosen = {"sqlite": (sqlite, sqlite_migrations), "postgres": (postgres, postgres_migrations)}
        for dialect, (text, numbered) in chosen.items():
            for kind in ("queries", "migrations"):
                (tmp_path / dialect / kind).mkdir(parents=True)
            (tmp_path / dialect / "queries" / "job.sql").write_text(text)
            for name, content in (numbered or {}).items():
                (tmp_path / dialect / "migrations" / name).write_text(content)
        return tmp_path

    return write


def both(write: Write, text: str) -> tuple[Query, Query]:
    """The one query of a text, for SQLite and for PostgreSQL."""
    root = write(text, text)
    [sqlite] = queries("sqlite", Names(), root).values()
    [postgres] = queries("postgres", Names(), root).values()
    return sqlite, postgres


def test_a_query_has_its_name_its_parameters_and_the_configured_table(write: Write) -> None:
    sqlite, postgres = both(write, GET)
    assert sqlite == Query("get_job", ('SELECT * FROM "queuert_job" WHERE id = :id',), frozenset({"id"}), (False,))
    assert postgres.parts == ('SELECT * FROM "public"."queuert_job" WHERE id = %(id)s',)
    assert postgres.source == "postgres/queries/job.sql:1"


def test_casts_literals_and_comments_are_not_parameters(write: Write) -> None:
    _, postgres = both(
        write,
        "-- name: q\n-- params: a\n-- All that looks like a parameter.\n"
        "SELECT :a::text, ':b', 'it''s :c', \"x:d\", now()::date -- :e {f}; 'g\n"
        "  /* :h; ' */ , $x$ :i; $x$, E'\\':j';\n",
    )
    assert postgres.parts == ("SELECT %(a)s::text, ':b', 'it''s :c', \"x:d\", now()::date\n   , $x$ :i; $x$, E'\\':j'",)


def test_a_percent_sign_is_doubled_for_psycopg_only(write: Write) -> None:
    sqlite, postgres = both(write, "-- name: q\n-- params: a\n-- Percent.\nSELECT strftime('%f') WHERE :a % 2 = 0;\n")
    assert sqlite.parts == ("SELECT strftime('%f') WHERE :a % 2 = 0",)
    assert postgres.parts == ("SELECT strftime('%%f') WHERE %(a)s %% 2 = 0",)


def test_psycopg_runs_what_the_loader_made(write: Write, postgres_url: str) -> None:
    _, postgres = both(
        write,
        "-- name: q\n-- params: n, text\n-- Literals with everything in them.\n"
        "SELECT 5 % :n::int, '100%', '%(n)s', ':n', :text::text, '{}'::jsonb;\n",
    )
    with psycopg.connect(postgres_url) as conn:
        row = conn.execute(postgres.parts[0], {"n": 3, "text": "it's 5%", "unused": 1}).fetchone()
    assert row == (2, "100%", "%(n)s", ":n", "it's 5%", {})


def test_sqlite_runs_several_statements_and_passes_on_what_they_returned(write: Write) -> None:
    text = (
        "-- name: double\n-- params: ids\n-- Two steps.\n"
        "INSERT INTO {job} SELECT value FROM json_each(:ids) WHERE true RETURNING id, 'a;b';\n\n"
        "-- The second step\nSELECT json_extract(value, '$[0]') * 2 FROM json_each(:returned);\n"
    )
    one = "-- name: double\n-- params: ids\n-- Nothing alike.\nSELECT :ids;\n"
    query = queries("sqlite", Names(), write(text, one))["double"]
    assert query.uses_returned == (False, True)
    conn = sqlite3.connect(":memory:")
    conn.execute('CREATE TABLE "queuert_job" (id INTEGER)')
    rows = conn.execute(query.parts[0], {"ids": "[1, 2]"}).fetchall()
    again = conn.execute(query.parts[1], {"ids": "[1, 2]", "returned": json.dumps(rows)}).fetchall()
    conn.close()
    assert again == [(2,), (4,)]


def test_a_block_with_a_direction_becomes_two_queries(write: Write) -> None:
    text = (
        "-- name: list_jobs\n-- params: after\n-- A page.\n"
        "SELECT id FROM {job} WHERE id {beyond} :after ORDER BY id {direction};\n"
    )
    found = queries("sqlite", Names(), write(text, text))
    assert {name: query.parts for name, query in found.items()} == {
        "list_jobs_asc": ('SELECT id FROM "queuert_job" WHERE id > :after ORDER BY id ASC',),
        "list_jobs_desc": ('SELECT id FROM "queuert_job" WHERE id < :after ORDER BY id DESC',),
    }


def test_a_dialect_may_have_nothing_to_do(write: Write) -> None:
    root = write("-- name: get_job\n-- params: id\n-- nothing: the file is locked as a whole\n")
    assert queries("sqlite", Names(), root)["get_job"].parts == ()
    assert len(queries("postgres", Names(), root)["get_job"].parts) == 1


def test_parameters_may_be_declared_on_several_lines(write: Write) -> None:
    sqlite, _ = both(write, "-- name: q\n-- params: a,\n-- params: b\n-- Sum.\nSELECT :a + :b;\n")
    assert sqlite.params == {"a", "b"}


MORE = "-- name: more\n-- Text.\nSELECT 1;"
TOP = "-- name: q\n-- params: id\n-- A query.\n"


@pytest.mark.parametrize(
    ("sqlite", "postgres", "problem"),
    [
        (GET + GET, GET, r"sqlite/queries/job.sql:5: query 'get_job' is defined in sqlite/queries/job.sql:1 already"),
        ("-- name:\n-- Text.\nSELECT 1;", GET, r"sqlite/queries/job.sql:1: a query needs a name"),
        ("-- name: a b\n-- Text.\nSELECT 1;", GET, r"job.sql:1: a query needs a name .* not 'a b'"),
        ("SELECT 1;\n" + GET, GET, r"job.sql:1: there is SQL before the first"),
        (GET, TOP + "SELECT :id,\n  :other;", r"postgres/queries/job.sql:5: :other is not declared"),
        (GET, TOP + "SELECT :returned, :id;", r"postgres/queries/job.sql:4: :returned is not declared"),
        (TOP + "SELECT :returned, :id;", GET, r"sqlite/queries/job.sql:4: :returned is not declared"),
        (TOP + "SELECT 1;", GET, r"job.sql:1: query 'q' declares id without using it"),
        (TOP + "SELECT ':id';", GET, r"job.sql:1: query 'q' declares id without using it"),
        ("-- name: q\n-- params: a, a\n-- Text.\nSELECT :a;", GET, r"job.sql:1: query 'q' declares a parameter twice"),
        ("-- name: q\n-- params: returned\n-- T.\nSELECT 1;", GET, r"job.sql:1: .*'returned', which is implicit"),
        (
            GET,
            GET + MORE,
            r"postgres/queries/job.sql:5: query 'more' exists for postgres only",
        ),
        (
            GET + MORE,
            GET,
            r"sqlite/queries/job.sql:5: query 'more' exists for sqlite only",
        ),
        (
            GET,
            GET.replace("id", "key"),
            r"job.sql:1: query 'get_job' declares other params in postgres/queries",
        ),
        ("-- name: q\n-- params: id\nSELECT :id;", GET, r"job.sql:1: query 'q' needs a line that describes it"),
        ("-- name: q\n-- Text.\n", GET, r"job.sql:1: query 'q' needs either a statement or a line '-- nothing: why'"),
        ("-- name: q\n-- nothing: x\nSELECT 1;", GET, r"job.sql:1: query 'q' needs either a statement or"),
        (GET, TOP + "SELECT :id; SELECT :id;", r"postgres/queries/job.sql:1: query 'q' has 2 statements"),
        (TOP + "SELECT :id FROM\n {jobs};", GET, r"sqlite/queries/job.sql:5: {jobs} is not a known token"),
        (TOP + "SELECT :id, '{nobody}';", GET, r"sqlite/queries/job.sql:4: {nobody} is not a known token"),
        (GET, GET.replace(":id;", ":id ORDER BY id {direction};"), r"query 'get_job' exists for sqlite only"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(write: Write, sqlite: str, postgres: str, problem: str) -> None:
    with pytest.raises(SqlFileError, match=problem):
        check(write(sqlite, postgres))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_either_dialect_refuses_the_faults_of_the_other(write: Write, dialect: str) -> None:
    with pytest.raises(SqlFileError, match=r"postgres/queries/job.sql:4"):
        queries(dialect, Names(), write(GET, TOP + "SELECT :id, :other;"))


def test_migrations_come_in_order_as_single_statements(write: Write) -> None:
    first = (
        '-- The tables.\nCREATE TABLE {job} (id {id_type}{id_default});\nCREATE INDEX "{prefix}job_x" ON {job} (id);\n'
        "CREATE TRIGGER t AFTER INSERT ON {job} BEGIN\n  DELETE FROM {job};\n  SELECT '%';\nEND;\n"
    )
    second = "CREATE TYPE {job_status} AS ENUM ('a', 'b'); DO $$ BEGIN PERFORM 1; END $$;"
    root = write(
        sqlite_migrations={"0002_more.sql": "-- Only for PostgreSQL.\n", "0001_start.sql": first},
        postgres_migrations={"0001_start.sql": "SELECT 5 % 2;", "0002_enum.sql": second},
    )
    names = Names("my_", "jobs", id_default="newid(')')")
    start, more = migrations("sqlite", names, root)
    assert (start.name, more.name, more.statements) == ("0001_start", "0002_more", ())
    assert start.statements == (
        "CREATE TABLE \"my_job\" (id text DEFAULT (newid(')')))",
        'CREATE INDEX "my_job_x" ON "my_job" (id)',
        'CREATE TRIGGER t AFTER INSERT ON "my_job" BEGIN\n  DELETE FROM "my_job";\n  SELECT \'%\';\nEND',
    )
    assert [migration.statements for migration in migrations("postgres", names, root)] == [
        ("SELECT 5 % 2",),
        ("CREATE TYPE \"jobs\".\"my_job_status\" AS ENUM ('a', 'b')", "DO $$ BEGIN PERFORM 1; END $$"),
    ]


@pytest.mark.parametrize(
    ("sqlite", "postgres", "problem"),
    [
        (["0001_a.sql"], [], r"sqlite/migrations/0001_a.sql:1: there is no migration 0001 for postgres"),
        (["0001_a.sql"], ["0001_a.sql", "0002_b.sql"], r"postgres/migrations/0002_b.sql:1: there is no migration 0002"),
        (
            ["0001_a.sql", "0001_b.sql"],
            ["0001_a.sql"],
            r"0001_b.sql:1: there is another migration 0001",
        ),
        (["1_a.sql"], ["0001_a.sql"], r"sqlite/migrations/1_a.sql:1: a migration is called NNNN_name.sql"),
    ],
)
def test_migrations_must_match(write: Write, sqlite: list[str], postgres: list[str], problem: str) -> None:
    root = write(sqlite_migrations=dict.fromkeys(sqlite, "SELECT 1;"), postgres_migrations=dict.fromkeys(postgres, "SELECT 1;"))
    with pytest.raises(SqlFileError, match=problem):
        check(root)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SqlFileError, match="sqlite/queries:1: there is no such directory"):
        check(tmp_path)


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
    assert Names(id_type=id_type).tokens("postgres")["id_type"] == id_type


def test_default_id_types() -> None:
    assert (Names().tokens("sqlite")["id_type"], Names().tokens("postgres")["id_type"]) == ("text", "uuid")
    assert Names().tokens("sqlite")["id_default"] == ""


def test_a_prefix_and_a_schema_of_the_longest_kind_are_accepted() -> None:
    tokens = Names(prefix="p" * 30, schema="s" * 63).tokens("postgres")
    assert tokens["job"] == f'"{"s" * 63}"."{"p" * 30}job"'


def test_the_files_of_the_library_are_well_formed() -> None:
    check()


def test_a_claim_on_postgres_leaves_out_every_state_but_one() -> None:
    """It names the states that cannot be claimed, so that a new one would have to be added there."""
    (listed,) = re.findall(r"status::text NOT IN \((.*?)\)", queries("postgres", Names())["claim_jobs"].parts[0])
    assert set(re.findall(r"\w+", listed)) == {status.value for status in Status} - {"pending"}

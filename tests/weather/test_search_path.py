"""A second role that may create in the schema shadows functions and operators there: its code never runs as the worker."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from support.operations import OPERATIONS
from support.store import Store

from queuert import Dedup, Queuert, Retention, Status
from queuert.postgres.dialect import POSTGRES
from queuert.storage import loader
from queuert.storage.names import Names

# For exactly the types that our queries use, where PostgreSQL's own is for any: the exact one is preferred.
FUNCTIONS = [
    "unnest(uuid[]) RETURNS SETOF uuid",
    "unnest(text[]) RETURNS SETOF text",
    "unnest(bigint[]) RETURNS SETOF bigint",
    "array_agg(uuid) RETURNS uuid[]",
    "array_agg(text) RETURNS text[]",
    "count(uuid) RETURNS bigint",
    "cardinality(uuid[]) RETURNS integer",
    "make_interval(secs text) RETURNS interval",
    "make_interval(secs numeric) RETURNS interval",
    "json_to_recordset(text) RETURNS SETOF record",
    "pg_notify(text, varchar) RETURNS void",
    "set_config(text, text, text) RETURNS text",
    "statement_timestamp(integer DEFAULT 1) RETURNS timestamptz",
    "jsonb_strip_nulls(json) RETURNS json",
    # Another meaning of our own names, for what could be taken for text.
    "queuert_complete_job(text, uuid, uuid, bigint, text, text, text, double precision, boolean, boolean, text, text, text,"
    " text, text, text, text, text, text, text, text) RETURNS TABLE (what text, id uuid, type_name text)",
    "queuert_lock_jobs(text, text, boolean) RETURNS uuid[]",
]
OPERATORS = {
    ("queuert_job_status", "queuert_job_status"): ("=", "<>", "<", ">"),
    ("text[]", "text[]"): ("&&", "=", "@>"),
    ("uuid[]", "uuid[]"): ("&&", "=", "@>"),
}


@pytest.fixture
def hostile_url(pg_url: str) -> str:
    """A database where another role was allowed to create things in our schema, as everybody is before PostgreSQL 15."""
    role = "queuert_mallory"
    with psycopg.connect(pg_url, autocommit=True) as conn:
        if conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
            conn.execute(f"CREATE ROLE {role}")
        conn.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {role}")
        conn.execute(f"SET ROLE {role}")
        body = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$"
        for signature in FUNCTIONS:
            conn.execute(f"CREATE FUNCTION public.{signature} {body}")
        for n, ((left, right), names) in enumerate(OPERATORS.items()):
            conn.execute(f"CREATE FUNCTION public.shadow_{n}({left}, {right}) RETURNS boolean {body}")
            for name in names:
                conn.execute(
                    f"CREATE OPERATOR public.{name} (FUNCTION = public.shadow_{n}, LEFTARG = {left}, RIGHTARG = {right})"
                )
        conn.execute("RESET ROLE")
        # It would work: whoever writes as careless people do is caught.
        with pytest.raises(psycopg.errors.RaiseException, match="hijacked"):
            conn.execute("SELECT unnest(ARRAY[gen_random_uuid()])")
    return pg_url


def _live(app: Queuert) -> None:
    """Everything that an application does."""

    @app.job("part")
    def part(job: Any) -> int:
        return 1

    @app.job("join")
    def join(job: Any) -> Any:
        with job.complete() as tx:
            tx.execute("SELECT 1")
            return job.continue_with("part")

    @app.job("fails", max_attempts=1)
    def fails(job: Any) -> None:
        raise ValueError

    parts = [app.start_chain("part", dedup=Dedup(f"{n}")) for n in range(3)]
    assert app.start_chain("part", dedup=Dedup("1")).deduplicated
    joined = app.start_chain("join", blockers=parts)
    failing, later = app.start_chain("fails"), app.start_chain("part", after=3600)
    with app.worker(concurrency=2, poll_interval=0.1):
        assert app.wait_for(joined, timeout=30).output == 1
        assert app.wait_for(failing, timeout=30, raise_on_failure=False).status is Status.FAILED
    app.trigger_job(later.id)
    app.cancel_chain(later.id)
    app.retry_chain(failing.id)
    app.drain()
    assert app.list_jobs(error_codes=["INTERNAL:"], statuses=["failed"]).items
    assert app.list_chains(types=["part"], chain_ids=[parts[0].id]).items
    assert app.get_job_blockers(joined.id)
    assert app.connected_chains(joined.id)
    assert app.stats().by_status["completed"] >= 5
    assert app.timeline(joined.id)
    app.cleanup(Retention(completed=0, failed=0, cancelled=0))
    assert not app.list_chains().items


def test_nothing_of_an_application_is_hijacked(hostile_url: str) -> None:
    with Queuert(hostile_url) as app:
        _live(app)


def test_nor_on_a_pool_or_a_connection_of_the_users(hostile_url: str) -> None:
    with ConnectionPool(hostile_url, min_size=1, max_size=10, open=True) as pool, Queuert(pool) as app:
        _live(app)
        with psycopg.connect(hostile_url) as conn:
            part = app.start_chain("part", dedup=Dedup("mine"), conn=conn)
            app.start_chain("join", blockers=[part], conn=conn)
            with app.complete_chain(part.id, conn=conn) as tail:
                tail.finish(2)


def test_nor_is_any_query_planned_with_what_is_not_postgresqls(hostile_url: str) -> None:
    store = Store(hostile_url)
    refused = []
    with psycopg.connect(hostile_url) as conn:
        for name, query in loader.queries(POSTGRES, Names()).items():
            if name.startswith(("create_", "make_")) or name in ("record_migration",):
                continue
            conn.execute(f"PREPARE mine AS {query.statements[0]}".encode())
            conn.execute("DEALLOCATE mine")
            conn.rollback()
        # What was hijacked would fail as soon as it is evaluated.
        for name, operation in OPERATIONS.items():
            if name.startswith(("list", "expired chains, later")):
                continue  # they want a large table
            try:
                store.write(lambda session, run=operation: run(store, session))
            except psycopg.Error as error:  # some want rows that are not there
                if "hijacked" in str(error):
                    refused.append(name)
    store.close()
    assert refused == []


def test_our_own_threads_look_nowhere_else(hostile_url: str) -> None:
    """What asks often keeps its connection, and looks for nothing in the users' schemas."""
    with Queuert(hostile_url) as app:
        database = app._context.database
        database.keep_connection()
        show = loader.Query("show", ("SELECT pg_catalog.current_setting('search_path')",))
        assert database.run(lambda session: session.run(show, {})) == [("pg_catalog, pg_temp",)]
        database.thread_ends()
        assert database.run(lambda session: session.run(show, {})) == [('"$user", public',)]

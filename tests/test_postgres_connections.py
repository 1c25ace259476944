"""PostgreSQL: the pool and transactions, against a real server, with real sockets that break."""

# ruff: noqa: PT012 - what a block does when its body raises is what is tested

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool
from support import eventually
from support.inside import connections_of
from support.postgres import closed_by_the_server
from support.proxy import Proxy
from support.silence import SilentProxy

from queuert import Queuert
from queuert.errors import (
    DatabaseUnavailableError,
    TransactionMisuseError,
    TransactionRequiredError,
    UnsupportedDatabaseError,
)
from queuert.hooks import Hooks
from queuert.postgres.database import PostgresDatabase
from queuert.postgres.lending import is_alive
from queuert.postgres.pool_log import POOL_NAME
from queuert.storage.loader import Query
from queuert.storage.migrations import migrate
from queuert.storage.names import Names

INSERT = Query("insert", ("INSERT INTO public.note (text) VALUES ($1) RETURNING text",), ("text",))
QUIET_INSERT = Query("quiet_insert", ("INSERT INTO public.note (text) VALUES ($1)",), ("text",))
COUNT = Query("count", ("SELECT count(*) FROM public.note",))
TEXTS = Query("texts", ("SELECT text FROM public.note ORDER BY id",))
BROKEN = Query("broken", ("SELECT nothing FROM nowhere",))
ONE = Query("one", ("SELECT 1",))
SECRET = "s3cr3t-pass"


def insert(database: PostgresDatabase, text: str) -> None:
    database.run(lambda session: session.run(INSERT, {"text": text}))


def texts(database: PostgresDatabase) -> list[str]:
    with database.read() as session:
        return [row[0] for row in session.run(TEXTS, {})]


@pytest.fixture
def url(empty_pg_url: str) -> str:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        conn.execute("CREATE TABLE note (id BIGSERIAL PRIMARY KEY, text TEXT NOT NULL UNIQUE)")
    return empty_pg_url


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(url)
    yield database
    database.close()


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


def terminate_others(admin: psycopg.Connection[Any]) -> int:
    rows = admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    ).fetchall()
    return len(rows)


# Opening.


def test_constructing_connects_to_nothing() -> None:
    database = PostgresDatabase(f"postgresql://u:{SECRET}@127.0.0.1:1/none")
    assert SECRET not in repr(database)
    database.close()


@pytest.mark.parametrize("answer", ["refused", "silent"])
def test_an_unreachable_server_is_a_clear_error_soon(answer: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if answer == "refused":
        listener.close()
    before = threading.active_count()
    database = PostgresDatabase(f"postgresql://someone:{SECRET}@127.0.0.1:{port}/shop", connect_timeout=2)
    started = time.monotonic()
    for use in (lambda: database.run(lambda s: None), database.read().__enter__, database.open_listener):
        with pytest.raises(DatabaseUnavailableError, match=rf"someone:\*\*\*@127.0.0.1:{port}/shop") as caught:
            use()
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert database.is_transient(caught.value)
    assert time.monotonic() - started < 15
    assert threading.active_count() == before
    database.close()
    listener.close()


def test_an_unknown_database_says_so(url: str) -> None:
    missing = re.sub(r"queuert_test_\w+", "queuert_no_such_database", url)
    with pytest.raises(DatabaseUnavailableError, match="does not exist"), PostgresDatabase(missing).read():
        pass


@pytest.mark.parametrize(
    "bad",
    [
        f"postgresql://u:a/{SECRET}@host/db",
        f"postgresql://u:{SECRET}@[::1/db",
        f"postgresql://u:{SECRET}@h/db?no_such_option=1",
        f"host=h password='{SECRET}",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(bad: str) -> None:
    with pytest.raises((UnsupportedDatabaseError, DatabaseUnavailableError)) as caught, PostgresDatabase(bad).read():
        pass
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_bad_options_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="pool_size"):
        PostgresDatabase(url, pool_size=0)
    with pytest.raises(UnsupportedDatabaseError, match="not a PostgreSQL"):
        PostgresDatabase("sqlite:///x.db")


def test_without_psycopg_the_error_names_the_extra() -> None:
    code = """
        import sys
        sys.modules["psycopg"] = None
        import queuert.sqlite.database, queuert.storage.migrations, queuert.storage.unwrap
        try:
            import queuert.postgres.database
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UnsupportedDatabaseError")
    assert "pip install 'queuert[postgres]'" in done.stdout


def test_our_connections_are_set_up(url: str) -> None:
    with Proxy(url) as proxy:
        database = PostgresDatabase(proxy.url, prepared_statements=False)
        with database.read() as session:
            assert session.raw.autocommit
            assert session.raw.prepare_threshold is None
            settings = session.raw.info.get_parameters()
            assert settings["application_name" if "application_name" in settings else "fallback_application_name"]
            assert (settings["keepalives_idle"], settings["tcp_user_timeout"]) == ("30", "60000")
            assert session.run(Query("q", ("SHOW application_name",)), {}) == [("queuert",)]
        database.close()
        database = PostgresDatabase(f"{proxy.url}&application_name=mine&keepalives_idle=7")
        with database.read() as session:
            assert session.run(Query("q", ("SHOW application_name",)), {}) == [("mine",)]
            assert session.raw.info.get_parameters()["keepalives_idle"] == "7"
            assert session.raw.prepare_threshold is not None
        database.close()


# Transactions of ours.


def test_run_commits_and_flushes_its_hooks_afterwards(database: PostgresDatabase) -> None:
    seen: list[list[str]] = []

    def work(session: Any) -> str:
        session.run(INSERT, {"text": "a"})
        session.hooks.on_commit(lambda: seen.append(texts(database)))
        return "result"

    assert database.run(work) == "result"
    assert seen == [["a"]]


def test_run_rolls_back_and_forgets_its_hooks(database: PostgresDatabase) -> None:
    seen: list[int] = []

    def work(session: Any) -> None:
        session.run(INSERT, {"text": "a"})
        session.hooks.on_commit(lambda: seen.append(1))
        raise KeyError("no")

    with pytest.raises(KeyError):
        database.run(work)
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.run(lambda s: [s.run(INSERT, {"text": "x"}) for _ in range(2)])
    assert (texts(database), seen) == ([], [])


def test_a_single_statement_needs_no_transaction(database: PostgresDatabase) -> None:
    query = Query("q", ("INSERT INTO note (text) VALUES ('a') RETURNING now() = statement_timestamp()",))
    status = []

    def work(session: Any) -> Any:
        rows = session.run(query, {})
        status.append(session.raw.info.transaction_status)
        return rows

    assert database.run(work, single=True) == [(True,)]
    assert status == [psycopg.pq.TransactionStatus.IDLE]
    assert texts(database) == ["a"]


def test_our_transactions_are_read_committed_whatever_the_default(
    url: str, admin: psycopg.Connection[Any], database: PostgresDatabase
) -> None:
    admin.execute(f"ALTER DATABASE \"{admin.info.dbname}\" SET default_transaction_isolation = 'repeatable read'")
    query = Query("q", ("SHOW transaction_isolation",))
    assert database.run(lambda s: s.run(query, {})) == [("read committed",)]


def test_block_commits_or_rolls_back(database: PostgresDatabase) -> None:
    seen: list[str] = []
    with database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        session.hooks.on_commit(lambda: seen.append("a"))
        assert not seen
        assert texts_outside(database) == []
    with pytest.raises(KeyError), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('b')")
        session.hooks.on_commit(lambda: seen.append("b"))
        raise KeyError
    with database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('c')")
        session.hooks.on_commit(lambda: seen.append("c"))
        raise psycopg.Rollback
    assert (texts(database), seen) == (["a"], ["a"])


def texts_outside(database: PostgresDatabase) -> list[str]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(texts, database).result(10)


def test_inside_a_block_nothing_else_of_ours_can_be_opened_on_this_thread(database: PostgresDatabase) -> None:
    with database.block() as session:
        for attempt in (database.read, database.block):
            with pytest.raises(TransactionRequiredError, match="conn="), attempt():
                pass
        with pytest.raises(TransactionRequiredError, match="conn="):
            database.run(lambda s: None)
        session.run(INSERT, {"text": "still usable"})
    assert texts(database) == ["still usable"]


def test_a_read_leaves_no_transaction_open(database: PostgresDatabase) -> None:
    with database.read() as session:
        session.run(COUNT, {})
        assert session.raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with pytest.raises(psycopg.errors.UndefinedTable), database.read() as session:
        session.run(BROKEN, {})
    assert texts(database) == []


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_block_that_was_ended_as_sql_is_an_error(database: PostgresDatabase, statement: str) -> None:
    seen: list[int] = []
    with pytest.raises(TransactionMisuseError, match="ended inside"), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        session.hooks.on_commit(lambda: seen.append(1))
        session.raw.execute(statement)
    assert not seen
    insert(database, "next")
    assert "next" in texts(database)


def test_an_error_swallowed_in_a_block_is_not_a_silent_rollback(database: PostgresDatabase) -> None:
    with pytest.raises(TransactionMisuseError, match="swallowed"), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        with pytest.raises(psycopg.Error):
            session.raw.execute("SELECT nothing")
    with pytest.raises(TransactionMisuseError, match="swallowed"):

        def work(session: Any) -> None:
            session.run(INSERT, {"text": "a"})
            with pytest.raises(psycopg.Error):
                session.run(BROKEN, {})

        database.run(work)
    assert texts(database) == []


def test_driver_calls_that_end_a_block_are_refused(database: PostgresDatabase) -> None:
    with database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        for act in (session.raw.commit, session.raw.rollback, lambda: setattr(session.raw, "autocommit", False)):
            with pytest.raises(psycopg.ProgrammingError):
                act()
    assert texts(database) == ["a"]


def test_a_connection_closed_in_a_block_is_an_error_and_harms_nobody(database: PostgresDatabase) -> None:
    for _ in range(3):
        with pytest.raises(TransactionMisuseError, match="closed"), database.block() as session:
            session.raw.execute("INSERT INTO note (text) VALUES ('a')")
            session.raw.close()
        insert(database, f"{time.monotonic()}")
    assert "a" not in texts(database)


def test_factories_are_reset_between_blocks(url: str) -> None:
    database = PostgresDatabase(url, pool_size=1)
    with database.block() as session:
        session.raw.row_factory = dict_row
        session.raw.cursor_factory = psycopg.ClientCursor
        session.raw.prepare_threshold = 0
        assert session.run(ONE, {}) == [(1,)]
    with database.block() as session:
        assert session.raw.execute("SELECT 1").fetchone() == (1,)
        assert session.raw.cursor_factory is psycopg.Cursor
        assert session.raw.prepare_threshold == 5
    database.close()


# Savepoints and pipelines.


def test_a_savepoint_undoes_what_failed_and_keeps_the_rest(database: PostgresDatabase) -> None:
    seen: list[str] = []
    with database.block() as session:
        session.run(INSERT, {"text": "a"})
        with session.savepoint():
            session.run(INSERT, {"text": "b"})
        with pytest.raises(psycopg.Error), session.savepoint():
            session.run(INSERT, {"text": "c"})
            session.hooks.on_commit(lambda: seen.append("c"))
            session.run(BROKEN, {})
        with pytest.raises(KeyError), session.savepoint():
            session.run(INSERT, {"text": "d"})
            with session.savepoint():
                session.run(INSERT, {"text": "e"})
            raise KeyError
        session.hooks.on_commit(lambda: seen.append("end"))
    assert (texts(database), seen) == (["a", "b"], ["end"])


def test_when_the_transaction_is_gone_the_first_error_is_told(
    database: PostgresDatabase, admin: psycopg.Connection[Any]
) -> None:
    with pytest.raises(psycopg.errors.AdminShutdown), database.block() as session, session.savepoint():
        terminate_others(admin)
        session.run(ONE, {})
    assert texts(database) == []


def test_a_pipeline_brings_results_back(database: PostgresDatabase) -> None:
    def work(session: Any) -> Any:
        with session.raw.pipeline():
            assert session.run(QUIET_INSERT, {"text": "a"}) == []
            assert session.run(INSERT, {"text": "b"}) == [("b",)]
            assert session.run(Query("q", ("WITH x AS (SELECT 1) DELETE FROM note WHERE false",)), {}) == []
            return session.run(COUNT, {})

    assert database.run(work) == [(2,)]
    assert texts(database) == ["a", "b"]


def test_a_savepoint_in_a_pipeline_catches_what_failed_in_it(database: PostgresDatabase) -> None:
    with database.block() as session, session.raw.pipeline():
        session.run(QUIET_INSERT, {"text": "a"})
        with pytest.raises(psycopg.errors.UniqueViolation), session.savepoint():
            session.run(QUIET_INSERT, {"text": "b"})
            session.run(QUIET_INSERT, {"text": "a"})
        with pytest.raises(psycopg.errors.UndefinedTable), session.savepoint():
            session.run(BROKEN, {})
        session.run(QUIET_INSERT, {"text": "c"})
    assert texts(database) == ["a", "c"]


# Types.


def test_values_come_back_as_plain_types_whatever_the_user_registered(database: PostgresDatabase, url: str) -> None:
    query = Query(
        "types",
        (
            "SELECT '01890a5d-ac96-774b-bcce-b302099a8057'::uuid, '{\"a\": 1}'::jsonb, '[1]'::json, "
            "'2024-02-03 04:05:06.7+05:30'::timestamptz, '2024-07-03 04:05:06+00'::timestamptz, 5::bigint, true, "
            "1.5::float8, 'text'::text, null::uuid, "
            "ARRAY['01890a5d-ac96-774b-bcce-b302099a8057'::uuid], $1, $2::text, $3::float8",
        ),
        ("number", "text", "real"),
    )
    params = {"number": 3, "text": "ü%", "real": 0.25}
    expected = [
        (
            "01890a5d-ac96-774b-bcce-b302099a8057",
            '{"a": 1}',
            "[1]",
            datetime(2024, 2, 2, 22, 35, 6, 700000, tzinfo=timezone.utc),
            datetime(2024, 7, 3, 4, 5, 6, tzinfo=timezone.utc),
            5,
            True,
            1.5,
            "text",
            None,
            ["01890a5d-ac96-774b-bcce-b302099a8057"],
            3,
            "ü%",
            0.25,
        )
    ]
    with database.read() as session:
        assert session.run(query, params) == expected
    with psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as conn:
        conn.execute("SET TimeZone = 'Europe/Berlin'")
        set_json_loads(lambda _: "theirs", conn)
        conn.adapters.register_loader("text", psycopg.types.string.TextBinaryLoader)
        for _ in range(8):
            [row] = database.join(conn).run(query, params)
            assert [row] == expected
            assert all(value.tzinfo is timezone.utc for value in row if isinstance(value, datetime))
        assert conn.execute("SELECT '1'::jsonb AS j, now() AS t").fetchall()[0]["j"] == "theirs"
        assert conn.row_factory is dict_row
        assert conn.cursor_factory is psycopg.ClientCursor


# The user's own connections.


def test_a_default_connection_is_joined(database: PostgresDatabase, url: str) -> None:
    with psycopg.connect(url) as conn:
        session = database.join(conn)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        session.run(INSERT, {"text": "a"})
        assert texts(database) == []
        conn.rollback()
        with database.join(conn).savepoint():
            database.join(conn).run(INSERT, {"text": "b"})
        assert texts(database) == []  # the savepoint alone has not committed
        conn.commit()
        assert texts(database) == ["b"]


def test_a_connection_in_autocommit_needs_a_transaction(database: PostgresDatabase, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        with pytest.raises(TransactionRequiredError, match=r"conn\.transaction"):
            database.join(conn)
        assert database.join(conn, reading=True).run(COUNT, {}) == [(0,)]
        with conn.transaction():
            database.join(conn).run(INSERT, {"text": "a"})
            with pytest.raises(KeyError), conn.transaction():
                database.join(conn).run(INSERT, {"text": "b"})
                raise KeyError
        assert texts(database) == ["a"]
        with pytest.raises(KeyError), conn.transaction():
            database.join(conn).run(INSERT, {"text": "c"})
            raise KeyError
        assert texts(database) == ["a"]
        assert conn.autocommit


def test_a_failed_transaction_is_refused(database: PostgresDatabase, url: str) -> None:
    with psycopg.connect(url) as conn:
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT nothing")
        with pytest.raises(TransactionRequiredError, match="roll it back"):
            database.join(conn)
        conn.rollback()
        session = database.join(conn, hooks=Hooks())
        with pytest.raises(psycopg.Error), session.savepoint():
            session.run(BROKEN, {})
        session.run(INSERT, {"text": "a"})
    assert texts(database) == ["a"]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_in_pipeline_mode_is_joined(database: PostgresDatabase, url: str, autocommit: bool) -> None:
    with psycopg.connect(url, autocommit=autocommit) as conn:
        with conn.pipeline(), conn.transaction():
            conn.execute("INSERT INTO note (text) VALUES ('a')")
            session = database.join(conn)
            assert session.run(INSERT, {"text": "b"}) == [("b",)]
            with pytest.raises(psycopg.errors.UniqueViolation), session.savepoint():
                session.run(QUIET_INSERT, {"text": "b"})
            session.run(QUIET_INSERT, {"text": "c"})
            conn.execute("INSERT INTO note (text) VALUES ('d')")
        assert texts(database) == ["a", "b", "c", "d"]


def test_a_block_can_be_joined(database: PostgresDatabase) -> None:
    with database.block() as session:
        database.join(session.raw).run(INSERT, {"text": "a"})
    assert texts(database) == ["a"]


# Things that break.


def test_a_deadlock_is_retried(database: PostgresDatabase) -> None:
    insert(database, "a")
    insert(database, "b")
    barrier = threading.Barrier(2)
    calls: list[str] = []
    update = Query("update", ("UPDATE note SET text = text || '!' WHERE left(text, 1) = $1",), ("text",))

    def work(session: Any, order: str) -> None:
        calls.append(order)
        session.run(update, {"text": order[0]})
        if len(calls) <= 2:
            barrier.wait(10)
        session.run(update, {"text": order[1]})

    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(database.run, lambda s, o=order: work(s, o)) for order in ("ab", "ba")]:
            run.result(30)
    assert len(calls) == 3
    assert sorted(texts(database)) == ["a!!", "b!!"]


@pytest.mark.parametrize("single", [True, False])
def test_a_serialization_failure_is_retried_a_few_times(database: PostgresDatabase, single: bool) -> None:
    fail = Query("fail", ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$",))
    calls: list[int] = []

    def once(session: Any) -> str:
        calls.append(1)
        if len(calls) == 1:
            session.run(fail, {})
        session.run(INSERT, {"text": "a"})
        return "done"

    assert database.run(once, single=single) == "done"
    calls.clear()
    with pytest.raises(psycopg.errors.SerializationFailure) as caught:
        database.run(lambda s: (calls.append(1), s.run(fail, {})))
    assert len(calls) == 5
    assert database.is_transient(caught.value)


def test_a_terminated_backend_is_retried(database: PostgresDatabase, admin: psycopg.Connection[Any]) -> None:
    calls: list[int] = []
    seen: list[int] = []

    def work(session: Any) -> str:
        calls.append(1)
        session.hooks.on_commit(lambda: seen.append(len(calls)))
        session.run(INSERT, {"text": "a"})
        if len(calls) == 1:
            terminate_others(admin)
        session.run(INSERT, {"text": "b"})
        return "done"

    assert database.run(work) == "done"
    assert (texts(database), seen) == (["a", "b"], [2])


def test_connections_that_died_in_the_pool_are_not_used(database: PostgresDatabase, admin: psycopg.Connection[Any]) -> None:
    barrier = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: database.run(lambda s: (barrier.wait(10), s.run(ONE, {}))), range(4)))
    idle = list(connections_of(database).pool._pool)
    assert terminate_others(admin) >= len(idle) >= 4
    eventually(lambda: closed_by_the_server(idle))
    calls: list[int] = []
    for number in range(4):
        # One statement and nothing to recover with: an error here would be the caller's.
        database.run(lambda s, n=number: (calls.append(1), s.run(INSERT, {"text": f"{n}"})), single=True)
        with database.block() as session:
            session.run(ONE, {})
        with database.read() as session:
            session.run(ONE, {})
    assert len(calls) == 4


@pytest.mark.parametrize("single", [True, False])
def test_a_commit_whose_answer_is_lost_is_recovered(url: str, single: bool) -> None:
    with Proxy(url) as proxy:
        database = PostgresDatabase(proxy.url)
        calls: list[str] = []
        seen: list[str] = []

        def work(session: Any) -> str:
            calls.append("work")
            session.run(INSERT, {"text": "precious"})
            session.hooks.on_commit(lambda: seen.append("flushed"))
            return "from work"

        def recover(session: Any) -> str | None:
            calls.append("recover")
            return "from recover" if session.run(COUNT, {}) == [(1,)] else None

        assert database.run(lambda s: s.run(ONE, {})) == [(1,)]
        proxy.arm(b"INSERT" if single else b"COMMIT\0", "lose the answer")
        result = database.run(work, recover=recover, single=single)
        assert proxy.cuts == 1
        if single:
            # The effects are registered after the statement: the lost try had none yet.
            assert (result, calls) == ("from recover", ["work", "recover"])
        else:
            assert (result, calls, seen) == ("from recover", ["work", "recover"], ["flushed"])
        assert texts(database) == ["precious"]
        database.close()


@pytest.mark.parametrize("single", [True, False])
def test_a_commit_that_never_arrived_runs_again(url: str, single: bool) -> None:
    with Proxy(url) as proxy:
        database = PostgresDatabase(proxy.url)
        calls: list[str] = []
        seen: list[str] = []

        def work(session: Any) -> str:
            calls.append("work")
            session.hooks.on_commit(lambda: seen.append("flushed"))
            session.run(INSERT, {"text": "precious"})
            return "from work"

        def recover(session: Any) -> str | None:
            calls.append("recover")
            return "from recover" if session.run(COUNT, {}) == [(1,)] else None

        proxy.arm(b"INSERT" if single else b"COMMIT\0", "lose the request")
        assert database.run(work, recover=recover, single=single) == "from work"
        assert (calls, seen) == (["work", "recover", "work"], ["flushed"])
        assert texts(database) == ["precious"]
        database.close()


def test_without_recover_a_lost_commit_is_the_callers(url: str) -> None:
    with Proxy(url) as proxy:
        database = PostgresDatabase(proxy.url)
        calls: list[int] = []
        seen: list[int] = []

        def work(session: Any) -> None:
            calls.append(1)
            session.hooks.on_commit(lambda: seen.append(1))
            session.run(INSERT, {"text": "a"})

        proxy.arm(b"COMMIT\0", "lose the answer")
        with pytest.raises(psycopg.OperationalError) as caught:
            database.run(work)
        assert (calls, seen) == ([1], [])
        assert database.is_transient(caught.value)
        proxy.arm(b"COMMIT\0", "lose the answer")
        with pytest.raises(psycopg.OperationalError), database.block() as session:
            session.hooks.on_commit(lambda: seen.append(1))
            session.run(INSERT, {"text": "b"})
        assert not seen
        assert sorted(texts(database)) == ["a", "b"]
        database.close()


def test_a_connection_lost_before_the_commit_runs_again(url: str) -> None:
    with Proxy(url) as proxy:
        database = PostgresDatabase(proxy.url)
        proxy.arm(b"INSERT", "lose the answer", times=2)
        insert(database, "a")
        proxy.arm(b"BEGIN", "lose the request", times=2)
        insert(database, "b")
        assert proxy.cuts == 4
        assert texts(database) == ["a", "b"]
        database.close()


# The pool.


def test_a_full_pool_is_a_clear_error(url: str) -> None:
    database = PostgresDatabase(url, pool_size=1, pool_timeout=0.3)
    with database.block(), ThreadPoolExecutor(1) as pool:
        with pytest.raises(DatabaseUnavailableError, match=r"all 1 of the pool.*pool_size"):
            pool.submit(texts, database).result(10)
        database.reserve(1)
        assert pool.submit(texts, database).result(10) == []
        database.reserve(-1)
    assert texts(database) == []
    database.close()


def test_room_reserved_before_the_first_use_counts(url: str) -> None:
    database = PostgresDatabase(url, pool_size=1, pool_timeout=2)
    database.reserve(1)
    with database.block(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(texts, database).result(10) == []
    database.close()


def test_nothing_uncommitted_is_seen_and_many_threads_work(database: PostgresDatabase) -> None:
    def work(number: int) -> None:
        for step in range(10):
            with database.block() as session:
                session.run(INSERT, {"text": f"{number}-{step}"})
                assert database.join(session.raw).run(COUNT, {})[0][0] > 0
            assert f"{number}-{step}" in texts(database)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert len(texts(database)) == 120


def test_close_is_idempotent_ends_all_threads_and_a_later_call_opens_again(url: str) -> None:
    before = set(threading.enumerate())
    database = PostgresDatabase(url)
    database.close()
    insert(database, "a")
    database.close()
    database.close()
    eventually(lambda: set(threading.enumerate()) <= before)
    assert texts(database) == ["a"]
    with database.read() as session:
        database.close()
        assert session.run(COUNT, {}) == [(1,)]
    assert texts(database) == ["a"]
    database.close()


PID = Query("pid", ("SELECT pg_backend_pid(), current_setting('plan_cache_mode'), current_setting('enable_seqscan')",))


def _pids(database: PostgresDatabase, times: int = 3) -> set[int]:
    """The servers behind the connections that this thread gets, one after the other."""
    found = set()
    for _ in range(times):
        with database.read() as session:
            found.add(session.run(PID, {})[0][0])
        found.add(database.run(lambda session: session.run(PID, {})[0][0], single=True))
    return found


@pytest.fixture
def keeping(database: PostgresDatabase) -> Iterator[PostgresDatabase]:
    database.keep_connection()
    yield database
    database.thread_ends()


def test_a_thread_can_keep_a_connection_for_itself(keeping: PostgresDatabase) -> None:
    (pid,) = _pids(keeping)
    with ThreadPoolExecutor(4) as threads:
        others = set().union(*threads.map(lambda _: _pids(keeping), range(8)))
        settings = threads.submit(lambda: keeping.run(lambda session: session.run(PID, {})[0][1:])).result()
    assert pid not in others
    assert settings == ("auto", "on")
    assert keeping.run(lambda session: session.run(PID, {})) == [(pid, "force_generic_plan", "off")]
    keeping.thread_ends()
    found: dict[int, tuple[str, str]] = {}

    def is_lent_again() -> bool:
        ((backend, *settings),) = keeping.run(lambda session: session.run(PID, {}))
        found[backend] = tuple(settings)
        return backend == pid

    eventually(is_lent_again)
    assert found[pid] == ("auto", "on")


def test_what_is_kept_is_prepared_and_planned_once(keeping: PostgresDatabase) -> None:
    statement = Query("mine", ("SELECT count(*) FROM public.note WHERE text = $1",), ("text",))
    counts = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE 'SELECT count(*)%'"
    plans = Query("plans", (counts,))
    for number in range(3):
        keeping.run(lambda session, n=number: session.run(statement, {"text": f"{n}"}), single=True)
    if keeping.run(lambda session: session.raw.info.server_version) >= 140_000:
        assert keeping.run(lambda session: session.run(plans, {})) == [(3, 0)]


def test_a_kept_connection_that_dies_is_replaced(keeping: PostgresDatabase, admin: psycopg.Connection[Any]) -> None:
    (first,) = _pids(keeping)
    terminate_others(admin)
    eventually(lambda: not is_alive(connections_of(keeping)._keeping.kept._conn))
    (second,) = _pids(keeping)
    assert second != first

    def break_off(session: Any) -> list[tuple[Any, ...]]:
        pid = session.run(PID, {})[0][0]
        if pid == second:
            terminate_others(admin)
        return list(session.run(PID, {}))

    ((third, *settings),) = keeping.run(break_off)
    assert third not in (first, second)
    assert settings == ["force_generic_plan", "off"]


def test_a_server_that_hangs_does_not_hold_up_a_thread_that_kept_a_connection(url: str) -> None:
    with SilentProxy(url) as proxy:
        database = PostgresDatabase(proxy.url)

        def live() -> None:
            database.keep_connection()
            _pids(database)
            proxy.fall_silent()
            database.thread_ends()

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        thread.join(10)
        assert proxy.opened >= 1
        assert not thread.is_alive()
        database.close()


def test_a_kept_connection_goes_back_in_time_for_the_pool_to_retire_it(
    keeping: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pids(keeping)
    borrowed = connections_of(keeping).pool.get_stats()["requests_num"]
    assert borrowed == 1
    monkeypatch.setattr(connections_of(keeping)._keeping.kept, "_until", 0.0)
    _pids(keeping)
    assert connections_of(keeping).pool.get_stats()["requests_num"] == 2


def test_a_kept_connection_ends_with_its_pool(keeping: PostgresDatabase) -> None:
    (before,) = _pids(keeping)
    keeping.close()
    (after,) = _pids(keeping)
    assert after != before


def test_a_transaction_left_open_on_a_kept_connection_is_rolled_back(keeping: PostgresDatabase) -> None:
    with keeping.read() as session:
        session.raw.execute("BEGIN")
        session.run(INSERT, {"text": "a"})
    assert texts(keeping) == []
    assert keeping.run(lambda session: session.run(PID, {})[0][1:]) == ("force_generic_plan", "off")


@pytest.mark.parametrize("how", ["a pool of the user's", "no prepared statements"])
def test_nothing_is_kept_where_connections_are_not_ours(url: str, how: str) -> None:
    with ConnectionPool(url, min_size=1, max_size=1, open=True) as pool:
        database = PostgresDatabase(pool) if how.startswith("a pool") else PostgresDatabase(url, prepared_statements=False)
        database.keep_connection()
        assert database.run(lambda session: session.run(PID, {})[0][1:]) == ("auto", "on")
        with pool.connection(timeout=5) as conn:
            conn.execute("SELECT 1")
        database.thread_ends()
        database.close()


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_users_pool_is_used_and_left_as_found(url: str, autocommit: bool) -> None:
    with ConnectionPool(
        url, kwargs={"autocommit": autocommit, "row_factory": dict_row}, min_size=1, max_size=1, open=True
    ) as pool:
        database = PostgresDatabase(pool)
        insert(database, "a")
        database.run(lambda s: s.run(INSERT, {"text": "b"}), single=True)
        with database.block() as session:
            session.run(INSERT, {"text": "c"})
        with pytest.raises(KeyError), database.block() as session:
            session.run(INSERT, {"text": "d"})
            raise KeyError
        assert texts(database) == ["a", "b", "c"]
        database.reserve(2)
        assert pool.max_size == 1
        database.close()
        with pool.connection() as conn:
            assert conn.autocommit is autocommit
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert conn.execute("SELECT count(*) AS n FROM note").fetchone() == {"n": 3}
        with database.open_listener() as listener:
            assert listener.autocommit
        assert texts(database) == ["a", "b", "c"]
    with pytest.raises(DatabaseUnavailableError, match="not open"):
        insert(database, "e")


def test_a_listener_hears(database: PostgresDatabase, url: str) -> None:
    direct = PostgresDatabase("postgresql://127.0.0.1:1/none", listen_url=url)
    for source in (database, direct):
        with source.open_listener() as listener:
            assert listener.autocommit
            listener.execute("LISTEN something")
            database.run(lambda s: s.run(Query("q", ("SELECT pg_notify('something', 'payload')",)), {}))
            [heard] = list(listener.notifies(timeout=10, stop_after=1))
            assert heard.payload == "payload"


def test_vacuum(database: PostgresDatabase) -> None:
    migrate(database, Names())
    assert database.vacuum(Names())
    assert database.vacuum(Names(), full=True)
    with pytest.raises(psycopg.errors.InvalidSchemaName):
        database.vacuum(Names(schema="nowhere"))


def test_what_is_worth_trying_again(database: PostgresDatabase) -> None:
    for error in (
        psycopg.OperationalError("server closed the connection unexpectedly"),
        psycopg.InterfaceError("the connection is closed"),
        psycopg.errors.DeadlockDetected(),
        psycopg.errors.AdminShutdown(),
        psycopg.errors.CannotConnectNow(),
        psycopg.errors.TooManyConnections(),
        psycopg.errors.LockNotAvailable(),
        DatabaseUnavailableError(),
    ):
        assert database.is_transient(error), error
    for other in (
        psycopg.errors.UniqueViolation(),
        psycopg.errors.UndefinedTable(),
        KeyError(),
    ):
        assert not database.is_transient(other), other


FORK = """
    import os, sys, threading
    import psycopg_pool
    from queuert.errors import DatabaseUnavailableError, TransactionMisuseError
    from queuert.postgres.database import PostgresDatabase
    from queuert.postgres.lending import is_alive
    from queuert.storage.loader import Query
    insert = Query("insert", ("INSERT INTO note (text) VALUES ($1)",), ("text",))
    count = Query("count", ("SELECT count(*), pg_backend_pid() FROM note",))

    def add(database, text):
        database.run(lambda session: session.run(insert, {"text": text}))

    def look(database):
        with database.read() as session:
            return session.run(count, {})[0]

    def in_child(work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            sys.exit(0)  # an ordinary end, which drops all objects
        assert os.waitpid(pid, 0)[1] == 0

    database = PostgresDatabase(sys.argv[1])
    theirs = PostgresDatabase(psycopg_pool.ConnectionPool(sys.argv[1], min_size=1, open=True))
    add(database, "parent")
    add(theirs, "theirs")
    _, backend = look(database)

    def child():
        add(database, "child")
        rows, mine = look(database)
        assert rows == 3 and mine != backend
        try:
            look(theirs)
        except DatabaseUnavailableError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("the user's pool")
        database.close()

    in_child(child)
    assert look(database) == (3, backend)
    assert look(theirs)[0] == 3

    try:
        with database.block() as session:
            session.run(insert, {"text": "once"})
            pid = os.fork()
    except TransactionMisuseError as error:
        sys.stdout.flush()
        os._exit(0 if "fork" in str(error) else 1)
    assert pid
    assert os.waitpid(pid, 0)[1] == 0
    assert look(database) == (4, backend)
    add(database, "after")
    database.close()
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_child_has_its_own_connections(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK), url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


def test_the_pool_does_not_repeat_that_the_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with Queuert("postgresql://someone@127.0.0.1:1/shop") as app, caplog.at_level("INFO", "psycopg.pool"):
        with pytest.raises(Exception):  # noqa: B017, PT011  # whichever error: nobody listens there
            app.stats()
        ours = [record.getMessage() for record in caplog.records if POOL_NAME in record.getMessage()]
        assert not [text for text in ours if text.startswith("error connecting")]
        pool = ConnectionPool("host=127.0.0.1 port=1", min_size=1, timeout=0.1, name="theirs", open=False)
        pool.open()
        eventually(lambda: any("error connecting in 'theirs'" in record.getMessage() for record in caplog.records))
        pool.close()

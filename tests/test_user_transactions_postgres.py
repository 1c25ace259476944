"""The user's own psycopg connection, in the user's own transaction, set up in every way."""

from __future__ import annotations

import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row, tuple_row
from psycopg.types.json import set_json_loads
from support import eventually
from support.inside import subscribers_of
from support.using import declare, is_empty, read_everything, use_everything

from queuert import DuplicateJobIdError, Queuert, TransactionRequiredError

Connection = psycopg.Connection[Any]
CHOSEN = "0190a0b0-0000-7000-8000-000000000001"


@pytest.fixture
def app(pg_url: str) -> Iterator[Queuert]:
    with Queuert(pg_url) as app:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
        yield declare(app)


class MyCursor(psycopg.Cursor[Any]):
    """A cursor class of the user's own."""

    def execute(self, *args: Any, **kwargs: Any) -> MyCursor:
        return super().execute(*args, **kwargs)


@dataclass
class Anything:
    id: Any = None


STYLES: dict[str, dict[str, Any]] = {
    "default": {},
    "autocommit": {"autocommit": True},
    "dict rows": {"row_factory": dict_row},
    "named tuples": {"row_factory": namedtuple_row},
    "scalars": {"row_factory": scalar_row},
    "objects": {"row_factory": class_row(Anything)},
    "own cursor": {"cursor_factory": MyCursor},
    "client cursor": {"cursor_factory": psycopg.ClientCursor},
    "never prepared": {"prepare_threshold": None},
    "always prepared": {"prepare_threshold": 0},
}


def state(conn: Connection) -> tuple[Any, ...]:
    """What the user has set."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        settings = "synchronous_commit, search_path, timezone, transaction_isolation, lock_timeout, statement_timeout"
        server = [cursor.execute(f"SELECT current_setting('{name}')").fetchone() for name in settings.split(", ")]
    return (
        conn.autocommit,
        conn.row_factory,
        conn.cursor_factory,
        conn.prepare_threshold,
        conn.isolation_level,
        conn.read_only,
        conn.deferrable,
        conn.adapters.get_loader(psycopg.adapters.types["uuid"].oid, pq.Format.TEXT),
        conn.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, pq.Format.TEXT),
        server,
    )


@contextmanager
def transaction(conn: Connection) -> Iterator[None]:
    """A transaction in the style of the connection."""
    if conn.autocommit:
        with conn.transaction():
            yield
    else:
        try:
            yield
        except BaseException:
            conn.rollback()
            raise
        conn.commit()


@pytest.mark.parametrize("style", STYLES)
def test_everything_commits_or_rolls_back_with_the_users_transaction(app: Queuert, pg_url: str, style: str) -> None:
    with psycopg.connect(pg_url, **STYLES[style]) as conn:
        with transaction(conn):
            before = state(conn)
        with suppress(ZeroDivisionError), transaction(conn):
            conn.cursor(row_factory=tuple_row).execute("INSERT INTO orders (id) VALUES (1)")
            use_everything(app, conn)
            raise ZeroDivisionError
        assert is_empty(app)
        with transaction(conn):
            conn.cursor(row_factory=tuple_row).execute("INSERT INTO orders (id) VALUES (1)")
            chain_id = use_everything(app, conn)
            assert conn.info.transaction_status == pq.TransactionStatus.INTRANS
            assert app.get_chain(chain_id) is None, "nobody else sees it yet"
            assert state(conn) == before
        assert conn.info.transaction_status == pq.TransactionStatus.IDLE
        with transaction(conn):
            assert state(conn) == before
    assert app.get_chain(chain_id) is not None
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_default_connection_begins_as_the_driver_would(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        chain = app.start_chain("work", conn=conn)
        assert conn.info.transaction_status == pq.TransactionStatus.INTRANS
        assert app.get_chain(chain.id) is None
        conn.commit()
    assert app.get_chain(chain.id) == chain


def test_autocommit_with_nothing_open_is_refused(app: Queuert, pg_url: str) -> None:
    existing = app.start_chain("work")
    with psycopg.connect(pg_url, autocommit=True) as conn:
        calls: list[Callable[[], Any]] = [
            lambda: app.start_chain("work", conn=conn),
            lambda: app.start_chains([], conn=conn) or app.cancel_chain(existing.id, conn=conn),
            lambda: app.delete_chain(existing.id, conn=conn),
            lambda: app.trigger_job(existing.id, conn=conn),
            lambda: app.complete_chain(existing.id, conn=conn).__enter__(),
        ]
        for call in calls:
            with pytest.raises(TransactionRequiredError, match="transaction"):
                call()
        assert conn.info.transaction_status == pq.TransactionStatus.IDLE
        read_everything(app, conn, existing.id)
        assert conn.info.transaction_status == pq.TransactionStatus.IDLE
    assert [c.id for c in app.list_chains()] == [existing.id]


def test_a_transaction_opened_by_hand_is_joined(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute("BEGIN")
        chain_id = use_everything(app, conn)
        conn.execute("COMMIT")
    assert app.get_chain(chain_id) is not None


def test_nested_transactions_and_savepoints(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as conn, conn.transaction():
        before = app.start_chain("work", "before", conn=conn)
        with suppress(ZeroDivisionError), conn.transaction():
            app.start_chain("work", "lost", conn=conn)
            with conn.transaction():
                app.start_chain("work", "lost too", conn=conn)
            raise ZeroDivisionError
        with conn.transaction():
            inner = app.start_chain("work", "kept", conn=conn)
        with conn.transaction() as undone:
            app.start_chain("work", "undone", conn=conn)
            raise psycopg.Rollback(undone)
    assert {c.id for c in app.list_chains()} == {before.id, inner.id}


def test_savepoints_by_hand(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        before = app.start_chain("work", conn=conn)
        conn.execute("SAVEPOINT mine")
        app.start_chain("work", conn=conn)
        conn.execute("ROLLBACK TO mine")
        conn.commit()
    assert [c.id for c in app.list_chains()] == [before.id]


@pytest.mark.parametrize("autocommit", [True, False])
def test_pipeline_mode(app: Queuert, pg_url: str, autocommit: bool) -> None:
    if not psycopg.Pipeline.is_supported():
        pytest.skip("this libpq has no pipelines")
    with psycopg.connect(pg_url, autocommit=autocommit) as conn:
        with conn.pipeline(), transaction(conn):
            conn.execute("INSERT INTO orders (id) VALUES (1)")
            chain_id = use_everything(app, conn)
            conn.execute("INSERT INTO orders (id) VALUES (2)")
            assert conn.pgconn.pipeline_status != pq.PipelineStatus.OFF
        assert app.get_chain(chain_id) is not None
        with suppress(ZeroDivisionError), conn.pipeline(), transaction(conn):
            lost = app.start_chain("work", conn=conn)
            raise ZeroDivisionError
        assert app.get_chain(lost.id) is None
        assert conn.execute("SELECT count(*) FROM orders").fetchone() == (2,)


def test_a_taken_id_in_a_pipeline_leaves_it_usable(app: Queuert, pg_url: str) -> None:
    if not psycopg.Pipeline.is_supported():
        pytest.skip("this libpq has no pipelines")
    app.start_chain("work", id=CHOSEN)
    with psycopg.connect(pg_url) as conn, conn.pipeline():
        with pytest.raises(DuplicateJobIdError):
            app.start_chain("work", id=CHOSEN, conn=conn)
        kept = app.start_chain("work", conn=conn)
        conn.commit()
    assert app.get_chain(kept.id) == kept


def test_types_that_the_user_registered_do_not_reach_the_library(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        set_json_loads(lambda text: "changed", conn)
        conn.adapters.register_loader("uuid", psycopg.types.string.TextLoader)
        conn.adapters.register_loader("timestamptz", psycopg.types.string.TextLoader)
        conn.adapters.register_loader("text", psycopg.types.string.TextBinaryLoader)
        conn.execute("SET timezone TO 'Asia/Tokyo'")
        chain_id = use_everything(app, conn)
        found = app.get_chain(chain_id, conn=conn)
        assert found is not None
        assert found.input == {"text": "ü€😀"}
        assert found.created_at.utcoffset() == timedelta(0)
        assert conn.execute("SELECT '{}'::jsonb, current_setting('timezone')").fetchone() == ("changed", "Asia/Tokyo")
        conn.commit()


def test_a_failed_transaction_is_refused_until_it_is_rolled_back(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        with pytest.raises(TransactionRequiredError, match="roll it back"):
            app.start_chain("work", conn=conn)
        with pytest.raises(TransactionRequiredError, match="roll it back"):
            app.list_chains(conn=conn)
        conn.rollback()
        chain = app.start_chain("work", conn=conn)
        conn.commit()
    assert app.get_chain(chain.id) == chain


def test_an_error_of_the_library_leaves_the_transaction_usable(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        conn.execute("INSERT INTO orders (id) VALUES (1)")
        use_everything(app, conn)  # it raises DuplicateJobIdError on the way
        assert conn.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        conn.commit()


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_stricter_isolation_levels_work_or_raise(app: Queuert, pg_url: str, level: psycopg.IsolationLevel) -> None:
    with psycopg.connect(pg_url) as conn:
        conn.isolation_level = level
        chain_id = use_everything(app, conn)
        conn.commit()
        assert conn.isolation_level == level
        assert app.get_chain(chain_id) is not None
        # A blocker that closes after the snapshot was taken: it works or it raises, but the job is never stranded.
        blocker = app.start_chain("work")
        conn.execute("SELECT 1")
        with app.complete_chain(blocker.id) as tail:
            tail.finish()
        try:
            waiting = app.start_chain("work", blockers=[blocker], conn=conn)
            conn.commit()
        except psycopg.errors.SerializationFailure:
            conn.rollback()
        else:
            found = app.get_chain(waiting.id)
            assert found is not None
            assert found.status == "pending"


def test_a_read_only_transaction_can_read(app: Queuert, pg_url: str) -> None:
    chain = app.start_chain("work")
    with psycopg.connect(pg_url) as conn:
        conn.read_only = True
        read_everything(app, conn, chain.id)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            app.start_chain("work", conn=conn)


def test_a_commit_wakes_others_without_hooks(app: Queuert, pg_url: str) -> None:
    chain = app.start_chain("work")
    waited: list[Any] = []
    waiter = threading.Thread(target=lambda: waited.append(app.wait_for(chain, timeout=20, poll_interval=3600)), daemon=True)
    waiter.start()
    eventually(lambda: subscribers_of(app))
    with psycopg.connect(pg_url) as conn, app.complete_chain(chain.id, conn=conn) as tail:
        tail.finish("done")
    waiter.join(20)
    assert waited[0].output == "done"


def test_calls_without_conn_inside_a_block_on_it_are_refused_within_a_moment(app: Queuert, pg_url: str) -> None:
    chain = app.start_chain("work")
    started = time.monotonic()
    with psycopg.connect(pg_url) as conn:
        with app.complete_chain(chain.id, conn=conn) as tail:
            for call in (lambda: app.cancel_chain(chain.id), lambda: app.get_chain(chain.id), lambda: app.start_chain("work")):
                with pytest.raises(TransactionRequiredError):
                    call()
            with app.complete_chain(chain.id, conn=conn) as again:
                assert again.status == "pending"
            tail.finish("usable")
        assert app.get_chain(chain.id) is not None, "outside the block it is free again"
        conn.commit()
    assert time.monotonic() - started < 5
    found = app.get_chain(chain.id)
    assert found is not None
    assert found.output == "usable"


def test_the_librarys_own_transaction_refuses_to_be_ended(app: Queuert) -> None:
    with suppress(ZeroDivisionError), app.transaction() as tx:
        for misuse in (tx.commit, tx.rollback):
            with pytest.raises(psycopg.ProgrammingError):
                misuse()
        tx.row_factory = dict_row
        use_everything(app, tx)
        raise ZeroDivisionError
    assert is_empty(app)
    with app.transaction() as tx:
        assert tx.execute("SELECT 1").fetchone() == (1,)


def test_what_is_no_connection_to_postgres_is_refused(app: Queuert, pg_url: str) -> None:
    import sqlite3

    fake = namedtuple("fake", "autocommit")(False)
    with psycopg.connect(pg_url) as conn:
        for wrong in (sqlite3.connect(":memory:"), conn.cursor(), fake, 5, pg_url):
            with pytest.raises(TypeError, match="conn="):
                app.start_chain("work", conn=wrong)
            with pytest.raises(TypeError, match="conn="):
                app.get_chain(CHOSEN, conn=wrong)


def test_a_connection_of_a_pool_is_a_connection(app: Queuert, pg_url: str) -> None:
    import psycopg_pool

    with psycopg_pool.ConnectionPool(pg_url, min_size=1, max_size=2) as pool:
        with pool.connection() as conn:
            chain_id = use_everything(app, conn)
        with suppress(ZeroDivisionError), pool.connection() as conn:
            lost = app.start_chain("work", conn=conn)
            raise ZeroDivisionError
    assert app.get_chain(chain_id) is not None
    assert app.get_chain(lost.id) is None


def test_prepared_statements_of_the_user_stay(app: Queuert, pg_url: str) -> None:
    with psycopg.connect(pg_url) as conn:
        for number in range(7):
            conn.execute("INSERT INTO orders (id) VALUES (%s)", (number,))
            app.start_chain("work", number, conn=conn)
        prepared = conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO orders%'")
        assert prepared.fetchone() == (1,)
        conn.commit()
    assert len(app.list_chains()) == 7

"""The user's own sqlite3 connection, in the user's own transaction, set up in every way."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.using import declare, is_empty, read_everything, use_everything

from queuert import (
    Dedup,
    ForeignKeysDisabledError,
    NewChain,
    Queuert,
    QueuertError,
    StaleSnapshotError,
    TransactionRequiredError,
)

CHOSEN = "0190a0b0-0000-7000-8000-000000000001"
AUTOCOMMIT = sys.version_info >= (3, 12)


@pytest.fixture
def app(sqlite_path: Path) -> Iterator[Queuert]:
    with Queuert(sqlite_path, busy_timeout=5) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        yield declare(app)


class Text(str):
    """A text of the user's own."""


STYLES: dict[str, dict[str, Any]] = {
    "by hand": {"isolation_level": None},
    "implicit": {"isolation_level": ""},
    "deferred": {"isolation_level": "DEFERRED"},
    "immediate": {"isolation_level": "IMMEDIATE"},
    "exclusive": {"isolation_level": "EXCLUSIVE"},
    **({"autocommit off": {"autocommit": False}} if AUTOCOMMIT else {}),
    **({"autocommit on": {"autocommit": True}} if AUTOCOMMIT else {}),
}


@contextmanager
def connected(app: Queuert, path: Path | str, **options: Any) -> Iterator[sqlite3.Connection]:
    """A connection that is configured, with no transaction open by hand."""
    with closing(sqlite3.connect(path, **options)) as conn:
        app.configure_connection(conn)
        yield conn


def begin(conn: sqlite3.Connection, style: str) -> None:
    """Open a transaction where the style leaves that to the user; with the others the driver does."""
    if style in ("by hand", "autocommit on"):
        conn.execute("BEGIN IMMEDIATE")


def end(conn: sqlite3.Connection, style: str, how: str) -> None:
    if style == "autocommit on":
        conn.execute(how)
    elif how == "COMMIT":
        conn.commit()
    else:
        conn.rollback()


def state(conn: sqlite3.Connection) -> tuple[Any, ...]:
    """What the user has set."""
    timeout, keys = (conn.cursor().execute(f"PRAGMA {name}").fetchone() for name in ("busy_timeout", "foreign_keys"))
    return (
        conn.isolation_level,
        getattr(conn, "autocommit", None),
        conn.row_factory,
        conn.text_factory,
        tuple(timeout),
        tuple(keys),
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_everything_commits_or_rolls_back_with_the_users_transaction(
    app: Queuert, sqlite_path: Path, style: str, how: str
) -> None:
    with connected(app, sqlite_path, **STYLES[style]) as conn:
        before = state(conn)
        begin(conn, style)
        conn.execute("INSERT INTO orders (id) VALUES (1)")
        chain_id = use_everything(app, conn)
        assert conn.in_transaction
        assert state(conn) == before
        assert app.get_chain(chain_id) is None, "nobody else sees it yet"
        end(conn, style, how)
        assert conn.in_transaction is (style == "autocommit off")
        assert state(conn) == before
    kept = app.get_chain(chain_id)
    assert (kept is not None) is (how == "COMMIT")
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM orders").fetchone()[0] == (how == "COMMIT")
    if how == "ROLLBACK":
        assert is_empty(app)


@pytest.mark.parametrize("style", STYLES)
def test_a_call_opens_the_transaction_as_the_driver_would(app: Queuert, sqlite_path: Path, style: str) -> None:
    with connected(app, sqlite_path, **STYLES[style]) as conn:
        if style in ("by hand", "autocommit on"):
            with pytest.raises(TransactionRequiredError, match="open one first"):
                app.start_chain("work", conn=conn)
            assert not conn.in_transaction
            assert is_empty(app)
            return
        chain = app.start_chain("work", conn=conn)
        assert conn.in_transaction
        assert app.get_chain(chain.id) is None
        conn.commit()
        assert app.get_chain(chain.id) == chain


FACTORIES: dict[str, Callable[[sqlite3.Connection], None]] = {
    "Row": lambda conn: setattr(conn, "row_factory", sqlite3.Row),
    "dict": lambda conn: setattr(
        conn, "row_factory", lambda cursor, row: dict(zip((c[0] for c in cursor.description), row, strict=True))
    ),
    "broken": lambda conn: setattr(conn, "row_factory", lambda cursor, row: 1 // 0),
    "bytes": lambda conn: setattr(conn, "text_factory", bytes),
    "subclass": lambda conn: setattr(conn, "text_factory", lambda data: Text(data.decode())),
    "upper": lambda conn: setattr(conn, "text_factory", lambda data: data.decode().upper()),
}


@pytest.mark.parametrize("factory", FACTORIES)
def test_any_row_or_text_factory_keeps_working(app: Queuert, sqlite_path: Path, factory: str) -> None:
    with connected(app, sqlite_path, isolation_level=None) as conn:
        conn.execute("BEGIN IMMEDIATE")
        FACTORIES[factory](conn)
        kept = conn.row_factory, conn.text_factory
        chain_id = use_everything(app, conn)
        read_everything(app, conn, chain_id)
        assert (conn.row_factory, conn.text_factory) == kept
        conn.row_factory = None
        conn.execute("COMMIT")
    found = app.get_chain(chain_id)
    assert found is not None
    assert type(found.id) is str


def test_functions_and_collations_of_the_user_stay(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn:
        conn.create_function("double", 1, lambda n: 2 * n)
        traced: list[str] = []
        conn.set_trace_callback(traced.append)
        use_everything(app, conn)
        assert conn.execute("SELECT double(4)").fetchone() == (8,)
        assert traced
        conn.rollback()


def test_a_cursor_of_the_users_stays_where_it_was(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn:
        conn.executemany("INSERT INTO orders (id) VALUES (?)", [(n,) for n in range(10)])
        cursor = conn.execute("SELECT id FROM orders ORDER BY id")
        assert cursor.fetchone() == (0,)
        use_everything(app, conn)
        assert [row[0] for row in cursor] == list(range(1, 10))
        conn.rollback()


def test_a_shared_cache_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with Queuert(path) as app:
        app.migrate()
        declare(app)
        with connected(app, f"file:{path}?cache=shared", uri=True, isolation_level=None) as conn:
            conn.execute("BEGIN IMMEDIATE")
            chain_id = use_everything(app, conn)
            conn.execute("COMMIT")
        assert app.get_chain(chain_id) is not None


def test_a_connection_may_come_from_another_thread(app: Queuert, sqlite_path: Path) -> None:
    conns: list[sqlite3.Connection] = []

    def connect() -> None:
        conn = sqlite3.connect(sqlite_path, check_same_thread=False)
        app.configure_connection(conn)
        conns.append(conn)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    with closing(conns[0]) as conn:
        chain_id = use_everything(app, conn)
        conn.commit()
    assert app.get_chain(chain_id) is not None


def test_a_connection_of_another_thread_that_may_not_be_shared_says_so(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn:
        errors: list[BaseException] = []

        def use() -> None:
            try:
                app.start_chain("work", conn=conn)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert isinstance(errors[0], sqlite3.ProgrammingError)
    assert is_empty(app)


def test_a_rolled_back_savepoint_takes_what_was_in_it(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path, isolation_level=None) as conn:
        conn.execute("BEGIN IMMEDIATE")
        before = app.start_chain("work", "before", conn=conn)
        conn.execute("SAVEPOINT outer_one")
        app.start_chain("work", "lost", conn=conn)
        conn.execute("SAVEPOINT inner_one")
        app.start_chain("work", "lost too", conn=conn)
        conn.execute("RELEASE inner_one")
        conn.execute("ROLLBACK TO outer_one")
        conn.execute("RELEASE outer_one")
        after = app.start_chain("work", "after", conn=conn)
        conn.execute("COMMIT")
    assert {c.id for c in app.list_chains()} == {before.id, after.id}


def test_with_on_the_connection_commits_and_rolls_back(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn:
        with conn:
            kept = app.start_chain("work", conn=conn)
        with suppress(ZeroDivisionError), conn:
            app.start_chain("work", conn=conn)
            raise ZeroDivisionError
    assert [c.id for c in app.list_chains()] == [kept.id]


@pytest.mark.parametrize("style", STYLES)
def test_reads_need_no_transaction_and_leave_none_behind(app: Queuert, sqlite_path: Path, style: str) -> None:
    chain = app.start_chain("work")
    with connected(app, sqlite_path, **STYLES[style]) as conn:
        before = state(conn), conn.in_transaction
        read_everything(app, conn, chain.id)
        assert (state(conn), conn.in_transaction) == before
        with app.complete_chain(app.start_chain("work").id) as tail:
            tail.finish()


def test_foreign_keys_must_be_on(app: Queuert, sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path)) as conn:
        chain = app.start_chain("work")
        calls: list[Callable[[], Any]] = [
            lambda: app.start_chain("work", conn=conn),
            lambda: app.start_chains([NewChain("work")], conn=conn),
            lambda: app.cancel_chain(chain.id, conn=conn),
            lambda: app.delete_chain(chain.id, conn=conn),
            lambda: app.complete_chain(chain.id, conn=conn).__enter__(),
        ]
        for call in calls:
            with pytest.raises(ForeignKeysDisabledError, match="configure_connection"):
                call()
        assert not conn.in_transaction
        read_everything(app, conn, chain.id)
        app.configure_connection(conn)
        use_everything(app, conn)
        conn.rollback()
        assert conn.execute("PRAGMA busy_timeout").fetchone() == (5_000,)
        assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_check_of_foreign_keys_can_be_left_out(sqlite_path: Path) -> None:
    with Queuert(sqlite_path, check_foreign_keys=False) as app, closing(sqlite3.connect(sqlite_path)) as conn:
        app.migrate()
        declare(app)
        chain = app.start_chain("work", conn=conn)
        conn.commit()
        assert app.get_chain(chain.id) == chain


def test_configuring_inside_a_transaction_is_refused(app: Queuert, sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path)) as conn:
        conn.execute("INSERT INTO orders (id) VALUES (7)")
        with pytest.raises(QueuertError, match="before the connection's first transaction"):
            app.configure_connection(conn)
        conn.rollback()
        app.configure_connection(conn)


def test_a_stale_snapshot_names_the_cure(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path, isolation_level=None) as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM orders").fetchone()
        app.start_chain("work", "somebody else")
        calls: list[Callable[[], Any]] = [
            lambda: app.start_chain("work", conn=conn),
            lambda: app.start_chain("work", dedup=Dedup("k"), conn=conn),
            lambda: app.start_chains(
                [NewChain("work", id="0190a0b0-0000-7000-8000-000000000001"), NewChain("work")], conn=conn
            ),
        ]
        for call in calls:
            with pytest.raises(StaleSnapshotError, match="BEGIN IMMEDIATE"):
                call()
        conn.execute("ROLLBACK")
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("SELECT count(*) FROM orders").fetchone()
        kept = app.start_chain("work", conn=conn)
        conn.execute("COMMIT")
    assert app.get_chain(kept.id) == kept


def test_calls_without_conn_inside_a_block_on_it_are_refused_within_a_moment(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn:
        chain = app.start_chain("work", conn=conn)
        started = time.monotonic()
        with app.complete_chain(chain.id, conn=conn) as tail:
            for call in (lambda: app.start_chain("work"), lambda: app.get_chain(chain.id), lambda: app.cancel_chain(chain.id)):
                with pytest.raises(TransactionRequiredError):
                    call()
            tail.finish("usable")
        assert time.monotonic() - started < 2
        conn.commit()
    found = app.get_chain(chain.id)
    assert found is not None
    assert found.output == "usable"


def test_a_connection_in_the_librarys_own_transaction_is_guarded(app: Queuert) -> None:
    with app.transaction() as tx:
        for misuse in (tx.commit, tx.rollback, tx.close, lambda: tx.execute("COMMIT"), lambda: tx.executescript("SELECT 1")):
            with pytest.raises(QueuertError):
                misuse()
        tx.row_factory = sqlite3.Row
        chain_id = use_everything(app, tx)
    assert app.get_chain(chain_id) is not None
    with app.transaction() as tx:
        assert tx.row_factory is None


@pytest.mark.parametrize("wrong", [5, object(), "sqlite:///file.db", None.__class__])
def test_what_is_no_connection_is_refused(app: Queuert, wrong: Any) -> None:
    with pytest.raises(TypeError, match="conn="):
        app.start_chain("work", conn=wrong)
    with pytest.raises(TypeError, match="conn="):
        app.get_chain(CHOSEN, conn=wrong)


def test_a_cursor_or_a_closed_connection_is_refused(app: Queuert, sqlite_path: Path) -> None:
    with connected(app, sqlite_path) as conn, pytest.raises(TypeError, match="cursor's connection"):
        app.start_chain("work", conn=conn.cursor())
    with pytest.raises(sqlite3.ProgrammingError):
        app.start_chain("work", conn=conn)


def test_a_connection_to_postgres_is_refused(app: Queuert, pg_url: str) -> None:
    import psycopg

    with psycopg.connect(pg_url) as conn, pytest.raises(TypeError, match=r"sqlite3\.Connection"):
        app.start_chain("work", conn=conn)


def test_a_memory_database_has_no_connections_but_its_own() -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.migrate()
        declare(app)
        with app.transaction() as tx:
            chain_id = use_everything(app, tx)
        assert app.get_chain(chain_id) is not None
        with connected(app, ":memory:") as other, pytest.raises(QueuertError, match="migrate"):
            app.start_chain("work", conn=other)


def test_a_connection_used_after_its_block_is_refused(app: Queuert) -> None:
    with app.transaction() as tx:
        pass
    with pytest.raises(QueuertError, match="over"):
        app.start_chain("work", conn=tx)

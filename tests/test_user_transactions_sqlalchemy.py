"""SQLAlchemy's Connection and Session as `conn=`, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.using import declare, is_empty, read_everything, use_everything

from queuert import ForeignKeysDisabledError, Queuert, TransactionRequiredError

sqlalchemy = pytest.importorskip("sqlalchemy")
from sqlalchemy import event, orm  # noqa: E402  (only where it is installed)


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    chain_id: orm.Mapped[str | None]


def configured(app: Queuert, engine: Any) -> Any:
    """What a user writes once for SQLite, and not at all for PostgreSQL."""
    event.listen(engine, "connect", lambda conn, record: app.configure_connection(conn))
    return engine


@pytest.fixture(params=["sqlite", "sqlite-pysqlite-begin", "postgres"])
def engine(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Any]:
    """An engine, on a database that has the tables of an app that is in `engine.app`."""
    postgres = request.param == "postgres"
    target = request.getfixturevalue("pg_url") if postgres else f"sqlite:///{sqlite_path}"
    with Queuert(target) as app:
        app.migrate()
        engine = sqlalchemy.create_engine(target.replace("postgresql://", "postgresql+psycopg://"))
        configured(app, engine)
        if request.param == "sqlite-pysqlite-begin":
            # What SQLAlchemy's documentation advises for SQLite: the driver begins nothing, SQLAlchemy does.
            @event.listens_for(engine, "connect")
            def leave_it_to_us(conn: sqlite3.Connection, record: Any) -> None:
                conn.isolation_level = None

            @event.listens_for(engine, "begin")
            def begin(conn: Any) -> None:
                conn.exec_driver_sql("BEGIN IMMEDIATE")

        Base.metadata.create_all(engine)
        engine.app = declare(app)
        yield engine
        engine.dispose()


def orders(app: Queuert) -> int:
    with app.transaction() as tx:
        count: int = tx.execute("SELECT count(*) FROM orders").fetchone()[0]
        return count


def test_a_connection_commits_and_rolls_back(engine: Any) -> None:
    app: Queuert = engine.app
    with engine.connect() as conn:
        conn.execute(sqlalchemy.insert(Order).values(id=1))
        chain_id = use_everything(app, conn)
        assert app.get_chain(chain_id) is None
        conn.commit()
        assert app.get_chain(chain_id) is not None
        conn.execute(sqlalchemy.insert(Order).values(id=2))
        lost = app.start_chain("work", conn=conn)
        conn.rollback()
    assert app.get_chain(lost.id) is None
    assert orders(app) == 1


def test_a_chain_may_be_the_first_thing_that_a_connection_does(engine: Any) -> None:
    app: Queuert = engine.app
    with engine.connect() as conn:
        chain = app.start_chain("work", conn=conn)
        conn.commit()
    assert app.get_chain(chain.id) == chain
    with engine.connect() as conn:
        lost = app.start_chain("work", conn=conn)
    assert app.get_chain(lost.id) is None, "a connection that is given back without a commit rolls back"


def test_begin_blocks_commit_and_roll_back(engine: Any) -> None:
    app: Queuert = engine.app
    with engine.begin() as conn:
        chain_id = use_everything(app, conn)
    assert app.get_chain(chain_id) is not None
    with suppress(ZeroDivisionError), engine.begin() as conn:
        lost = app.start_chain("work", conn=conn)
        raise ZeroDivisionError
    assert app.get_chain(lost.id) is None


def test_a_rolled_back_savepoint_takes_what_was_in_it(engine: Any) -> None:
    app: Queuert = engine.app
    with engine.begin() as conn:
        before = app.start_chain("work", conn=conn)
        with suppress(ZeroDivisionError), conn.begin_nested():
            app.start_chain("work", conn=conn)
            raise ZeroDivisionError
        with conn.begin_nested():
            inner = app.start_chain("work", conn=conn)
    assert {c.id for c in app.list_chains()} == {before.id, inner.id}


def test_a_session_commits_and_rolls_back(engine: Any) -> None:
    app: Queuert = engine.app
    with orm.Session(engine) as session:
        session.add(Order(id=1))
        chain_id = use_everything(app, session)
        session.commit()
        session.add(Order(id=2))
        lost = app.start_chain("work", conn=session)
        session.rollback()
    assert app.get_chain(chain_id) is not None
    assert app.get_chain(lost.id) is None
    assert orders(app) == 1


def test_an_object_added_before_is_flushed_first(engine: Any) -> None:
    app: Queuert = engine.app
    with orm.Session(engine) as session, session.begin():
        order = Order()
        session.add(order)
        assert order.id is None
        chain = app.start_chain("work", conn=session)
        assert order.id is not None, "its row was written before the chain's"
        order.chain_id = chain.id
        later = app.start_chain("work", {"order": order.id}, conn=session)
    with orm.Session(engine) as session:
        assert session.get(Order, later.input["order"]).chain_id == chain.id


def test_an_object_that_cannot_be_written_keeps_the_chain_out(engine: Any) -> None:
    app: Queuert = engine.app
    with orm.Session(engine) as session:
        session.add(Order(id=1))
        session.commit()
    with orm.Session(engine) as session:
        session.add(Order(id=1))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            app.start_chain("work", conn=session)
        session.rollback()
        kept = app.start_chain("work", conn=session)
        session.commit()
    assert [c.id for c in app.list_chains()] == [kept.id]


def test_nested_sessions(engine: Any) -> None:
    app: Queuert = engine.app
    with orm.Session(engine) as session, session.begin():
        with suppress(ZeroDivisionError), session.begin_nested():
            app.start_chain("work", conn=session)
            raise ZeroDivisionError
        with session.begin_nested():
            session.add(Order(id=3))
            kept = app.start_chain("work", conn=session)
    assert [c.id for c in app.list_chains()] == [kept.id]
    assert orders(app) == 1


def test_a_scoped_session_is_a_session(engine: Any) -> None:
    app: Queuert = engine.app
    session = orm.scoped_session(orm.sessionmaker(engine))
    try:
        chain = app.start_chain("work", conn=session)
        session.commit()
    finally:
        session.remove()
    assert app.get_chain(chain.id) == chain


def test_autocommit_is_refused_and_may_read(engine: Any, request: pytest.FixtureRequest) -> None:
    if "pysqlite-begin" in request.node.name:
        pytest.skip("there SQLAlchemy begins a transaction in autocommit too")
    app: Queuert = engine.app
    chain = app.start_chain("work")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        read_everything(app, conn, chain.id)
        with pytest.raises(TransactionRequiredError):
            app.start_chain("work", conn=conn)
    assert [c.id for c in app.list_chains()] == [chain.id]


def test_reads_leave_the_connection_as_it_was(engine: Any) -> None:
    app: Queuert = engine.app
    chain = app.start_chain("work")
    with engine.connect() as conn:
        read_everything(app, conn, chain.id)
        assert not conn.in_transaction()
    with orm.Session(engine) as session:
        read_everything(app, session, chain.id)
        session.add(Order(id=1))
        assert app.get_chain(chain.id, conn=session) == chain
        session.commit()
    assert orders(app) == 1


def test_a_raw_connection_of_the_pool_works(engine: Any) -> None:
    app: Queuert = engine.app
    raw = engine.raw_connection()
    try:
        if getattr(raw.driver_connection, "isolation_level", "") is None and hasattr(raw.driver_connection, "in_transaction"):
            raw.driver_connection.execute("BEGIN IMMEDIATE")
        chain = app.start_chain("work", conn=raw)
        raw.commit()
    finally:
        raw.close()
    assert app.get_chain(chain.id) == chain


def test_an_engine_is_not_a_connection(engine: Any) -> None:
    with pytest.raises(TypeError, match="Connection or a Session"):
        engine.app.start_chain("work", conn=engine)


def test_foreign_keys_must_be_on(sqlite_path: Path) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()
        declare(app)
        engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}")
        with engine.connect() as conn, pytest.raises(ForeignKeysDisabledError, match="configure_connection"):
            app.start_chain("work", conn=conn)
        with orm.Session(engine) as session:
            app.configure_connection(session)
            chain_id = use_everything(app, session)
            session.rollback()
        assert is_empty(app)
        assert app.get_chain(chain_id) is None
        engine.dispose()


def test_psycopg_2_is_refused_with_the_way_out(pg_url: str) -> None:
    pytest.importorskip("psycopg2")
    engine = sqlalchemy.create_engine(pg_url.replace("postgresql://", "postgresql+psycopg2://"))
    with Queuert(pg_url) as app, engine.connect() as conn, pytest.raises(TypeError, match=r"postgresql\+psycopg://"):
        declare(app).start_chain("work", conn=conn)

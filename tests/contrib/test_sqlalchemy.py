"""The library on an engine's connections, and in a session's transactions, on both databases."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sa
from others import BusyNeighbour, chains_around_a_close, forked, locked_orders
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, StaticPool
from support import eventually, found
from support.inside import context_of, database_of, notifier_of
from support.postgres import closed_by_the_server

from queuert import NewChain, Queuert, RunningJob, current_job
from queuert.contrib.sqlalchemy import SQLAlchemyProvider
from queuert.errors import (
    DatabaseUnavailableError,
    QueuertError,
    SchemaVersionError,
    TransactionMisuseError,
    TransactionRequiredError,
    UnsupportedDatabaseError,
)
from queuert.notify.protocol import Channel, Notice


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")


def engine_url(request: pytest.FixtureRequest, kind: str) -> str:
    if kind == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    if kind == "sqlite-memory":
        return "sqlite://"
    url: str = request.getfixturevalue("empty_pg_url")
    return "postgresql+psycopg" + url.removeprefix("postgresql")


def make_engine(url: str, **options: Any) -> sa.Engine:
    if url == "sqlite://":
        options.setdefault("poolclass", StaticPool)
        options.setdefault("connect_args", {"check_same_thread": False})
    return sa.create_engine(url, **options)


@pytest.fixture(params=["sqlite-file", "sqlite-memory", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    engine = make_engine(engine_url(request, request.param))
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared_engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    """A database that several connections can use at once."""
    engine = make_engine(engine_url(request, request.param))
    yield engine
    engine.dispose()


def make_app(engine: sa.Engine, **options: Any) -> Queuert:
    app = Queuert(SQLAlchemyProvider(engine, **options))
    app.declare("ship")
    app.migrate()
    Base.metadata.create_all(engine)
    return app


@pytest.fixture
def app(engine: sa.Engine) -> Iterator[Queuert]:
    with make_app(engine) as app:
        yield app


@pytest.fixture
def orm_app(engine: sa.Engine) -> Iterator[Queuert]:
    with make_app(engine, session_factory=sessionmaker(engine)) as app:
        yield app


def chains(app: Queuert) -> int:
    return len(app.list_chains().items)


def orders(engine: sa.Engine) -> dict[int, str]:
    with Session(engine) as session:
        return {order.id: order.state for order in session.scalars(sa.select(Order))}


class Heard:
    """What the app's notifier published in this process."""

    def __init__(self, app: Queuert) -> None:
        self.notices: list[Notice] = []
        notifier: Any = notifier_of(app)
        publish = notifier.publish

        def record(notices: Any) -> None:
            told = list(notices)
            self.notices += told
            publish(told)

        notifier.publish = record


# The session's transaction


def test_a_chain_commits_with_the_session(app: Queuert, engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        chain = app.start_chain("ship", {"order": 1}, conn=session)
        session.commit()
    assert app.get_chain(chain.id) == chain
    assert orders(engine) == {1: "new"}


def test_a_chain_is_rolled_back_with_the_session(app: Queuert, engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        app.start_chain("ship", conn=session)
        session.rollback()
    with Session(engine) as session:
        app.start_chain("ship", conn=session)  # and closed without a commit
    assert chains(app) == 0
    assert orders(engine) == {}


def test_what_the_session_has_not_written_yet_is_flushed_first(app: Queuert, engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=7))
        app.start_chain("ship", conn=session)
        assert session.connection().exec_driver_sql("SELECT count(*) FROM orders").scalar() == 1
        session.add(Order(id=7, state="twice"))
        with pytest.raises(IntegrityError):
            app.start_chain("ship", conn=session)
        session.rollback()
    assert chains(app) == 0


def test_a_savepoint_of_the_session_takes_its_chains_with_it(app: Queuert, engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        kept = app.start_chain("ship", conn=session)
        nested = session.begin_nested()
        app.start_chain("ship", conn=session)
        nested.rollback()
        with session.begin_nested():
            also_kept = app.start_chain("ship", conn=session)
    assert {chain.id for chain in app.list_chains().items} == {kept.id, also_kept.id}


def test_a_scoped_session_and_a_connection_are_joined_too(app: Queuert, engine: sa.Engine) -> None:
    registry = scoped_session(sessionmaker(engine))
    app.start_chain("ship", conn=registry)
    registry.commit()
    registry.remove()
    with engine.begin() as conn:
        app.start_chain("ship", conn=conn)
    with engine.connect() as conn:
        app.start_chain("ship", conn=conn)
    assert chains(app) == 2


def test_reads_see_what_the_session_wrote(app: Queuert, engine: sa.Engine) -> None:
    with Session(engine) as session:
        chain = app.start_chain("ship", conn=session)
        assert app.get_chain(chain.id, conn=session) is not None
        session.rollback()


def test_cancel_retry_and_delete_take_part_in_the_session(app: Queuert, engine: sa.Engine) -> None:
    chain = app.start_chain("ship")
    with Session(engine) as session:
        assert app.cancel_chain(chain.id, conn=session).status == "cancelled"
        session.rollback()
    assert found(app.get_chain(chain.id)).status == "pending"
    with Session(engine) as session, session.begin():
        app.cancel_chain(chain.id, conn=session)
        app.retry_chain(chain.id, conn=session)
        app.delete_chain(chain.id, conn=session)
    assert chains(app) == 0


def test_a_savepoint_that_comes_first_is_no_commit(app: Queuert, engine: sa.Engine) -> None:
    """The SQLite driver begins before a write, and not before a savepoint."""
    with Session(engine) as session:
        with session.begin_nested():
            app.start_chain("ship", conn=session)
        session.rollback()
    assert chains(app) == 0


# After the commit


def test_effects_wait_for_the_sessions_commit(app: Queuert, engine: sa.Engine) -> None:
    heard = Heard(app)
    with Session(engine) as session:
        app.start_chain("ship", conn=session)
        assert heard.notices == []
        session.commit()
        assert heard.notices == [Notice(Channel.SCHEDULED, "ship")]
        session.commit()
    assert len(heard.notices) == 1


def test_effects_of_what_was_rolled_back_or_given_up_are_dropped(app: Queuert, engine: sa.Engine) -> None:
    heard = Heard(app)
    with Session(engine) as session:
        app.start_chain("ship", conn=session)
        session.rollback()
        session.add(Order(id=1))
        session.commit()
        app.start_chain("ship", conn=session)
        session.close()
        session.add(Order(id=2))
        session.commit()
    assert heard.notices == []


def test_effects_follow_savepoints(app: Queuert, engine: sa.Engine) -> None:
    for name in ("kept", "undone", "inner"):
        app.declare(name)
    heard = Heard(app)
    with Session(engine) as session:
        with session.begin_nested():
            app.start_chain("kept", conn=session)
        assert heard.notices == [], "a released savepoint is no commit"
        outer = session.begin_nested()
        app.start_chain("undone", conn=session)
        with session.begin_nested():
            app.start_chain("inner", conn=session)
        outer.rollback()
        session.commit()
    assert [notice.payload for notice in heard.notices] == ["kept"]


def test_a_session_inside_somebody_elses_transaction_tells_through_the_database(
    shared_engine: sa.Engine,
) -> None:
    """Its commit() is only a savepoint's: the app must not take it for the end."""
    with make_app(shared_engine) as app:
        heard = Heard(app)
        with shared_engine.connect() as conn:
            transaction = conn.begin()
            with Session(conn, join_transaction_mode="create_savepoint") as session:
                app.start_chain("ship", conn=session)
                session.commit()
            assert heard.notices == []
            transaction.rollback()
        assert chains(app) == 0


def test_app_hooks_win_over_the_sessions(app: Queuert, engine: sa.Engine) -> None:
    heard = Heard(app)
    with app.hooks(), Session(engine) as session:
        app.start_chain("ship", conn=session)
        session.commit()
        assert heard.notices == []
    assert len(heard.notices) == 1


def test_on_postgresql_a_session_needs_no_notify_in_its_transaction(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(engine_url(request, "postgres"))
    with make_app(engine) as app:
        statements: list[str] = []
        monkeypatch.setattr(notifier_of(app), "notify_in_transaction", lambda *args: statements.append("notify"))
        with Session(engine) as session, session.begin():
            app.start_chain("ship", conn=session)
            assert context_of(app).channel_in_transaction(context_of(app).join(session), Channel.SCHEDULED) is None
        assert statements == []
    engine.dispose()


def test_a_worker_elsewhere_is_woken_by_the_commit(shared_engine: sa.Engine) -> None:
    with make_app(shared_engine) as web, Queuert(SQLAlchemyProvider(shared_engine)) as work:
        ran = threading.Event()
        work.job("ship")(lambda job: ran.set())
        with work.worker(poll_interval=60):
            with Session(shared_engine) as session, session.begin():
                web.start_chain("ship", conn=session)
            assert ran.wait(10)


# Handlers


def test_complete_gives_the_drivers_connection_without_a_session_factory(app: Queuert, engine: sa.Engine) -> None:
    kinds: list[str] = []

    @app.job
    def pay(job: RunningJob[dict[str, Any]]) -> str:
        with job.complete() as conn:
            kinds.append(type(conn).__module__.partition(".")[0])
            conn.execute("INSERT INTO orders (id, state) VALUES (1, 'paid')")
        return "done"

    chain = app.start_chain(pay, {})
    assert app.drain() == 1
    assert found(app.get_chain(chain.id)).output == "done"
    assert orders(engine) == {1: "paid"}
    assert kinds == ["sqlite3" if engine.dialect.name == "sqlite" else "psycopg"]


def test_complete_gives_a_session_and_commits_it_with_the_job(orm_app: Queuert, engine: sa.Engine) -> None:
    app = orm_app

    @app.job
    def pay(job: RunningJob[dict[str, int]]) -> str:
        with job.prepare() as session:
            session.add(Order(id=job.input["order"]))
        with job.complete() as session:
            assert isinstance(session, Session)
            session.get(Order, job.input["order"]).state = "paid"
            app.start_chain("ship", conn=session)
        return "done"

    chain = app.start_chain(pay, {"order": 3})
    app.drain()
    assert found(app.get_chain(chain.id)).output == "done"
    assert orders(engine) == {3: "paid"}
    assert chains(app) == 2


def test_a_handler_that_raises_undoes_its_session(orm_app: Queuert, engine: sa.Engine) -> None:
    app = orm_app

    @app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        with job.complete() as session:
            session.add(Order(id=1))
            app.start_chain("ship", conn=session)
        raise RuntimeError("after the block")

    chain = app.start_chain(pay)
    app.drain()
    assert found(app.get_chain(chain.id)).status == "failed"
    assert orders(engine) == {}
    assert chains(app) == 1


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_handler_that_ends_the_transaction_with_sql_does_not_complete(
    orm_app: Queuert, engine: sa.Engine, statement: str
) -> None:
    @orm_app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        with job.complete() as session:
            session.connection().exec_driver_sql(statement)

    chain = orm_app.start_chain(pay)
    orm_app.drain()
    job = orm_app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.error_code) == ("failed", "INTERNAL:TransactionMisuseError")
    orm_app.start_chain("ship")


def test_what_the_database_refuses_is_seen_at_the_end_of_the_block(orm_app: Queuert, engine: sa.Engine) -> None:
    app = orm_app
    seen: list[str] = []

    @app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        try:
            with job.complete() as session:
                session.add(Order(id=1))
        except IntegrityError as error:
            seen.append(type(error).__name__)
            raise

    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
    chain = app.start_chain(pay)
    app.drain()
    assert seen == ["IntegrityError"]
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.error_code) == ("failed", "INTERNAL:IntegrityError")


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_a_locked_database_is_recorded_as_one(request: pytest.FixtureRequest, kind: str) -> None:
    """As the driver's own error would be, which SQLAlchemy hides in one of its own."""
    where: str | Path = request.getfixturevalue("sqlite_path" if kind == "sqlite-file" else "empty_pg_url")
    engine = make_engine(engine_url(request, kind), connect_args={"timeout": 0.1} if kind == "sqlite-file" else {})
    with make_app(engine) as app:
        with Session(engine) as session, session.begin():
            session.add(Order(id=1))

        @app.job(max_attempts=1)
        def pay(job: RunningJob[None]) -> None:
            with locked_orders(where), Session(engine) as session:
                session.get_one(Order, 1, with_for_update={"nowait": True}).state = "paid"
                session.commit()

        chain = app.start_chain(pay)
        app.drain()
        job = app.get_job(chain.id)
        assert job is not None
        assert (job.status, job.error_code) == ("failed", "DEPENDENCY:DB_LOCKED")
    engine.dispose()


def test_the_sessions_own_commit_and_rollback_are_refused_in_a_block(orm_app: Queuert, engine: sa.Engine) -> None:
    def end(how: str) -> None:
        with orm_app.transaction() as session:
            session.add(Order(id=1))
            getattr(session, how)()

    for how in ("commit", "rollback"):
        with pytest.raises(TransactionMisuseError, match="block"):
            end(how)
    with orm_app.transaction() as session:
        with session.begin_nested():
            session.add(Order(id=3))
        nested = session.begin_nested()
        session.add(Order(id=4))
        nested.rollback()
    assert orders(engine) == {3: "new"}


def test_a_call_without_conn_inside_a_block_is_refused(orm_app: Queuert) -> None:
    with orm_app.transaction() as session:
        with pytest.raises(TransactionRequiredError):
            orm_app.start_chain("ship")
        orm_app.start_chain("ship", conn=session)
    assert chains(orm_app) == 1


def test_a_shared_session_that_was_only_read_with_goes_on_in_the_block(shared_engine: sa.Engine) -> None:
    registry = scoped_session(sessionmaker(shared_engine))
    with make_app(shared_engine, session_factory=registry) as app:

        @app.job
        def pay(job: RunningJob[None]) -> str:
            order = registry.get(Order, 1)
            assert order is not None
            with job.complete() as session:
                assert session is registry()
                order.state = "paid"
            return "done"

        with Session(shared_engine) as session, session.begin():
            session.add(Order(id=1))
        chain = app.start_chain(pay)
        app.drain()
        registry.remove()
        assert found(app.get_chain(chain.id)).output == "done"
        assert orders(shared_engine) == {1: "paid"}


def test_a_shared_session_with_changes_of_its_own_is_refused(shared_engine: sa.Engine) -> None:
    registry = scoped_session(sessionmaker(shared_engine))
    with make_app(shared_engine, session_factory=registry) as app:
        for flush in (False, True):
            registry.add(Order(id=1))
            if flush:
                registry.flush()
            with pytest.raises(TransactionMisuseError, match="before this block"), app.transaction():
                pass
            registry.rollback()


def test_a_session_of_another_engine_is_refused(engine: sa.Engine, tmp_path: Path) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    app = Queuert(SQLAlchemyProvider(engine, session_factory=sessionmaker(other)))
    with pytest.raises(QueuertError, match="one engine"), app.transaction():
        pass
    other.dispose()


def test_a_worker_runs_many_jobs_on_the_engine(shared_engine: sa.Engine) -> None:
    with make_app(shared_engine, session_factory=sessionmaker(shared_engine)) as app:

        @app.job
        def pay(job: RunningJob[dict[str, int]]) -> int:
            with job.complete() as session:
                session.add(Order(id=job.input["order"]))
            return job.input["order"]

        made = [app.start_chain(pay, {"order": number}) for number in range(40)]
        with app.worker(concurrency=4):
            assert [app.wait_for(chain, timeout=30).output for chain in made] == list(range(40))
        assert len(orders(shared_engine)) == 40
        pool: Any = shared_engine.pool
        assert pool.checkedout() == 0


# The engine is the user's


def test_closing_the_app_leaves_the_engine_open(shared_engine: sa.Engine) -> None:
    with shared_engine.connect() as conn:
        app = make_app(shared_engine)
        app.close()
        assert conn.scalar(sa.select(1)) == 1
    pool = shared_engine.pool
    app.start_chain("ship")
    app.close()
    assert shared_engine.pool is pool


def test_constructing_connects_to_nothing(tmp_path: Path) -> None:
    Queuert(SQLAlchemyProvider(sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")))
    Queuert(SQLAlchemyProvider(sa.create_engine(f"sqlite:///{tmp_path}/none.db")))
    assert not (tmp_path / "none.db").exists()


def test_a_connection_is_given_back_as_it_was(shared_engine: sa.Engine) -> None:
    with make_app(shared_engine) as app, shared_engine.connect() as conn:
        before = getattr(conn.connection.driver_connection, "autocommit", None)
        conn.close()
        app.start_chain("ship")
        app.list_jobs()
        with shared_engine.connect() as after:
            raw: Any = after.connection.driver_connection
            assert getattr(raw, "autocommit", None) == before
            assert not (raw.in_transaction if isinstance(raw, sqlite3.Connection) else raw.info.transaction_status)


def start_and_fail(app: Queuert) -> None:
    with app.transaction() as session:
        app.start_chain("ship", conn=session)
        raise KeyError


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_engines_of_every_isolation_and_pool_work(kind: str, request: pytest.FixtureRequest) -> None:
    url = engine_url(request, kind)
    options: list[dict[str, Any]] = [
        {"isolation_level": "AUTOCOMMIT"},
        {"isolation_level": "SERIALIZABLE"},
        {"poolclass": NullPool},
        {"pool_pre_ping": True},
    ]
    for option in options:
        engine = make_engine(url, **option)
        with make_app(engine, session_factory=sessionmaker(engine)) as app:
            before = chains(app)
            with app.transaction() as session:
                session.execute(sa.text("SELECT 1"))
                app.start_chain("ship", conn=session)
            with pytest.raises(KeyError):
                start_and_fail(app)
            assert chains(app) == before + 1
        engine.dispose()


def test_engines_that_begin_by_themselves_work(sqlite_path: Path) -> None:
    """The recipe of SQLAlchemy's documentation for savepoints on SQLite."""
    engine = sa.create_engine(f"sqlite:///{sqlite_path}")

    @event.listens_for(engine, "connect")
    def leave_transactions_alone(raw: Any, _: Any) -> None:
        raw.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN")

    with make_app(engine, session_factory=sessionmaker(engine)) as app:
        with Session(engine) as session, session.begin():
            app.start_chain("ship", conn=session)
            nested = session.begin_nested()
            app.start_chain("ship", conn=session)
            nested.rollback()
        with app.transaction() as session:
            app.start_chain("ship", conn=session)
        assert chains(app) == 2
    engine.dispose()


def test_connections_from_before_the_app_get_their_foreign_keys(sqlite_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{sqlite_path}")
    with engine.connect() as conn:
        assert conn.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0
    with make_app(engine) as app, Session(engine) as session:
        app.start_chain("ship", conn=session)
        session.commit()
        assert session.connection().exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert session.connection().exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT"])
def test_others_that_write_all_the_time_do_not_starve_a_transaction_that_read_first(
    sqlite_path: Path, level: str | None
) -> None:
    engine = sa.create_engine(f"sqlite:///{sqlite_path}", **({} if level is None else {"isolation_level": level}))
    neighbour = BusyNeighbour(sqlite_path)
    with make_app(engine) as app:
        database_of(app).run(neighbour.work)
        assert orders(engine) == {100: "theirs", 1: "ours"}
    assert (neighbour.wrote, neighbour.kept_out) == (1, 1)
    engine.dispose()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_forked_child_gets_a_pool_of_its_own(shared_engine: sa.Engine) -> None:
    with make_app(shared_engine) as app:
        app.start_chain("ship")
        assert forked(lambda: app.start_chain("ship")) == 0
        app.start_chain("ship")
        assert chains(app) == 3


@needs_fork
def test_what_a_child_committed_stays_when_its_parent_closes_the_file(shared_engine: sa.Engine) -> None:
    with make_app(shared_engine) as app:
        app.start_chain("ship")
        assert chains_around_a_close(app, shared_engine.dispose) == 0
        assert chains(app) == 3


@needs_fork
def test_a_file_that_was_in_use_is_refused_to_a_child(sqlite_path: Path) -> None:
    engine = make_engine(f"sqlite:///{sqlite_path}")

    def join() -> None:
        with Session(engine) as session, session.begin():
            app.start_chain("ship", conn=session)

    with make_app(engine) as app:
        with Session(engine) as session, session.begin():
            session.add(Order(id=1))
            session.flush()
            assert forked(lambda: app.start_chain("ship")) == 2
            assert forked(join) == 2
            session.add(Order(id=2))
        assert orders(engine) == {1: "new", 2: "new"}
        assert forked(join) == 0
        assert chains(app) == 1
    engine.dispose()


# What cannot work


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+asyncpg://localhost/x", r"postgresql\+psycopg://"),
        ("mysql+pymysql://localhost/x", "SQLite and PostgreSQL"),
    ],
)
def test_a_wrong_driver_is_refused_at_once(url: str, message: str) -> None:
    engine = sa.create_mock_engine("sqlite://", lambda *_: None)
    with pytest.raises(TypeError, match="Engine"):
        SQLAlchemyProvider(engine)  # type: ignore[arg-type]  # wrong on purpose
    other = sa.create_engine(url, module=sqlite3)  # in place of a driver that is not installed, and never used
    with pytest.raises(UnsupportedDatabaseError, match=message):
        SQLAlchemyProvider(other)


def test_a_driver_other_than_psycopg_3_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine("postgresql+psycopg://localhost/x")
    monkeypatch.setattr(type(engine.dialect), "driver", "psycopg2")
    with pytest.raises(UnsupportedDatabaseError, match=r"'psycopg2'.*postgresql\+psycopg://"):
        SQLAlchemyProvider(engine)


def test_an_asynchronous_engine_is_refused() -> None:
    asyncio = pytest.importorskip("sqlalchemy.ext.asyncio", exc_type=ImportError)
    engine = asyncio.create_async_engine("postgresql+psycopg://localhost/x")
    with pytest.raises(TypeError, match="synchronous"):
        SQLAlchemyProvider(engine)


def test_what_is_no_engine_or_factory_is_refused(engine: sa.Engine) -> None:
    with pytest.raises(TypeError, match="Engine"):
        SQLAlchemyProvider("sqlite://")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="session_factory"):
        SQLAlchemyProvider(engine, session_factory=3)  # type: ignore[arg-type]  # wrong on purpose


def test_an_in_memory_engine_with_a_database_per_thread_is_refused() -> None:
    with pytest.raises(UnsupportedDatabaseError, match="StaticPool"):
        Queuert(SQLAlchemyProvider(sa.create_engine("sqlite://")))


def test_a_file_on_a_read_only_disk_is_named(sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path)) as conn:
        conn.execute("CREATE TABLE before_us (x)")
    engine = sa.create_engine(f"sqlite:///file:{sqlite_path}?mode=ro&uri=true")
    app = Queuert(SQLAlchemyProvider(engine))
    for call in (app.migrate, app.stats):
        with pytest.raises(DatabaseUnavailableError, match=r"test\.db cannot be used with WAL.*readonly"):
            call()
    engine.dispose()


def test_missing_tables_are_named_with_the_remedy(engine: sa.Engine) -> None:
    app = Queuert(SQLAlchemyProvider(engine))
    app.declare("ship")
    with pytest.raises(SchemaVersionError, match="migrate"):
        app.start_chain("ship")


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    engine = sa.create_engine("postgresql+psycopg://me:secret-word@127.0.0.1:1/none")
    app = Queuert(SQLAlchemyProvider(engine))
    with pytest.raises(DatabaseUnavailableError, match="cannot be reached") as raised:
        app.stats()
    assert "secret-word" not in str(raised.value)
    assert database_of(app).is_transient(raised.value)


def test_the_one_connection_in_memory_is_not_taken_from_under_a_session() -> None:
    engine = make_engine("sqlite://")
    with make_app(engine) as app, Session(engine) as session:
        app.start_chain("ship", conn=session)
        with pytest.raises(TransactionRequiredError, match="in-memory"):
            app.start_chain("ship")
        session.commit()
        app.start_chain("ship")
        assert chains(app) == 2


@pytest.mark.parametrize("use", ["call", "block", "orm-block"])
def test_connections_that_died_in_the_pool_are_replaced(use: str, request: pytest.FixtureRequest) -> None:
    engine = make_engine(engine_url(request, "postgres"))
    factory = {"session_factory": sessionmaker(engine)} if use == "orm-block" else {}
    with make_app(engine, **factory) as app:
        with engine.connect() as one, engine.connect() as two:
            pooled = [cast(psycopg.Connection[Any], conn.connection.driver_connection) for conn in (one, two)]
        with psycopg.connect(request.getfixturevalue("empty_pg_url"), autocommit=True) as killer:
            for conn in pooled:
                killer.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        eventually(lambda: closed_by_the_server(pooled))
        if use == "call":
            app.start_chain("ship")
        else:
            with app.transaction() as conn:
                app.start_chain("ship", conn=conn)
        assert chains(app) == 1
    engine.dispose()


# The session that an application shares


def chain_ids(app: Queuert) -> set[str]:
    """All chains, seen from outside of any session."""
    with closing(_connection(app)) as conn:
        return {str(row[0]) for row in conn.execute(sa.text("SELECT id FROM queuert_job"))}


def _connection(app: Queuert) -> sa.Connection:
    engine: sa.Engine = app._database._engine  # type: ignore[attr-defined]
    return engine.connect()


def test_a_call_joins_the_shared_sessions_open_transaction(shared_engine: sa.Engine) -> None:
    scoped = scoped_session(sessionmaker(shared_engine))
    app = make_app(shared_engine, session=scoped)
    app.migrate()
    Base.metadata.create_all(shared_engine)
    alone = app.start_chain("ship")  # nothing is open: it commits by itself
    assert chain_ids(app) == {alone.id}
    for commits in (False, True):
        scoped.add(Order(id=1))
        scoped.flush()
        chain = app.start_chain("ship")
        app.start_chains([NewChain("ship", after=60)])
        assert app.get_chain(chain) is not None  # seen where it was made
        with app.complete_chain(chain) as tail:
            tail.finish("by hand")
        scoped.commit() if commits else scoped.rollback()
        assert len(chain_ids(app)) == (3 if commits else 1)
    with suppress(ZeroDivisionError), scoped.begin():
        app.start_chain("ship")
        raise ZeroDivisionError
    assert len(chain_ids(app)) == 3
    assert {found(app.get_chain(i)).status for i in chain_ids(app)} == {"pending", "completed"}
    scoped.remove()
    app.close()


def test_a_service_works_in_a_view_and_in_a_handler(shared_engine: sa.Engine) -> None:
    scoped = scoped_session(sessionmaker(shared_engine))
    app = make_app(shared_engine, session=scoped)
    app.migrate()
    Base.metadata.create_all(shared_engine)

    def ship(order: int) -> None:
        """Of the application: it knows of no connection."""
        scoped.add(Order(id=order))
        app.start_chain("ship")

    @app.task(max_attempts=1)
    def pay(order: int, fail: bool) -> None:
        with found(current_job()).complete():
            ship(order)
        if fail:
            raise RuntimeError("too late")

    @app.task
    def untidy() -> None:
        scoped.execute(sa.text("SELECT 1"))  # and the session is left open

    with app.worker():
        app.result(untidy.start(), timeout=20)
        app.result(pay.start(1, False), timeout=20)
        failing = app.wait_for(pay.start(2, True), timeout=20, raise_on_failure=False)
        app.result(untidy.start(), timeout=20)
    assert failing.status == "failed"
    ship(3)
    scoped.commit()
    assert [order.id for order in scoped.scalars(sa.select(Order).order_by(Order.id))] == [1, 3]
    scoped.remove()
    assert len(app.list_chains(types=["ship"]).items) == 2
    app.close()


def test_a_shared_session_must_be_a_scoped_one(shared_engine: sa.Engine) -> None:
    with pytest.raises(TypeError, match="scoped_session"):
        SQLAlchemyProvider(shared_engine, session=sessionmaker(shared_engine))  # type: ignore[arg-type]

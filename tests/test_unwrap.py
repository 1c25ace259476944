"""The connections that users hold, joined: drivers, SQLAlchemy and Django, on both databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from queuert.errors import TransactionRequiredError
from queuert.postgres.database import PostgresDatabase
from queuert.sqlite.database import SqliteDatabase
from queuert.sqlite.dialect import SQLITE
from queuert.storage.loader import Query

INSERT = {
    "sqlite": Query("insert", ("INSERT INTO note (text) VALUES (:text) RETURNING text",)),
    "postgres": Query("insert", ("INSERT INTO note (text) VALUES ($1) RETURNING text",), ("text",)),
}
COUNT = Query("count", ("SELECT count(*) FROM note",))


class Backend:
    """A database with a table, and an engine to it."""

    def __init__(self, database: Any, engine: sqlalchemy.Engine) -> None:
        self.database = database
        self.engine = engine
        with database.block() as session:
            session.raw.execute("CREATE TABLE note (text TEXT NOT NULL)")

    def write(self, conn: object) -> None:
        session = self.database.join(conn)
        assert session.run(INSERT[self.database.dialect.name], {"text": "x"}) == [("x",)]

    def count(self) -> int:
        with self.database.read() as session:
            return int(session.run(COUNT, {})[0][0])


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "sqlite":
        database: Any = SqliteDatabase(tmp_path / "test.db", busy_timeout=2)
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/test.db")
        sqlalchemy.event.listen(engine, "connect", lambda conn, _: database.configure(conn))
    else:
        url = request.getfixturevalue("empty_pg_url")
        database = PostgresDatabase(url)
        engine = sqlalchemy.create_engine("postgresql+psycopg" + url.removeprefix("postgresql"))
    yield Backend(database, engine)
    engine.dispose()
    database.close()


def test_a_sqlalchemy_connection_commits_and_rolls_back(backend: Backend) -> None:
    with backend.engine.connect() as conn:
        backend.write(conn)
        conn.rollback()
    assert backend.count() == 0
    with backend.engine.connect() as conn:
        backend.write(conn)
        conn.commit()
    assert backend.count() == 1
    with backend.engine.begin() as conn:
        backend.write(conn)
    assert backend.count() == 2


def test_a_sqlalchemy_connection_that_only_reads_is_not_put_into_a_transaction(backend: Backend) -> None:
    with backend.engine.connect() as conn:
        assert backend.database.join(conn, reading=True).run(COUNT, {}) == [(0,)]
        assert not conn.in_transaction()


def test_a_sqlalchemy_connection_in_autocommit_is_refused(backend: Backend) -> None:
    with (
        backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn,
        pytest.raises(TransactionRequiredError),
    ):
        backend.write(conn)
    assert backend.count() == 0


def test_a_sqlalchemy_session_commits_and_rolls_back(backend: Backend) -> None:
    with Session(backend.engine) as session:
        backend.write(session)
        session.rollback()
    assert backend.count() == 0
    with Session(backend.engine) as session, session.begin():
        backend.write(session)
    assert backend.count() == 1
    registry = scoped_session(sessionmaker(backend.engine))
    backend.write(registry)
    registry.commit()
    registry.remove()
    assert backend.count() == 2


def test_a_sqlalchemy_session_is_flushed_first(backend: Backend) -> None:
    metadata = sqlalchemy.MetaData()
    table = sqlalchemy.Table("note", metadata, sqlalchemy.Column("text", sqlalchemy.Text, primary_key=True))

    class Note:
        def __init__(self, text: str) -> None:
            self.text = text

    sqlalchemy.orm.registry().map_imperatively(Note, table)
    with Session(backend.engine) as session:
        session.add(Note("mine"))
        assert backend.database.join(session).run(COUNT, {}) == [(1,)]


def test_a_sqlalchemy_savepoint_that_is_rolled_back_takes_ours_with_it(backend: Backend) -> None:
    with backend.engine.begin() as conn:
        backend.write(conn)
        nested = conn.begin_nested()
        backend.write(conn)
        nested.rollback()
    assert backend.count() == 1


def test_a_raw_connection_of_the_engine_works(backend: Backend) -> None:
    raw = backend.engine.raw_connection()
    backend.write(raw)
    raw.commit()
    raw.close()
    assert backend.count() == 1


def test_what_is_no_connection_is_refused_with_what_was_expected(backend: Backend) -> None:
    expected = "sqlite3.Connection" if backend.database.dialect is SQLITE else "psycopg.Connection"
    for wrong in (object(), 42, backend.engine):
        with pytest.raises(TypeError, match=expected):
            backend.database.join(wrong)
        with pytest.raises(TypeError, match=expected):
            backend.database.configure(wrong)
    with pytest.raises(TypeError, match=r"Connection or a Session of the engine"):
        backend.database.join(backend.engine)
    with pytest.raises(TypeError, match="Django"):
        backend.database.join("no alias of Django's")


def test_an_asynchronous_wrapper_is_refused(backend: Backend) -> None:
    # Like SQLAlchemy's own, which cannot be imported without greenlet.
    wrapper = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})()
    with pytest.raises(TypeError, match="synchronous"):
        backend.database.join(wrapper)


def test_the_wrong_database_is_refused(tmp_path: Path, postgres_url: str) -> None:
    database = SqliteDatabase(tmp_path / "test.db")
    with psycopg.connect(postgres_url) as conn, pytest.raises(TypeError, match=r"sqlite3.Connection.*psycopg"):
        database.join(conn)
    other = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match=r"psycopg.Connection.*sqlite3"):
        PostgresDatabase(postgres_url).join(other)
    with pytest.raises(TypeError, match="cursor's connection"):
        database.join(other.cursor())
    other.close()
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as wrapped, pytest.raises(TypeError, match="inside the Connection"):
        PostgresDatabase(postgres_url).join(wrapped)


def test_an_asynchronous_driver_connection_is_refused(postgres_url: str) -> None:
    wrong = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)
    with pytest.raises(TypeError, match="synchronous"):
        PostgresDatabase(postgres_url).join(wrong)


DJANGO = """
import sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": %(settings)s}, INSTALLED_APPS=[])
django.setup()
from django.db import connection, connections, transaction
from queuert.errors import TransactionRequiredError
from queuert.storage.loader import Query
%(database)s
insert = Query("insert", ("INSERT INTO note (text) VALUES ('x')",))
count = Query("count", ("SELECT count(*) FROM note",))

def rows():
    return database.join(connection, reading=True).run(count, {})[0][0]

def refused(conn):
    try:
        database.join(conn)
    except TransactionRequiredError as error:
        return str(error)
    raise AssertionError("not refused")

connection.cursor().execute("CREATE TABLE note (text TEXT NOT NULL)")
assert "atomic" in refused(connection)
assert "atomic" in refused("default")
assert rows() == 0
with transaction.atomic():
    database.join(connection).run(insert, {})
    database.join("default").run(insert, {})
    database.join(connections["default"]).run(insert, {})
assert rows() == 3
with transaction.atomic():
    database.join(connection).run(insert, {})
    try:
        with transaction.atomic():
            database.join(connection).run(insert, {})
            raise KeyError
    except KeyError:
        pass
assert rows() == 4
with transaction.atomic():
    database.join(connection).run(insert, {})
    transaction.set_rollback(True)
    assert "rolled back" in refused(connection)
assert rows() == 4
transaction.set_autocommit(False)
database.join(connection).run(insert, {})
transaction.rollback()
database.join(connection).run(insert, {})
transaction.commit()
transaction.set_autocommit(True)
assert rows() == 5
try:
    database.join("other")
except TypeError as error:
    assert "'default'" in str(error)
else:
    raise AssertionError
print("fine")
"""


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_djangos_connection(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if dialect == "sqlite":
        settings: dict[str, str] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "test.db")}
        database = f"from queuert.sqlite.database import SqliteDatabase\ndatabase = SqliteDatabase({settings['NAME']!r})"
    else:
        url = request.getfixturevalue("empty_pg_url")
        parts = psycopg.conninfo.conninfo_to_dict(url)
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": str(parts["dbname"]),
            "USER": str(parts.get("user", "")),
            "PASSWORD": str(parts.get("password") or ""),
            "HOST": str(parts.get("host", "")),
            "PORT": str(parts.get("port", "")),
        }
        database = f"from queuert.postgres.database import PostgresDatabase\ndatabase = PostgresDatabase({url!r})"
    script = DJANGO % {"settings": repr(settings), "database": database}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr

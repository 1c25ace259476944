"""Databases for the tests: one PostgreSQL server a session, one database a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.postgres import create_database, drop_database, postgres_server, temporary_database, with_database
from support.reruns import pytest_collection_modifyitems, pytest_terminal_summary  # noqa: F401 (hooks of pytest's)

if TYPE_CHECKING:
    from queuert import Queuert

TARGETS = ["sqlite-file", "sqlite-memory", "postgres"]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A running PostgreSQL server: the URL of a database that tests leave alone."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> Iterator[str | None]:
    """The name of a migrated database: copying it is quicker than migrating each test's own."""
    try:
        from queuert import Queuert
    except ImportError:
        yield None
        return
    name = create_database(postgres_url)
    try:
        with Queuert(with_database(postgres_url, name)) as app:
            app.migrate()
        yield name
    finally:
        drop_database(postgres_url, name)


@pytest.fixture
def pg_url(postgres_url: str, postgres_template: str | None) -> Iterator[str]:
    """A PostgreSQL database of this test's own, migrated."""
    with temporary_database(postgres_url, postgres_template) as url:
        yield url


@pytest.fixture
def empty_pg_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL database of this test's own, with nothing in it."""
    with temporary_database(postgres_url) as url:
        yield url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where this test's SQLite file goes; there is none yet."""
    return tmp_path / "test.db"


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """The URL of a database of this test's own, once for each kind. Call `migrate()` before use."""
    return _url(request, postgres="pg_url")


@pytest.fixture(params=TARGETS)
def empty_target(request: pytest.FixtureRequest) -> str:
    """Like `target`, and surely without tables."""
    return _url(request, postgres="empty_pg_url")


def _url(request: pytest.FixtureRequest, *, postgres: str) -> str:
    if request.param == "sqlite-memory":
        return "sqlite:///:memory:"
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    url: str = request.getfixturevalue(postgres)
    return url


@pytest.fixture
def app(target: str) -> Iterator[Queuert]:
    """An app on a migrated database, closed after the test."""
    from queuert import Queuert

    with Queuert(target) as app:
        app.migrate()
        yield app

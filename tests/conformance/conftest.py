"""One suite for every database: tests take `store` and run on a SQLite file, on SQLite in memory, and on PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import temporary_database
from support.store import Store
from support.weather import under_weather


@pytest.fixture(scope="session")
def conformance_postgres(postgres_url: str) -> Iterator[Store]:
    """A migrated database, and connections to it, that all tests of the suite share; each finds it empty."""
    with temporary_database(postgres_url) as url:
        owner = Store(url)
        owner.migrate()
        owner.close()
        with under_weather(url) as changed:
            store = Store(changed, pool_size=20)
            yield store
            store.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file; copying it is quicker than migrating each test's own."""
    path = tmp_path_factory.mktemp("conformance") / "migrated.db"
    store = Store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


def _store(kind: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    if kind == "postgres":
        shared: Store = request.getfixturevalue("conformance_postgres")
        store = Store(shared.url, database=shared.database)
        store.empty()
    elif kind == "sqlite-file":
        path: Path = request.getfixturevalue("sqlite_path")
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        store = Store(f"sqlite:///{path}")
    else:
        store = Store("sqlite:///:memory:")
        store.migrate()
    yield store
    store.close()


@pytest.fixture(params=["sqlite-file", "sqlite-memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty database of each kind."""
    yield from _store(request.param, request)


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty database of each kind that several connections and processes can use at once."""
    yield from _store(request.param, request)


@pytest.fixture(params=["sqlite-memory", "postgres"])
def quick_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty database of each dialect, for tests that do very much."""
    yield from _store(request.param, request)


@pytest.fixture
def postgres_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty PostgreSQL database, for what only it has: row locks and isolation levels."""
    yield from _store("postgres", request)

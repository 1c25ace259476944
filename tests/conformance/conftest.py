"""One suite for every database: tests take `store` and run on a SQLite file, on SQLite in memory, and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import temporary_database
from support.store import Store


@pytest.fixture(scope="session")
def conformance_postgres(postgres_url: str) -> Iterator[str]:
    """A migrated database that all tests of the suite share, each of which finds it empty."""
    with temporary_database(postgres_url) as url:
        store = Store(url)
        store.migrate()
        store.close()
        yield url


def _store(kind: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    if kind == "postgres":
        url = request.getfixturevalue("conformance_postgres")
    elif kind == "sqlite-file":
        path: Path = request.getfixturevalue("sqlite_path")
        url = f"sqlite:///{path}"
    else:
        url = "sqlite:///:memory:"
    store = Store(url, **({"pool_size": 20} if kind == "postgres" else {}))
    try:
        if kind == "postgres":
            store.empty()
        else:
            store.migrate()
        yield store
    finally:
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

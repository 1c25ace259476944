"""Two databases with a large backlog, one of each kind, made once a session; every test undoes what it does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.planning import PostgresPlans, SqlitePlans
from support.postgres import temporary_database
from support.seeding import TYPES, seed
from support.store import Store

Planner = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def big_postgres(postgres_url: str) -> Iterator[Store]:
    with temporary_database(postgres_url) as url:
        store = Store(url, types=TYPES)
        with closing(store.database.open_listener()) as conn:
            seed(store, lambda statement: conn.execute(statement))
            conn.execute("VACUUM")
        yield store
        store.close()


@pytest.fixture(scope="session")
def big_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("plans") / "big.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        store = Store(f"sqlite:///{path}", types=TYPES)
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("BEGIN")
        seed(store, conn.execute)
        conn.execute("COMMIT")
    yield store
    store.close()


def _postgres(store: Store, *, generic: bool) -> Planner:
    @contextmanager
    def planned() -> Iterator[PostgresPlans]:
        with closing(store.database.open_listener()) as conn, conn.transaction(force_rollback=True):
            yield PostgresPlans(store.database.join(conn), generic=generic)

    return planned


def _sqlite(store: Store) -> Planner:
    @contextmanager
    def planned() -> Iterator[SqlitePlans]:
        with closing(sqlite3.connect(store.database.path, isolation_level=None)) as conn:
            conn.execute("PRAGMA foreign_keys = ON")
            conn.execute("BEGIN")
            try:
                yield SqlitePlans(conn)
            finally:
                conn.execute("ROLLBACK")

    return planned


@pytest.fixture(params=["sqlite", "postgres", "postgres generic"])
def kind(request: pytest.FixtureRequest) -> str:
    """The database, and on PostgreSQL whether the plan knows the parameters: a statement that is prepared and run often
    gets one that does not."""
    name: str = request.param
    return name


@pytest.fixture
def big(kind: str, request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue("big_sqlite" if kind == "sqlite" else "big_postgres")
    return store


@pytest.fixture
def planned(kind: str, big: Store) -> Planner:
    """Opens a session that tells what its queries cost; rolled back at the end."""
    return _sqlite(big) if kind == "sqlite" else _postgres(big, generic=kind == "postgres generic")

"""The tests' own tools."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from support import eventually, found

pytestmark = pytest.mark.conformance


def test_every_target_is_a_database_that_can_be_opened(empty_target: str) -> None:
    if empty_target.startswith("postgresql:"):
        with psycopg.connect(empty_target) as conn:
            row = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
            assert row == (0,)
            conn.execute("CREATE TABLE mine (id int)")  # and the next test's database does not have it
    else:
        path = empty_target.removeprefix("sqlite:///")
        assert path == ":memory:" or Path(path).parent.is_dir()
        sqlite3.connect(path).close()


def test_each_test_has_a_database_of_its_own(pg_url: str, empty_pg_url: str) -> None:
    assert pg_url != empty_pg_url
    for url in (pg_url, empty_pg_url):
        with psycopg.connect(url) as conn:
            conn.execute("CREATE TABLE mine (id int)")


def test_a_database_is_dropped_although_somebody_is_connected(postgres_url: str) -> None:
    from support.postgres import temporary_database

    with temporary_database(postgres_url) as url:
        conn = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        conn.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, None, 3, 4])
    assert eventually(lambda: next(values)) == 3


def test_eventually_raises_the_last_assertion() -> None:
    def never() -> bool:
        assert 1 == 2, "not equal"
        return True

    with pytest.raises(AssertionError, match="not equal"):
        eventually(never, timeout=0.02)
    with pytest.raises(AssertionError, match=r"did not become true within 0\.02 seconds"):
        eventually(lambda: False, timeout=0.02)


def test_found_gives_what_is_there_and_refuses_what_is_not() -> None:
    assert found(0) == 0
    with pytest.raises(AssertionError, match="there is none"):
        found(None)

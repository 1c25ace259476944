"""A migrator that is killed, at whichever line: the next one ends what it began."""

from __future__ import annotations

import math
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from support import eventually
from support.fleet import Fleet
from support.postgres import temporary_database

from queuert import Queuert

POINTS = 60  # at most, spread over all lines
COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
    WHERE table_name LIKE 'queuert%' ORDER BY table_name, ordinal_position
"""
INDEXES = """
    SELECT pg_get_indexdef(indexrelid), indisvalid, indisready FROM pg_index
    WHERE indrelid::regclass::text LIKE 'queuert%' ORDER BY 1
"""
FUNCTIONS = """
    SELECT pg_get_functiondef(oid), obj_description(oid, 'pg_proc') FROM pg_proc WHERE proname LIKE 'queuert%' ORDER BY 1
"""
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid::regclass::text LIKE 'queuert%' ORDER BY 1, 2
"""


def schema(url: str) -> list[Any]:
    """All that migrations make."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
            return conn.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    with psycopg.connect(url) as conn:
        return [conn.execute(query).fetchall() for query in (COLUMNS, INDEXES, FUNCTIONS, CONSTRAINTS)]


class Migrators:
    """Processes that migrate, and are killed at a point."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("killed.py"))
        self._popen = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def migrate(self, url: str, point: int) -> str:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        print(url, point, file=self._popen.stdin, flush=True)
        return self._popen.stdout.readline().strip()

    def end(self) -> None:
        self._popen.communicate(timeout=30)


@pytest.fixture
def migrators() -> Iterator[Migrators]:
    migrators = Migrators()
    yield migrators
    migrators.end()


@contextmanager
def copy(url: str) -> Iterator[str]:
    """Of a database that nobody uses."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        made = path.with_name("copy.db")
        for left in path.parent.glob("copy.db*"):
            left.unlink()
        shutil.copy(path, made)
        yield f"sqlite:///{made}"
    else:
        with temporary_database(url, urlsplit(url).path.lstrip("/")) as made_url:
            yield made_url


def test_a_migrator_that_is_killed_at_any_line_is_followed_by_one_that_ends_its_work(
    url: str, fleet: Fleet, last_release: Path, migrators: Migrators
) -> None:
    assert fleet.start(release=last_release, role="fill").wait() == 0
    with copy(url) as whole, Queuert(whole) as app:
        applied = app.migrate().applied
        wanted, jobs = schema(whole), app.stats().by_status
    with copy(url) as whole:
        lines = int(migrators.migrate(whole, 0))
    assert lines > 5 * (len(applied) - 1)
    for point in range(1, lines + 1, math.ceil(lines / POINTS)):
        with copy(url) as half:
            assert migrators.migrate(half, point) == "killed"
            with Queuert(half) as app:
                assert app.migrate().pending == ()
                assert app.stats().by_status == jobs
            assert schema(half) == wanted, f"killed at line {point}"


def test_a_migrator_is_killed_while_its_index_is_being_built(empty_pg_url: str, tmp_path: Path, last_release: Path) -> None:
    """The server goes on for a while, so the next migrator meets an index that is half built and not given up."""
    fleet = Fleet(tmp_path, Path(__file__).with_name("load.py"), url=empty_pg_url, gate="", stop="")
    assert fleet.start(release=last_release, role="fill").wait() == 0
    with (
        psycopg.connect(empty_pg_url) as older,
        psycopg.connect(empty_pg_url, autocommit=True) as conn,
        Queuert(empty_pg_url) as app,
    ):
        older.execute("UPDATE queuert_job SET priority = 0")
        first = fleet.start(role="migrator")
        building = "SELECT pid FROM pg_stat_progress_create_index"
        eventually(lambda: conn.execute(building).fetchall(), 30)
        first.kill()
        assert conn.execute(building).fetchall(), "the server has not noticed"
        thread = threading.Thread(target=app.migrate)
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'"
        eventually(lambda: len(conn.execute(waiting).fetchall()) == 2)
        older.commit()
        thread.join(30)
        assert app.migration_status().pending == ()
        assert all(valid for _, valid, _ in conn.execute(INDEXES))
        with Queuert(empty_pg_url) as again:
            assert again.migrate().pending == ()

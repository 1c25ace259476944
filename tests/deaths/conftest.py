"""Real processes on a database that outlives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.fleet import Fleet
from workload import prepare

from queuert import Queuert

WORKLOAD = Path(__file__).with_name("workload.py")


@pytest.fixture(autouse=True)
def _needs_proc() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database that several processes can use."""
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("pg_url")
    return found


@pytest.fixture
def client(url: str) -> Iterator[Queuert]:
    """An app that enqueues and looks, and runs nothing."""
    with Queuert(url) as app:
        prepare(app)
        yield app


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets that run the workload; all their processes end with the test."""
    made: list[Fleet] = []

    def make(url: str, **options: Any) -> Fleet:
        directory = tmp_path / f"fleet-{len(made)}"
        directory.mkdir()
        made.append(Fleet(directory, WORKLOAD, url=url, **options))
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()


@pytest.fixture
def fleet(client: Queuert, url: str, make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(url)


@pytest.fixture
def sound(url: str) -> Iterator[None]:
    """After the test the file, if it is one, is not corrupt."""
    yield
    if url.startswith("sqlite"):
        import sqlite3

        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
            assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert conn.execute("PRAGMA foreign_key_check").fetchall() == []

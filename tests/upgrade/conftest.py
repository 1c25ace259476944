"""The release before this one, in processes of its own, and databases that it made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import Fleet

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the last release installed in it, to be put in front of `sys.path`."""
    (wheel,) = HERE.glob("queuert-*.whl")
    target = tmp_path_factory.mktemp("release")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database that several processes can use."""
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("empty_pg_url")
    return found


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Processes that do a share of the load; all of them end with the test."""
    fleet = Fleet(tmp_path, HERE / "load.py", url=url, gate=str(tmp_path / "gate"), stop=str(tmp_path / "stop"))
    yield fleet
    fleet.end()

"""Django's connection as `conn=`, on both databases, in a program of its own: Django is configured once a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytest.importorskip("django")

NAMES = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_djangos_connection_is_joined(database: str, sqlite_path: Path, request: pytest.FixtureRequest) -> None:
    if database == "sqlite":
        target = f"sqlite:///{sqlite_path}"
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(sqlite_path)}
    else:
        target = request.getfixturevalue("pg_url")
        parts = psycopg.conninfo.conninfo_to_dict(target)
        settings = {key: str(parts.get(name) or "") for key, name in NAMES.items()}
        settings["ENGINE"] = "django.db.backends.postgresql"
    done = subprocess.run(
        [sys.executable, "-m", "support.django_program", json.dumps(settings), target],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) == 6

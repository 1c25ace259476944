"""A Django project on the last release is upgraded: by `manage.py migrate`, with work in the database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import queuert

pytest.importorskip("django")

PROJECT = Path(__file__).parents[1] / "contrib" / "djangoproject"
START = """
from work.jobs import charge, ship
from work.models import Order
from queuert import Dedup
from queuert.contrib.django import queue
for number in range(3):
    order = Order.objects.create()
    queue.start_chain(charge, order.pk, dedup=Dedup(f"order-{order.pk}"))
"""
AGAIN = """
from work.jobs import charge
from work.models import Order
from queuert import Dedup
from queuert.contrib.django import queue
print([queue.start_chain(charge, order.pk, dedup=Dedup(f"order-{order.pk}")).deduplicated for order in Order.objects.all()])
"""
RUN = """
from work.models import Order
from queuert.contrib.django import queue
print(queue.drain(), sorted(set(Order.objects.values_list("state", flat=True))), queue.stats().by_status)
"""


@pytest.fixture
def database(url: str) -> dict[str, Any]:
    """Its entry in DATABASES."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or parse_qs(parts.query).get("host", [""])[0],
        "PORT": str(parts.port or ""),
    }


def manage(database: dict[str, Any], *args: str, release: Path | None = None) -> str:
    library = release or Path(queuert.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(library), "PROJECT_DATABASE": json.dumps(database)}
    command = [sys.executable, "manage.py", *args]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_project_is_upgraded_by_its_migrations(database: dict[str, Any], last_release: Path) -> None:
    assert "Applying queuert.0001_initial... OK" in manage(database, "migrate", release=last_release)
    manage(database, "shell", "-v", "0", "-c", START, release=last_release)

    upgraded = manage(database, "migrate")
    assert "Applying queuert.0002_open_keys... OK" in upgraded
    assert "queuert.0001_initial" not in upgraded
    again = manage(database, "shell", "-v", "0", "-c", AGAIN, release=last_release)
    assert "[True, True, True]" in again, "the last release goes on beside it"
    done = manage(database, "shell", "-v", "0", "-c", AGAIN + RUN).splitlines()
    assert done[0] == "[True, True, True]"
    assert done[1].startswith("6 ['shipped']"), done

"""Databases in bad weather: faults that a real server, or a real file, reports itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from weather import PostgresFaults

from queuert import Queuert


@pytest.fixture
def pg_app(pg_url: str) -> Iterator[Queuert]:
    with Queuert(pg_url) as app:
        app.migrate()
        yield app


@pytest.fixture
def faults(pg_app: Queuert, pg_url: str) -> Iterator[PostgresFaults]:
    with PostgresFaults(pg_url) as faults:
        yield faults

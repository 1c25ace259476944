"""A PostgreSQL database with settings that the library must not mind: the conformance suite runs again under each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from queuert.postgres.grants import OPERATOR, WORKER, grants
from queuert.storage.names import Names

VARIABLE = "QUEUERT_TEST_WEATHER"
LEVELS = ("repeatable read", "serializable")
LEAST_PRIVILEGE = "least privilege"


def as_role(url: str, role: str) -> str:
    """The same database for another role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


@contextmanager
def under_weather(url: str) -> Iterator[str]:
    """The URL to use instead, with what the environment asks for in place."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        yield url
        return
    role = "queuert_least"
    with psycopg.connect(url, autocommit=True) as conn:
        if wanted in LEVELS:
            conn.execute(f"ALTER DATABASE \"{conn.info.dbname}\" SET default_transaction_isolation = '{wanted}'".encode())
            yield url
            return
        assert wanted == LEAST_PRIVILEGE, wanted
        conn.execute(f"CREATE ROLE {role} LOGIN".encode())
        conn.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for kind in (WORKER, OPERATOR):
            for statement in grants(Names(), kind, role):
                conn.execute(statement.encode())
        # What the tests themselves need, to find the tables empty.
        conn.execute(f"GRANT DELETE ON queuert_singleton TO {role}".encode())
    try:
        yield as_role(url, role)
    finally:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"DROP OWNED BY {role}".encode())
            conn.execute(f"DROP ROLE {role}".encode())

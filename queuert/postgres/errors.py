"""What PostgreSQL's errors mean."""

from __future__ import annotations

from typing import Final

import psycopg
import psycopg_pool

from queuert.errors import DatabaseUnavailableError

# What the function that completes one job raises, where the COMMIT was sent along.
LEASE_LOST: Final = "QU001"
FIXED_SNAPSHOT: Final = "QU002"

# Deadlock, serialization failure: the server rolled back, and another try may go through.
CONFLICTS: Final = frozenset(("40P01", "40001"))
# The server ended the connection.
GONE: Final = frozenset(("57P01", "57P02", "57P05", "25P03"))
# The server goes down, comes up, has no room, or the lock could not be had in time.
_OUTAGES: Final = GONE | {"57P03", "53300", "53400", "55P03"}
# A table, column, schema, type or function is not there.
_MISSING: Final = frozenset(("42P01", "42703", "3F000", "42704", "42883"))


def is_transient(error: BaseException) -> bool:
    """Whether trying again later can help."""
    if isinstance(error, (DatabaseUnavailableError, psycopg_pool.PoolTimeout, psycopg_pool.TooManyRequests)):
        return True
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    state = error.sqlstate
    return state is None or state in CONFLICTS or state in _OUTAGES or state.startswith("08")


def missing(error: BaseException) -> str | None:
    """What an error says of something that is not there."""
    return str(error).partition("\n")[0] if getattr(error, "sqlstate", None) in _MISSING else None

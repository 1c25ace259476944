"""What PostgreSQL's errors mean."""

from __future__ import annotations

from typing import Final

import psycopg
import psycopg_pool

from queuert.errors import DatabaseUnavailableError, SchemaVersionError, UnsupportedDatabaseError
from queuert.storage.trouble import Trouble

# What the function that completes one job raises, where the COMMIT was sent along.
LEASE_LOST: Final = "QU001"
FIXED_SNAPSHOT: Final = "QU002"

# Deadlock, serialization failure: the server rolled back, and another try may go through.
CONFLICTS: Final = frozenset(("40P01", "40001"))
# The server ended the connection.
GONE: Final = frozenset(("57P01", "57P02", "57P05", "25P03", "25P04"))
# What the connection has prepared is of no use any more: somebody has dropped it, or has changed a table.
_DROPPED, _CHANGED, _CACHED_PLAN = "26000", "0A000", "cached plan"
# A table, column, schema, type or function is not there.
_MISSING: Final = frozenset(("42P01", "42703", "3F000", "42704", "42883"))

# By class, the first two characters of an SQLSTATE.
CLASSES: Final = {
    **dict.fromkeys(
        (
            "08",  # connection exception
            "25",  # invalid transaction state: read-only after a failover, transaction_timeout
            "26",  # a prepared statement that was dropped
            "28",  # invalid authorization: a password that is being changed
            "40",  # transaction rollback: deadlock, serialization failure
            "53",  # insufficient resources: disk full, out of memory, too many connections
            "55",  # object not in prerequisite state: a lock that could not be had
            "57",  # operator intervention: cancelled, statement_timeout, shutdown
            "58",  # system error: input or output failed
            "72",  # snapshot too old
            "F0",  # configuration file error
            "XX",  # internal error
        ),
        Trouble.OUTAGE,
    ),
    **dict.fromkeys(
        (
            "09",  # triggered action exception
            "0F",  # locator exception
            "0Z",  # diagnostics exception
            "10",  # XQuery error
            "20",  # case not found
            "21",  # cardinality violation
            "22",  # data exception
            "23",  # integrity constraint violation
            "27",  # triggered data change violation
            "2F",  # SQL routine exception
            "38",  # external routine exception
            "39",  # external routine invocation exception
            "3B",  # savepoint exception
            "44",  # WITH CHECK OPTION violation
            "54",  # program limit exceeded
            "HV",  # foreign data wrapper
            "P0",  # PL/pgSQL: what a user's trigger raises
        ),
        Trouble.JOB,
    ),
    **dict.fromkeys(
        (
            "03",  # SQL statement not yet complete
            "0A",  # feature not supported
            "0B",  # invalid transaction initiation
            "0L",  # invalid grantor
            "0P",  # invalid role specification
            "24",  # invalid cursor state
            "2B",  # dependent privilege descriptors still exist
            "2D",  # invalid transaction termination
            "34",  # invalid cursor name
            "3D",  # invalid catalog name
            "3F",  # invalid schema name
            "42",  # syntax error or access rule violation
        ),
        Trouble.SET_UP,
    ),
}
# Where a code means something else than its class.
CODES: Final = {
    "40002": Trouble.JOB,  # integrity constraint violation at COMMIT
    "57P04": Trouble.SET_UP,  # the database was dropped
    "XX001": Trouble.SET_UP,  # data corrupted
    "XX002": Trouble.SET_UP,  # index corrupted
}


def trouble(error: BaseException) -> Trouble | None:
    """What an error means; None where it is not one of the database."""
    if isinstance(
        error, (DatabaseUnavailableError, psycopg_pool.PoolTimeout, psycopg_pool.TooManyRequests, MemoryError, TimeoutError)
    ):
        return Trouble.OUTAGE
    if isinstance(error, (SchemaVersionError, UnsupportedDatabaseError)):
        return Trouble.SET_UP
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    if has_stale_statements(error):
        return Trouble.OUTAGE
    if state is not None:
        return CODES.get(state) or CLASSES.get(state[:2], Trouble.JOB)
    # The driver's own: the connection was lost, or a value cannot be sent.
    return Trouble.OUTAGE if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) else Trouble.JOB


def has_stale_statements(error: BaseException) -> bool:
    """Whether what a connection has prepared is of no use any more: another one has nothing to forget."""
    state = getattr(error, "sqlstate", None)
    return state == _DROPPED or (state == _CHANGED and _CACHED_PLAN in str(error))


def missing(error: BaseException) -> str | None:
    """What an error says of something that is not there."""
    return str(error).partition("\n")[0] if getattr(error, "sqlstate", None) in _MISSING else None

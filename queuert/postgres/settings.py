"""What we rely on in a session, whatever the server, the database or the role has set.

Connections of our own are given it once, when they are made. READ COMMITTED matters most: who closes a chain must see who has
come to wait for it, and a statement that commits by itself takes the session's default. Connections that are lent to user code
keep the user's `search_path`; our queries name the schema of whatever they use.

A connection that is not ours is left as it is. Whether its statements see what was committed is asked once, and where they do
not, each gets a transaction around it. Times must arrive as ISO writes them: a connection where they do not is refused.

Behind PgBouncer in transaction mode a setting belongs to a server connection that the next transaction may not get. Where that
is the case (`prepared_statements=False`), the level that a new session would have is what counts.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from queuert.errors import UnsupportedDatabaseError
from queuert.postgres.connection import OwnConnection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger("queuert.postgres")

READ_COMMITTED: Final = "read committed"
TCP_USER_TIMEOUT: Final = 60_000
# A vanished client must not hold its row locks for hours. Not every platform has all of these.
TCP_SETTINGS: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": str(TCP_USER_TIMEOUT),
}
NEEDED_SETTINGS: Final = {
    "default_transaction_isolation": READ_COMMITTED,
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
}
# For connections that run nothing but our own statements.
OUR_SEARCH_PATH: Final = "pg_catalog, pg_temp"

_DEFAULT_LEVEL: Final = "SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'default_transaction_isolation'"

# Connections that are not ours, and whether their single statements run under READ COMMITTED.
_known_levels: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def configure(conn: psycopg.Connection[Any], *, session_lasts: bool = True) -> None:
    """Set on a new connection of ours what we need. Not through `options`: PgBouncer refuses those."""
    try:
        _set(conn, {**NEEDED_SETTINGS, **TCP_SETTINGS})
    except psycopg.DatabaseError:
        if conn.closed:
            return  # whoever uses it is told
        _set_one_by_one(conn)
        session_lasts = False
    if isinstance(conn, OwnConnection):
        conn.reads_committed = session_lasts or conn.execute(_DEFAULT_LEVEL).fetchone() == (READ_COMMITTED,)
    if not conn.autocommit:
        conn.commit()
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # once, instead of around every block


def _set(conn: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    calls: Any = ", ".join(f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items())
    conn.execute("SELECT " + calls)


def _set_one_by_one(conn: psycopg.Connection[Any]) -> None:
    """The server refuses one of them: set the others, and say which are missing if we need them."""
    refused = {}
    for name, value in {**TCP_SETTINGS, **NEEDED_SETTINGS}.items():
        try:
            if not conn.autocommit:
                conn.rollback()
            _set(conn, {name: value})
            if not conn.autocommit:
                conn.commit()
        except psycopg.DatabaseError as error:
            if name in NEEDED_SETTINGS:
                refused[name] = str(error).strip()
    if refused:
        logger.warning(
            "PostgreSQL does not let this connection set %s: %s. Set it for the role or the database.",
            _named(refused, NEEDED_SETTINGS),
            "; ".join(dict.fromkeys(refused.values())),
            extra={"event": "settings_refused", "settings": sorted(refused)},
        )


def _named(names: Iterable[str], values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} to {values[name]!r}" for name in names)


def reads_committed(conn: psycopg.Connection[Any]) -> bool:
    """Whether a statement that commits by itself on this idle connection runs under READ COMMITTED."""
    if isinstance(conn, OwnConnection):
        return conn.reads_committed
    known = _known_levels.get(conn)
    if known is None:
        shown = psycopg.RawCursor(conn, row_factory=tuple_row).execute("SHOW default_transaction_isolation").fetchone()
        known = _known_levels[conn] = shown is not None and shown[0] == READ_COMMITTED
    return known


def check_readable(conn: psycopg.Connection[Any]) -> None:
    """Refuse a connection on which times cannot be read. The server has told how it writes them: this asks nobody."""
    style = conn.pgconn.parameter_status(b"DateStyle")
    if style is not None and not style.startswith(b"ISO") and conn.pgconn.status == pq.ConnStatus.OK:
        raise UnsupportedDatabaseError(
            f"This connection has the DateStyle {style.decode()!r}, in which times cannot be read: "
            "run SET DateStyle = 'ISO' on it, or set it so for the role."
        )

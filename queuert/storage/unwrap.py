"""From what users hold to the driver's connection and errors: SQLAlchemy and Django wrap them, and neither is imported here.

What can be told from the wrapper alone (no transaction is open, it is marked for rollback) is refused here; the rest
is decided by the dialect from the driver's own state.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, cast

from queuert.errors import TransactionRequiredError

MAX_WRAPPERS = 3
"""Django's error about a broken transaction has its error of the statement inside, and that the driver's."""


def unwrap(conn: object, *, reading: bool = False) -> Any:
    """The driver's connection inside `conn`. Something unknown comes back as it is: the dialect refuses it."""
    if type(conn).__module__ in ("sqlite3", "psycopg"):
        return conn
    if isinstance(conn, str):
        return _django(_django_alias(conn), reading)
    modules = {base.__module__.partition(".")[0] for base in type(conn).__mro__}
    if "sqlite3" in modules or "psycopg" in modules:
        return conn
    if hasattr(conn, "in_atomic_block") and hasattr(conn, "ensure_connection"):
        return _django(conn, reading)
    if any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(conn).__mro__):
        raise TypeError(f"This library is synchronous: an {type(conn).__name__} cannot be used as conn=.")
    if _is_sqlalchemy_session(conn):
        return _sqlalchemy_session(conn, reading)
    if hasattr(conn, "in_transaction") and hasattr(conn, "exec_driver_sql"):
        return _sqlalchemy_connection(conn, reading)
    if hasattr(conn, "driver_connection"):  # what engine.raw_connection() gives
        return cast(Any, conn).driver_connection
    return conn


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error inside one of SQLAlchemy's or Django's; any other comes back as it is."""
    for _ in range(MAX_WRAPPERS):
        inner = _wrapped(error)
        if inner is None:
            break
        error = inner
    return error


def wrong_connection(conn: object, raw: object, expected: str) -> TypeError:
    """The error for a connection of another kind than this database's."""
    kind = f"{type(raw).__module__}.{type(raw).__qualname__}"
    inside = "" if raw is conn else f" (inside the {type(conn).__name__})"
    hint = ""
    if kind.startswith("psycopg2"):
        hint = " psycopg 2 is not supported: use psycopg 3 (in SQLAlchemy, postgresql+psycopg://)."
    elif type(raw).__name__.startswith("Async"):
        hint = " This library is synchronous."
    elif type(raw).__name__.endswith("Cursor"):
        hint = " Pass the cursor's connection."
    elif type(raw).__name__ == "Engine":
        hint = " Pass a Connection or a Session of the engine."
    return TypeError(f"conn= must be {expected}, or a SQLAlchemy or Django connection to one, not {kind}{inside}.{hint}")


def _wrapped(error: BaseException) -> BaseException | None:
    inner: object = None
    for base in type(error).__mro__:
        if base.__module__.startswith("sqlalchemy."):
            inner = getattr(error, "orig", None)
        elif base.__module__.startswith("django.db."):
            inner = error.__cause__
        if isinstance(inner, BaseException):
            return inner
    return None


def _is_sqlalchemy_session(conn: object) -> bool:
    return callable(getattr(type(conn), "connection", None)) and hasattr(conn, "flush") and hasattr(conn, "get_bind")


def _sqlalchemy_session(session: Any, reading: bool) -> Any:
    if inspect.iscoroutinefunction(session.connection):
        raise TypeError("This library is synchronous: an asynchronous session cannot be used as conn=.")
    if not reading:
        session.flush()  # rows of the user's that ours may refer to, in the order the user wrote them
    return _sqlalchemy_connection(session.connection(), reading)


def _sqlalchemy_connection(conn: Any, reading: bool) -> Any:
    raw = conn.connection.driver_connection
    # SQLAlchemy does not see what runs on the driver's connection; without a transaction of its own, its commit() would
    # do nothing and the pool would roll our rows back.
    if not reading and not conn.in_transaction():
        conn.begin()
    return raw


def _django_alias(alias: str) -> Any:
    if "django" in sys.modules:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist

        try:
            return connections[alias]
        except ImproperlyConfigured as error:
            raise TypeError(
                f"conn= must be a connection; a string is an alias of Django's, which is not configured: {error}"
            ) from None
        except ConnectionDoesNotExist:
            known = ", ".join(map(repr, connections))
            raise TypeError(f"conn= must be a connection or one of Django's aliases ({known}), not another string.") from None
    raise TypeError("conn= must be a connection; a string means something only where Django is in use.")


def _django(wrapper: Any, reading: bool) -> Any:
    if not reading:
        if not wrapper.in_atomic_block and wrapper.get_autocommit():
            raise TransactionRequiredError(
                "This Django connection is in autocommit, so the job would commit alone: call inside atomic()."
            )
        if wrapper.needs_rollback:
            raise TransactionRequiredError(
                "This Django transaction has failed and can only be rolled back: leave its atomic() block first."
            )
    wrapper.ensure_connection()
    return wrapper.connection

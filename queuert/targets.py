"""Which database a target means: the one place that asks."""

from __future__ import annotations

import os
from typing import Any

from queuert.notify.in_process import InProcessNotifier
from queuert.notify.joined import JoinedNotifier
from queuert.notify.protocol import Notifier
from queuert.options import seconds
from queuert.sqlite.database import SqliteDatabase
from queuert.sqlite.dialect import SQLITE
from queuert.storage.names import Names
from queuert.storage.protocol import Database, Provider
from queuert.storage.urls import parse_target


def open_database(
    target: object, *, synchronous: Any, busy_timeout: Any, check_foreign_keys: bool, **postgres: Any
) -> Database:
    """The database of a target; connects to nothing."""
    if isinstance(target, Database):
        return target
    if isinstance(target, Provider):
        return target.database(busy_timeout=seconds(busy_timeout, "busy_timeout"), check_foreign_keys=check_foreign_keys)
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
        parsed = parse_target(f"sqlite:///{target}") if isinstance(target, str) else parse_target(target)
    else:
        parsed = parse_target(target)
    if parsed.dialect == SQLITE.name:
        assert parsed.path is not None
        return SqliteDatabase(
            parsed.path, synchronous=synchronous, busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys
        )
    from queuert.postgres.database import PostgresDatabase  # psycopg is an extra

    return PostgresDatabase(parsed, **postgres)


def choose_notifier(database: Database, names: Names, notify: object) -> tuple[Notifier, str | None]:
    """What wakes workers, and the prefix of the database's own channels, if it carries notices to other processes itself."""
    if isinstance(notify, Notifier):
        joined = JoinedNotifier(notify, database.notifier(names, seldom=True))
        return joined, names.channel_prefix if joined.tells_in_transaction else None
    if notify not in ("auto", "none", None):
        raise ValueError(f"notify must be 'auto', 'none' or a Notifier, not {notify!r}.")
    found = database.notifier(names) if notify == "auto" else None
    return found or InProcessNotifier(), names.channel_prefix if found and found.tells_in_transaction else None

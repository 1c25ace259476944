"""Brings the schema to the newest version: numbered files, applied in order, each recorded.

All pending migrations run in one transaction, under a lock, so that processes that start together take turns and a
failed migration leaves the database as it was. What is applied is read again under the lock.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from queuert.errors import QueuertError, SchemaVersionError
from queuert.storage import sqlfiles
from queuert.storage.protocol import Database, Session
from queuert.storage.sqlfiles import TABLES, Migration, Names, Query

logger = logging.getLogger("queuert.migrations")


@dataclass(frozen=True)
class MigrationStatus:
    """The names of the migrations, in order."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]


def migrate(database: Database, names: Names, migrations: Sequence[Migration] | None = None) -> MigrationStatus:
    """Apply what is pending; SchemaVersionError if the database knows more migrations than this library."""
    known = _known(database, names, migrations)
    status = migration_status(database, names, known)
    if not status.pending:
        return status
    queries = sqlfiles.queries(database.dialect, names)
    # A block: it begins IMMEDIATE on SQLite, and is never tried again by itself.
    with database.block() as session:
        applied = _apply(session, known, queries)
    for name in status.pending:
        logger.info("Applied the migration %s.", name, extra={"event": "migrated", "migration": name})
    return applied


def migration_status(database: Database, names: Names, migrations: Sequence[Migration] | None = None) -> MigrationStatus:
    """What is applied and what is pending, also on an empty database. Changes nothing."""
    known = _known(database, names, migrations)
    queries = sqlfiles.queries(database.dialect, names)
    with database.read() as session:
        exists = session.run(queries["migration_table_exists"], {})[0][0]
        return _status(session, known, queries) if exists else MigrationStatus((), tuple(m.name for m in known))


def explain(error: BaseException, names: Names, *, ours: bool = False, remedy: str = Database.remedy) -> QueuertError | None:
    """The error to raise in the place of a driver's, if it says that a table or column of ours is missing.

    Databases name the table of a missing column only sometimes; `ours` says that the query was one of the library's.
    """
    missing = _missing(error)
    if missing is None or not (ours or any(f"{names.prefix}{table}" in missing for table in TABLES)):
        return None
    return SchemaVersionError(f"The tables of this library are missing or out of date ({missing}): {remedy}.")


def _missing(error: BaseException) -> str | None:
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        return text if text.startswith(("no such table", "no such column")) or "has no column" in text else None
    # Undefined table, column, schema, type or function.
    if getattr(error, "sqlstate", None) in ("42P01", "42703", "3F000", "42704", "42883"):
        return str(error).partition("\n")[0]
    return None


def _known(database: Database, names: Names, migrations: Sequence[Migration] | None) -> Sequence[Migration]:
    return sqlfiles.migrations(database.dialect, names) if migrations is None else migrations


def _status(session: Session, known: Sequence[Migration], queries: dict[str, Query]) -> MigrationStatus:
    applied = [row[0] for row in session.run(queries["list_migrations"], {})]
    names = [migration.name for migration in known]
    if unknown := sorted(set(applied) - set(names)):
        raise SchemaVersionError(
            f"The database is newer than this library: it has the migration {unknown[-1]}, which this version does not "
            "know. Upgrade the library."
        )
    return MigrationStatus(
        tuple(name for name in names if name in applied), tuple(name for name in names if name not in applied)
    )


def _apply(session: Session, known: Sequence[Migration], queries: dict[str, Query]) -> MigrationStatus:
    if session.dialect == "postgres":
        # Or a database whose default is stricter would not see what was committed while we waited for the lock.
        session.raw.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    session.run(queries["lock_migrations"], {})
    if not session.run(queries["migration_table_exists"], {})[0][0]:
        session.run(queries["create_migration_schema"], {})
        session.run(queries["create_migration_table"], {})
    pending = set(_status(session, known, queries).pending)
    for migration in known:
        if migration.name in pending:
            _run_statements(session, migration)
            session.run(queries["record_migration"], {"name": migration.name})
    return _status(session, known, queries)


def _run_statements(session: Session, migration: Migration) -> None:
    # Statements of a migration have no parameters: a % in them is a %.
    for statement in migration.statements:
        if session.dialect == "sqlite":
            sqlite3.Cursor(session.raw).execute(statement)
        else:
            session.raw.execute(statement.encode())

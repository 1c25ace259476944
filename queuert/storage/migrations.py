"""Which migrations are applied: numbered files, in order, each recorded. How they are applied is each database's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queuert.errors import QueuertError, SchemaVersionError
from queuert.storage import loader
from queuert.storage.loader import Query, Script
from queuert.storage.names import TABLES, Names
from queuert.storage.protocol import Database, Session

logger = logging.getLogger("queuert.migrations")


@dataclass(frozen=True)
class MigrationStatus:
    """The names of the migrations, in order."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]


def migrate(database: Database, names: Names, known: Sequence[Script] | None = None) -> MigrationStatus:
    """Apply what is pending; SchemaVersionError if the database knows more migrations than this library."""
    scripts = loader.migrations(database.dialect, names) if known is None else list(known)
    migration_status(database, names, scripts)
    for name in database.migrate(names, scripts):
        logger.info("Applied the migration %s.", name, extra={"event": "migrated", "migration": name})
    return migration_status(database, names, scripts)


def migration_status(database: Database, names: Names, known: Sequence[Script] | None = None) -> MigrationStatus:
    """What is applied and what is pending, also on an empty database. Changes nothing."""
    scripts = loader.migrations(database.dialect, names) if known is None else known
    with database.read() as session:
        return status(session, scripts, loader.queries(database.dialect, names))


def status(session: Session, known: Sequence[Script], queries: Mapping[str, Query]) -> MigrationStatus:
    """What is applied and pending, as a session sees it."""
    exists = session.run(queries["migration_table_exists"], {})[0][0]
    applied = [row[0] for row in session.run(queries["list_migrations"], {})] if exists else []
    names = [migration.name for migration in known]
    if unknown := sorted(set(applied) - set(names)):
        raise SchemaVersionError(
            f"The database is newer than this library: it has the migration {unknown[-1]}, which this version does not "
            "know. Upgrade the library."
        )
    return MigrationStatus(
        tuple(name for name in names if name in applied), tuple(name for name in names if name not in applied)
    )


def explain(error: BaseException, database: Database, names: Names, *, ours: bool = False) -> QueuertError | None:
    """The error to raise in the place of a driver's, if it says that something of our schema is missing.

    Databases name the table of a missing column only sometimes; `ours` says that the query was one of the library's.
    """
    missing = database.missing(error)
    if missing is None or not (ours or any(f"{names.prefix}{table}" in missing for table in TABLES)):
        return None
    return SchemaVersionError(f"The tables of this library are missing or out of date ({missing}): {database.remedy}.")

"""The migration operation: what our own SQL files have not been applied yet is applied."""

from __future__ import annotations

import re
from typing import Any

from django.db.migrations.operations.base import Operation

from queuert.cli.schema import schema_statements
from queuert.contrib.django.conf import alias, names, project_queue
from queuert.storage.sqlfiles import migrations

_CREATE = re.compile(r'^CREATE (TABLE|TYPE|FUNCTION) ((?:"[^"]+"\.)?"[^"]+")', re.MULTILINE)


class ApplySql(Operation):
    """Brings our tables to the newest version, on the database that they belong to and on no other."""

    reduces_to_sql = False
    reversible = True
    atomic = False

    def state_forwards(self, app_label: str, state: Any) -> None: ...

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_here(app_label, schema_editor):
            return
        if schema_editor.collect_sql:  # `manage.py sqlmigrate` only wants to see it
            for statement in schema_statements(dialect_of(schema_editor), names()):
                schema_editor.execute(statement, params=None)
        else:
            project_queue().migrate()

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_here(app_label, schema_editor):
            return
        dialect = dialect_of(schema_editor)
        for kind, name in reversed([("TABLE", names().tokens(dialect)["migration"]), *created(dialect)]):
            schema_editor.execute(f"DROP {kind} IF EXISTS {name}")

    def describe(self) -> str:
        return "Apply the SQL of the job tables"

    def _is_here(self, app_label: str, schema_editor: Any) -> bool:
        here: str = schema_editor.connection.alias
        return here == alias() and self.allow_migrate_model_on(here, app_label)

    @staticmethod
    def allow_migrate_model_on(database: str, app_label: str) -> bool:
        from django.db import router

        return bool(router.allow_migrate(database, app_label))


def dialect_of(schema_editor: Any) -> str:
    return "postgres" if schema_editor.connection.vendor == "postgresql" else "sqlite"


def created(dialect: str) -> list[tuple[str, str]]:
    """The tables, types and functions that our SQL makes, in its order."""
    statements = [statement for migration in migrations(dialect, names()) for statement in migration.statements]
    return [(found[1], found[2]) for statement in statements if (found := _CREATE.search(statement))]

"""The migration operation: what our own SQL files have not been applied yet is applied."""

from __future__ import annotations

import re
from typing import Any

from django.db.migrations.operations.base import Operation

from queuert.app import context_of
from queuert.cli.schema import schema_statements
from queuert.contrib.django.conf import alias, names, project_queue
from queuert.storage.loader import Dialect, functions, migrations

_CREATE = re.compile(r'^CREATE (?:OR REPLACE )?(TABLE|TYPE|FUNCTION) ((?:"[^"]+"\.)?"[^"]+")', re.MULTILINE)


class ApplySql(Operation):
    """Brings our tables to the newest version, on the database that they belong to and on no other.

    Only the first migration is `reversible`: it takes the tables away.
    """

    reduces_to_sql = False
    atomic = False

    def __init__(self, *, first: bool = True) -> None:
        self.first = first

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [], {} if self.first else {"first": False}

    def state_forwards(self, app_label: str, state: Any) -> None: ...

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_here(app_label, schema_editor):
            return
        if not schema_editor.collect_sql:
            project_queue().migrate()
        elif self.first:  # `manage.py sqlmigrate` only wants to see it
            for statement in schema_statements(_dialect(), names()):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self.first or not self._is_here(app_label, schema_editor):
            return
        dialect = _dialect()
        for kind, name in reversed([("TABLE", dialect.tokens(names())["migration"]), *created(dialect)]):
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


def _dialect() -> Dialect:
    return context_of(project_queue()).database.dialect


def created(dialect: Dialect) -> list[tuple[str, str]]:
    """The tables, types and functions that our SQL makes, in its order."""
    scripts = [*migrations(dialect, names()), *functions(dialect, names())]
    statements = [statement for script in scripts for statement in script.statements]
    return [(found[1], found[2]) for statement in statements if (found := _CREATE.search(statement))]

"""`queuert sql` prints the schema; `queuert vacuum` gives back the space of deleted rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queuert.app import engine_of
from queuert.cli.exits import OK, REFUSED, UsageError
from queuert.cli.loading import load_app, named, open_app
from queuert.cli.output import Output
from queuert.cli.parser import add_command
from queuert.sqlite.database import SqliteDatabase
from queuert.storage import sqlfiles
from queuert.storage.sqlfiles import Names
from queuert.storage.urls import parse_target


def add(commands: Any) -> None:
    sql = add_command(
        commands,
        "sql",
        "print the schema, as `queuert migrate` would make it",
        details="For those who let nobody else change their schema: a database made with it needs no migration.",
        example="""
            queuert sql --app shop:app
            queuert sql --dialect postgres --schema jobs | psql shop""",
    )
    sql.add_argument("--dialect", choices=sqlfiles.DIALECTS, help="without --app or --url: for which database")
    sql.set_defaults(run=run_sql)

    vacuum = add_command(
        commands,
        "vacuum",
        "give back the space of deleted rows",
        example="""
            queuert vacuum --app shop:app
            queuert vacuum --url sqlite:///shop.db --full""",
    )
    vacuum.add_argument("--full", action="store_true", help="rewrite the tables; nobody can write meanwhile")
    vacuum.set_defaults(run=run_vacuum)


def run_sql(args: argparse.Namespace) -> int:
    dialect, names = _which(args)
    out = Output(terminal=False)
    for statement in schema_statements(dialect, names):
        out.line(f"{statement};\n")
    return OK


def schema_statements(dialect: str, names: Names) -> Iterator[str]:
    """What brings an empty database to the newest version, the notes of what was applied included."""
    queries = sqlfiles.queries(dialect, names)
    yield "BEGIN"
    for name in ("create_migration_schema", "create_migration_table"):
        yield from (_for_people(part, dialect) for part in queries[name].parts)
    (record,) = queries["record_migration"].parts
    for migration in sqlfiles.migrations(dialect, names):
        yield from migration.statements
        # The name of a file of ours: letters, digits and underscores.
        literal = f"'{migration.name}'"
        yield _for_people(record.replace("%(name)s" if dialect == "postgres" else ":name", literal), dialect)
    yield "COMMIT"


def _for_people(statement: str, dialect: str) -> str:
    """Undo what psycopg wants: every % written twice."""
    return statement.replace("%%", "%") if dialect == "postgres" else statement


def _which(args: argparse.Namespace) -> tuple[str, Names]:
    spec, url = named(args) if args.dialect is None or args.app or args.url else (None, None)
    given = {"prefix": args.prefix, "schema": args.schema, "id_type": args.id_type}
    options = {name: value for name, value in given.items() if value is not None}
    if spec is not None:
        if options or args.dialect:
            raise UsageError("--dialect, --prefix, --schema and --id-type do not go with --app: it has its own.")
        app = load_app(spec)
        return app.dialect, engine_of(app).repository.names
    dialect = args.dialect if url is None else parse_target(url).dialect
    if dialect is None:
        raise UsageError("For which database? Pass --dialect, --app or --url.")
    if args.dialect not in (None, dialect):
        raise UsageError(f"--dialect {args.dialect} and a URL of {dialect} exclude each other.")
    try:
        return dialect, Names(**options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def run_vacuum(args: argparse.Namespace) -> int:
    out = Output()
    with open_app(args) as app:
        database = engine_of(app).database
        if isinstance(database, SqliteDatabase):
            before = _size(database)
            if not database.vacuum(full=args.full):
                out.line("This file was not made with incremental auto-vacuum: --full rewrites it once, and turns it on.")
                return REFUSED
            database.checkpoint()
            out.line(f"Done: the file has {_size(database):,} bytes, and had {before:,}.")
        else:
            app.vacuum(full=args.full)
            out.line("Done.")
    return OK


def _size(database: SqliteDatabase) -> int:
    path = Path(database.path)
    return path.stat().st_size if path.exists() else 0

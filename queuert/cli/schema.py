"""`queuert sql` prints the schema; `queuert vacuum` gives back the space of deleted rows."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from queuert.app import Queuert, context_of
from queuert.cli.exits import OK, CommandError, UsageError
from queuert.cli.loading import find_app, named, open_app
from queuert.cli.output import Output
from queuert.cli.parser import add_command
from queuert.cli.values import size_text
from queuert.postgres.dialect import POSTGRES
from queuert.postgres.grants import ROLES, grants
from queuert.sqlite.dialect import SQLITE
from queuert.storage import loader
from queuert.storage.loader import Dialect
from queuert.storage.names import Names
from queuert.storage.urls import parse_target

DIALECTS: Final = {dialect.name: dialect for dialect in (POSTGRES, SQLITE)}


def add(commands: Any) -> None:
    sql = add_command(
        commands,
        "sql",
        "print the schema, as `queuert migrate` would make it",
        details="For those who let nobody else change their schema: a database made with it needs no migration.",
        example="""
            queuert sql --app shop:app
            queuert sql --dialect postgres --schema jobs | psql shop
            queuert sql --dialect postgres --grants worker --to shop_worker""",
    )
    sql.add_argument("--dialect", choices=sorted(DIALECTS), help="without --app or --url: for which database")
    sql.add_argument(
        "--grants",
        nargs="?",
        const="all",
        choices=["all", *ROLES],
        help="print what roles of least privilege need instead, on PostgreSQL: all of them, or one",
    )
    sql.add_argument("--to", metavar="ROLE", help="with --grants: the name of the role (the tables' prefix and its kind)")
    sql.set_defaults(run=run_sql)

    vacuum = add_command(
        commands,
        "vacuum",
        "give back the space of deleted rows",
        example="""
            queuert vacuum --app shop:app
            queuert vacuum --url sqlite:///shop.db --full""",
        json=True,
    )
    vacuum.add_argument("--full", action="store_true", help="rewrite the tables; nobody can write meanwhile")
    vacuum.add_argument("-y", "--yes", action="store_true", help="with --full: do not ask")
    vacuum.set_defaults(run=run_vacuum)


def run_sql(args: argparse.Namespace) -> int:
    dialect, names = _which(args)
    out = Output(terminal=False)
    if args.to is not None and args.grants in (None, "all"):
        raise UsageError("--to names the role of one kind: pass --grants with one of " + ", ".join(ROLES) + ".")
    if args.grants is not None:
        if dialect is not POSTGRES:
            raise UsageError("SQLite has no roles: who may do what is said by the permissions of the file and its directory.")
        for kind in ROLES if args.grants == "all" else [args.grants]:
            out.line(f"-- {kind}: {ROLES[kind]}")
            for statement in grants(names, kind, args.to or f"{names.prefix}{kind}"):
                out.line(f"{statement};")
            out.line("")
        return OK
    for statement in schema_statements(dialect, names):
        out.line(f"{statement};\n")
    return OK


def schema_statements(dialect: Dialect, names: Names) -> Iterator[str]:
    """What brings an empty database to the newest version, the notes of what was applied included."""
    queries = loader.queries(dialect, names)
    yield "BEGIN"
    for name in ("create_migration_schema", "create_migration_table"):
        if name in queries:
            yield from queries[name].statements
    (record,) = queries["record_migration"].statements
    for migration in loader.migrations(dialect, names):
        # On an empty table an index is built at once, and so it can be in the transaction.
        yield from (statement.replace(" CONCURRENTLY", "") for statement in migration.statements)
        # The name of a file of ours: letters, digits and underscores.
        yield record.replace("$1" if dialect.numbered else ":name", f"'{migration.name}'")
    for function in loader.functions(dialect, names):
        yield from function.statements
    yield "COMMIT"


def _which(args: argparse.Namespace) -> tuple[Dialect, Names]:
    spec, url = named(args) if args.dialect is None or args.app or args.url else (None, None)
    given = {"prefix": args.prefix, "schema": args.schema, "id_type": args.id_type}
    options = {name: value for name, value in given.items() if value is not None}
    if spec is not None:
        if options or args.dialect:
            raise UsageError("--dialect, --prefix, --schema and --id-type do not go with --app: it has its own.")
        context = context_of(find_app(args))
        return context.database.dialect, context.names
    dialect = args.dialect if url is None else parse_target(url).dialect
    if dialect is None:
        raise UsageError("For which database? Pass --dialect, --app or --url.")
    if args.dialect not in (None, dialect):
        raise UsageError(f"--dialect {args.dialect} and a URL of {dialect} exclude each other.")
    try:
        return DIALECTS[dialect], Names(**options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def run_vacuum(args: argparse.Namespace) -> int:
    out = Output()
    if args.full and not args.yes:
        _ask_before_rewriting(args)
    with open_app(args) as app:
        context = context_of(app)
        before = _taken(app)
        if not context.database.vacuum(context.names, full=args.full):
            raise CommandError("This file was not made with incremental auto-vacuum: --full rewrites it once, and turns it on.")
        context.database.tidy(context.names, threading.Event())
        now = _taken(app)
        if args.json:
            out.json({"bytes_before": before, "bytes_after": now, "gained": before - now})
        else:
            out.line(f"Gained {size_text(max(0, before - now))}: it takes {size_text(now)}, and took {size_text(before)}.")
    return OK


def _taken(app: Queuert) -> int:
    """The bytes that a vacuum can make fewer: of the file with its WAL, or of our tables in a database that has others too."""
    file = context_of(app).database.file_size()
    if file is not None:
        return file + (app.sizes().wal_bytes or 0)
    return sum(table.bytes + table.index_bytes for table in app.sizes().tables)


def _ask_before_rewriting(args: argparse.Namespace) -> None:
    question = "Rewrite the tables? Nobody can write meanwhile, and workers wait."
    if args.json or not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody is there to answer: pass --yes to do it. Nothing was changed.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was changed.")

"""Loads the SQL files: named queries and numbered migrations, one directory per dialect.

    -- name: renew_leases
    -- params: worker, items
    -- Extend the leases this worker still holds; a row it no longer holds is not returned.
    UPDATE {job} SET ... WHERE leased_by = :worker ...;

Parameters are `:name` in both dialects and become `%(name)s` for psycopg. `{job}` and its like are the configured
names; `{prefix}` and `{schema}` are bare, to be written inside quotes. A block with `{direction}` or `{beyond}`
becomes two queries, `<name>_asc` and `<name>_desc`. On SQLite a block may hold several statements, run in order with
the same parameters; a later one may use `:returned`, the rows of the last statement before it that gave any, as a
JSON array of arrays. A dialect that has nothing to do for an operation says so: `-- nothing: why`.

The files of both dialects are checked together when one is first used, and whatever could fail later fails there,
with file and line.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from queuert.errors import QueuertError
from queuert.model import Job

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

DIALECTS: Final = ("sqlite", "postgres")
FUNCTIONS: Final = ("complete", "complete_one", "release")  # on PostgreSQL
TABLES: Final = ("job", "job_blocker", "job_key", "job_attempt", "job_event", "singleton", "migration")
JOB_COLUMNS: Final = tuple(column.name for column in fields(Job))
# What a claim does not know already of the jobs it took.
CLAIMED_COLUMNS: Final = tuple(
    column
    for column in JOB_COLUMNS
    if column
    not in (
        *("output", "status", "completed_at", "completed_by", "leased_by", "lease_token", "heartbeat_at"),
        *("continued_to", "open_blockers", "suspect"),
    )
)
# A chain is read through its first job, `r`, and its tail, `t`.
CHAIN_COLUMNS: Final = (
    *("r.id", "r.type_name", "t.status", "r.input", "t.output", "r.created_at", "t.completed_at"),
    *("t.id", "t.type_name", "t.error_code"),
)
# `edge` stands beyond every time, where a listing begins: as a timestamptz, and as text beside ISO times.
DIRECTIONS: Final = {
    "asc": {"direction": "ASC", "beyond": ">", "edge": "'-infinity'"},
    "desc": {"direction": "DESC", "beyond": "<", "edge": "'infinity'"},
}

# What a claim on SQLite is going to change in the jobs that it has found.
_DUE: Final = {
    "attempt": "j.attempt + 1",
    "last_attempt_at": "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
    "leased_until": "won.until",
}

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"(?:character varying|[A-Za-z_][A-Za-z0-9_]*)(?:\(\d+\))?")
_HEADER_LINE = re.compile(r"--[ \t]*(?:(name|params|nothing)[ \t]*:)?[ \t]*(.*)")
_TOKEN = re.compile(r"\{(\w+)\}")
_LEXEME = re.compile(
    r"""
    (?P<comment> \s*--[^\n]* | /\*.*?\*/ )
    | (?P<verbatim> \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$ | \b[eE]'(?:[^'\\]|\\.)*' | '[^']*' | "[^"]*" | :: )
    | :(?P<param>[A-Za-z_]\w*)
    | \{\w+\}
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


class SqlFileError(QueuertError):
    """An SQL file of the library is malformed; the message starts with its file and line."""


@dataclass(frozen=True)
class Query:
    """A named query, ready for the driver. `parts` are its statements, in order; none where there is nothing to do."""

    name: str
    parts: tuple[str, ...]
    params: frozenset[str] = frozenset()
    uses_returned: tuple[bool, ...] = ()
    """For each part, whether it uses the implicit parameter `:returned`."""
    source: str = field(default="", compare=False)
    """File and line, for messages."""

    def __post_init__(self) -> None:
        if not self.uses_returned:
            object.__setattr__(self, "uses_returned", tuple(":returned" in part for part in self.parts))


@dataclass(frozen=True)
class Migration:
    """One numbered migration; `name` is its file's name without the ending."""

    name: str
    statements: tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """What the tables are called, and the type of the ids in them."""

    prefix: str = "queuert_"
    schema: str = "public"
    id_type: str | None = None
    id_default: str | None = None

    def __post_init__(self) -> None:
        for what, value, longest in (("table prefix", self.prefix, 30), ("schema", self.schema, 63)):
            if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or len(value) > longest:
                raise ValueError(
                    f"The {what} must be letters, digits and underscores, not starting with a digit, and at most "
                    f"{longest} characters, not {value!r}."
                )
        if self.id_type is not None and not (isinstance(self.id_type, str) and _TYPE.fullmatch(self.id_type)):
            raise ValueError(f"The id type must be a plain SQL type such as uuid or varchar(36), not {self.id_type!r}.")
        default = self.id_default
        if default is not None and not (
            isinstance(default, str) and default.strip() and not re.search(r";|--|/\*|\x00", default)
        ):
            raise ValueError(f"The id default must be one SQL expression without ';' or comments, not {default!r}.")

    def tokens(self, dialect: str) -> dict[str, str]:
        """What each token in braces stands for."""
        postgres = dialect == "postgres"
        qualifier = f'"{self.schema}".' if postgres else ""
        return {
            **{table: f'{qualifier}"{self.prefix}{table}"' for table in TABLES},
            "job_status": f'{qualifier}"{self.prefix}job_status"' if postgres else "text",
            **{function: f'{qualifier}"{self.prefix}{function}"' for function in FUNCTIONS},
            "id_type": self.id_type or ("uuid" if postgres else "text"),
            "id_default": f" DEFAULT ({self.id_default})" if self.id_default else "",
            # A limit that the planner cannot see: it expects a tenth of the rows.
            "few": "LIMIT (SELECT 1000000000)" if postgres else "",
            "prefix": self.prefix,
            "schema": self.schema,
            "now": "statement_timestamp()" if postgres else "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
            "job_columns": ", ".join(JOB_COLUMNS),
            "j_columns": ", ".join(f"j.{column}" for column in JOB_COLUMNS),
            "claimed_columns": ", ".join(_claimed(column, postgres) for column in CLAIMED_COLUMNS),
            "due_columns": ", ".join(_DUE.get(column, _claimed(column, postgres)) for column in CLAIMED_COLUMNS),
            "chain_columns": ", ".join(CHAIN_COLUMNS),
        }


def _claimed(column: str, postgres: bool) -> str:
    """A column of a claim. On SQLite a row that was inserted by hand may hold bytes, which JSON cannot: its job is to fail, and
    not the claim."""
    if postgres or column not in ("input", "deduplication_key", "chain_trace_context", "trace_context"):
        return f"j.{column}"
    return f"CASE typeof(j.{column}) WHEN 'blob' THEN NULL ELSE j.{column} END"


def queries(dialect: str, names: Names, root: Path | None = None) -> dict[str, Query]:
    """Every query of a dialect by name. `root` is a directory to read instead of the installed files."""
    tokens, psycopg = names.tokens(dialect), dialect == "postgres"
    return {
        name: Query(
            name=name,
            parts=tuple(_render(part, {**tokens, **direction}, psycopg=psycopg) for part in block.parts),
            params=block.params,
            uses_returned=tuple("returned" in _params(part) for part in block.parts),
            source=block.source,
        )
        for block in _load(root).blocks[dialect]
        for name, direction in block.variants.items()
    }


def migrations(dialect: str, names: Names, root: Path | None = None) -> list[Migration]:
    """The migrations of a dialect, in order."""
    tokens = names.tokens(dialect)
    return [
        Migration(name, tuple(_render(part, tokens, psycopg=False) for part in parts))
        for name, parts in _load(root).migrations[dialect].items()
    ]


def check(root: Path | None = None) -> None:
    """Raise SqlFileError if anything is wrong with the files of either dialect."""
    _load(root)


@dataclass(frozen=True)
class _Block:
    name: str
    source: str
    params: frozenset[str]
    parts: tuple[str, ...]

    @property
    def variants(self) -> dict[str, dict[str, str]]:
        """The queries it becomes, one or one for each direction, with the tokens of each."""
        if any(DIRECTIONS["asc"].keys() & set(_TOKEN.findall(part)) for part in self.parts):
            return {f"{self.name}_{suffix}": tokens for suffix, tokens in DIRECTIONS.items()}
        return {self.name: {}}


@dataclass(frozen=True)
class _Library:
    blocks: dict[str, list[_Block]]
    migrations: dict[str, dict[str, tuple[str, ...]]]


@lru_cache(maxsize=16)
def _load(root: Path | None) -> _Library:
    base = _installed() if root is None else root
    blocks = {dialect: list(_read_queries(base, dialect)) for dialect in DIALECTS}
    numbered = {dialect: dict(_read_migrations(base, dialect)) for dialect in DIALECTS}
    for dialect, other in (DIALECTS, DIALECTS[::-1]):
        others = {name: block for block in blocks[other] for name in block.variants}
        for block in blocks[dialect]:
            for name in block.variants:
                if name not in others:
                    _refuse(block.source, f"query {name!r} exists for {dialect} only, not for {other}")
                if block.params != others[name].params:
                    _refuse(block.source, f"query {name!r} declares other params in {others[name].source}")
        for name in numbered[dialect]:
            if name[:4] not in {other_name[:4] for other_name in numbered[other]}:
                _refuse(f"{dialect}/migrations/{name}.sql:1", f"there is no migration {name[:4]} for {other}")
    return _Library(blocks, numbered)


def _installed() -> Traversable:
    try:
        return files("queuert.sql")
    except ModuleNotFoundError:  # a checkout that is on the path without being installed
        return Path(__file__).parents[2] / "sql"


def _read(base: Traversable, dialect: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """Name, label for messages, and text of each SQL file, by name."""
    directory = base / dialect / kind
    if not directory.is_dir():
        _refuse(f"{dialect}/{kind}:1", "there is no such directory")
    for file in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            yield file.name, f"{dialect}/{kind}/{file.name}", file.read_text(encoding="utf-8")


def _read_migrations(base: Traversable, dialect: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    last = ""
    for name, label, text in _read(base, dialect, "migrations"):
        if not re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", name):
            _refuse(f"{label}:1", "a migration is called NNNN_name.sql")
        if name[:4] == last:
            _refuse(f"{label}:1", f"there is another migration {last}")
        last = name[:4]
        yield name.removesuffix(".sql"), _statements(text, label, 1, dialect, params=None)


def _read_queries(base: Traversable, dialect: str) -> Iterator[_Block]:
    seen: dict[str, str] = {}
    for _, label, text in _read(base, dialect, "queries"):
        starts = [match.start() for match in re.finditer(r"^--[ \t]*name[ \t]*:", text, re.MULTILINE)]
        if _statements(text[: starts[0]] if starts else text, label, 1, dialect, params=None):
            _refuse(f"{label}:1", "there is SQL before the first '-- name:' line")
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            block = _read_block(text[start:end], label, 1 + text.count("\n", 0, start), dialect)
            for name in block.variants:
                if name in seen:
                    _refuse(block.source, f"query {name!r} is defined in {seen[name]} already")
                seen[name] = block.source
            yield block


def _read_block(text: str, label: str, line: int, dialect: str) -> _Block:
    source = f"{label}:{line}"
    lines = text.splitlines()
    size = next((number for number, content in enumerate(lines) if not content.startswith("--")), len(lines))
    header: dict[str, list[str]] = {"name": [], "params": [], "nothing": [], "": []}
    for match in filter(None, map(_HEADER_LINE.fullmatch, lines[:size])):
        header[match[1] or ""].append(match[2].strip())
    name, declared = header["name"][0], [p for p in map(str.strip, ",".join(header["params"]).split(",")) if p]
    params = frozenset(declared)
    if not _IDENTIFIER.fullmatch(name):
        _refuse(source, f"a query needs a name of letters, digits and underscores, not {name!r}")
    if not any(header[""]) and not any(header["nothing"]):
        _refuse(source, f"query {name!r} needs a line that describes it")
    if len(params) != len(declared) or "returned" in params:
        _refuse(source, f"query {name!r} declares a parameter twice, or 'returned', which is implicit")
    parts = _statements("\n".join(lines[size:]), label, line + size, dialect, params=params)
    if bool(parts) == bool(header["nothing"]):
        _refuse(source, f"query {name!r} needs either a statement or a line '-- nothing: why'")
    if dialect == "postgres" and len(parts) > 1:
        _refuse(source, f"query {name!r} has {len(parts)} statements; on PostgreSQL it must be one")
    if parts and (unused := params.difference(*map(_params, parts))):
        _refuse(source, f"query {name!r} declares {', '.join(sorted(unused))} without using it")
    return _Block(name, source, params, parts)


def _statements(text: str, label: str, line: int, dialect: str, *, params: frozenset[str] | None) -> tuple[str, ...]:
    """The statements of a text, without comments. `params` is None in a migration, which has none."""
    known = {*Names().tokens(dialect), *(() if params is None else DIRECTIONS["asc"])}
    found: list[str] = []
    current, begin, position = "", 0, 0
    for match in _LEXEME.finditer(text):
        current += text[position : match.start()]
        position = match.end()
        if match["comment"]:
            continue
        source = f"{label}:{line + text.count(chr(10), 0, match.start())}"
        for token in _TOKEN.findall(match[0]):
            if token not in known:
                _refuse(source, f"{{{token}}} is not a known token")
        implicit = {"returned"} if dialect == "sqlite" and found else set()
        if match["param"] and params is not None and match["param"] not in params | implicit:
            _refuse(source, f":{match['param']} is not declared in '-- params:'")
        # SQLite itself knows whether a semicolon ends the statement or only a line of a trigger.
        if match["end"] and (dialect != "sqlite" or sqlite3.complete_statement(text[begin:position])):
            found.append(current.strip())
            current, begin = "", position
        else:
            current += match[0]
    return tuple(filter(None, [*found, (current + text[position:]).strip()]))


def _params(statement: str) -> set[str]:
    return {match["param"] for match in _LEXEME.finditer(statement) if match["param"]}


def _render(statement: str, tokens: dict[str, str], *, psycopg: bool) -> str:
    """The statement for the driver. psycopg reads every % as its own, also inside literals."""

    def replace(match: re.Match[str]) -> str:
        if psycopg and match["param"]:
            return f"%({match['param']})s"
        return _TOKEN.sub(lambda token: tokens[token[1]], match[0])

    return _LEXEME.sub(replace, statement.replace("%", "%%") if psycopg else statement)


def _refuse(source: str, problem: str) -> NoReturn:
    raise SqlFileError(f"{source}: {problem}.")

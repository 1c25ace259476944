"""Loads the SQL files: named queries, numbered migrations and functions, a directory for each dialect.

    -- name: renew_leases
    -- params: worker, items
    -- Extend the leases this worker still holds; a row it no longer holds is not returned.
    UPDATE {job} AS j SET leased_until = {now + item.lease seconds} ... WHERE leased_by = :worker ...;

Parameters are `:name` in every dialect, and become what the driver takes. `{job}` and its like are the configured names, and
what each dialect spells its own way: `{now}`, `{now + :lease seconds}`. A block with `{direction}` or `{beyond}` becomes two
queries, `<name>_asc` and `<name>_desc`. A block whose name begins with an underscore is a piece of others: `{_insert_chains}`.
A block may hold several statements where the dialect can run them: they get the same parameters, and the rows are those of
the last that gives any.

A query may belong to one dialect. A name that several have takes the same parameters in each. Whatever could fail later fails
when the files are loaded, with file and line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from queuert.errors import QueuertError
from queuert.storage.names import Names

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

# `edge` stands beyond every time, where a listing begins: as a timestamptz, and as text beside ISO times.
DIRECTIONS: Final = {
    "_asc": {"direction": "ASC", "beyond": ">", "edge": "'-infinity'"},
    "_desc": {"direction": "DESC", "beyond": "<", "edge": "'infinity'"},
}
_TOKEN = re.compile(r"\{(\w+)\}|\{([\w.]+) ([+-]) ([^{}]+?) seconds\}")
_LEXEME = re.compile(
    r"""
    (?P<comment> \s*--[^\n]* | /\*.*?\*/ )
    | (?P<verbatim> \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$ | \b[eE]'(?:[^'\\]|\\.)*' | '[^']*' | "[^"]*" | :: )
    | :(?P<param>[A-Za-z_]\w*)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


class SqlFileError(QueuertError):
    """An SQL file of the library is malformed; the message starts with its file and line."""


@dataclass(frozen=True)
class Dialect:
    """How one database spells things; `name` is its directory."""

    name: str
    tokens: Callable[[Names], Mapping[str, str]]
    # A time so many seconds before or after another, from (base, sign, seconds).
    shifted_time: Callable[[str, str, str], str]
    # Whether parameters are `$1`, `$2`, ... instead of `:name`.
    numbered: bool
    several_statements: bool
    # What is done to every statement of a query at the end.
    finish: Callable[[str], str] = str


@dataclass(frozen=True)
class Query:
    """A named query, ready for the driver; `params` are in the order of their numbers, where they have some."""

    name: str
    statements: tuple[str, ...]
    params: tuple[str, ...] = ()
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class Script:
    """A migration or a function: statements without parameters, under their file's name without the ending."""

    name: str
    statements: tuple[str, ...]


def queries(dialect: Dialect, names: Names, root: Path | None = None) -> dict[str, Query]:
    """Every query of a dialect by name. `root` is a directory to read instead of the installed files."""
    found: dict[str, Query] = {}
    declared = {block.name: block for other in _dialects(root) if other != dialect.name for block in _blocks(root, other)}
    tokens = {**dialect.tokens(names), **_pieces(root, dialect.name)}
    for block in _blocks(root, dialect.name):
        if block.name.startswith("_"):
            continue
        if block.name in declared and set(block.params) != set(declared[block.name].params):
            _refuse(block.source, f"query {block.name!r} declares other params in {declared[block.name].source}")
        directed = any(f"{{{token}}}" in block.text for token in DIRECTIONS["_asc"])
        for suffix, direction in DIRECTIONS.items() if directed else (("", {}),):
            statements = tuple(map(dialect.finish, _statements(block.text, block, dialect, {**tokens, **direction})))
            if not statements or (len(statements) > 1 and not dialect.several_statements):
                _refuse(block.source, f"query {block.name!r} has {len(statements)} statements")
            if block.name + suffix in found:
                _refuse(block.source, f"query {block.name!r} is defined in {found[block.name + suffix].source} already")
            found[block.name + suffix] = Query(block.name + suffix, statements, block.params, block.source)
    return found


def migrations(dialect: Dialect, names: Names, root: Path | None = None) -> list[Script]:
    """The migrations of a dialect, in order. Each dialect has the same numbers."""
    found = _scripts(dialect, names, "migrations", root)
    numbers = [script.name[:4] for script in found]
    for script in found:
        if not re.fullmatch(r"\d{4}_[a-z0-9_]+", script.name) or numbers.count(script.name[:4]) > 1:
            _refuse(f"{dialect.name}/migrations/{script.name}.sql:1", "a migration has a number of its own: NNNN_name.sql")
    for other in _dialects(root):
        if missing := {name[:4] for name, *_ in _read(root, other, "migrations")} - set(numbers):
            _refuse(f"{dialect.name}/migrations:1", f"there is no migration {min(missing)}, as {other} has")
    return found


def functions(dialect: Dialect, names: Names, root: Path | None = None) -> list[Script]:
    """The functions of a dialect. Each replaces what is there, so doing it again does no harm."""
    return _scripts(dialect, names, "functions", root)


@dataclass(frozen=True)
class _Block:
    """A piece of a file, with its place for messages."""

    name: str
    text: str
    label: str
    line: int
    params: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return f"{self.label}:{self.line}"


def _scripts(dialect: Dialect, names: Names, kind: str, root: Path | None) -> list[Script]:
    tokens = dialect.tokens(names)
    return [
        Script(name, tuple(_statements(text, _Block(name, text, label, 1), dialect, tokens, is_script=True)))
        for name, label, text in _read(root, dialect.name, kind)
    ]


def _dialects(root: Path | None) -> list[str]:
    return sorted(entry.name for entry in _base(root).iterdir() if (entry / "queries").is_dir())


def _base(root: Path | None) -> Traversable:
    try:
        return root or files("queuert.sql")
    except ModuleNotFoundError:  # a checkout that is on the path without being installed
        return Path(__file__).parents[2] / "sql"


@lru_cache(maxsize=16)
def _read(root: Path | None, dialect: str, kind: str) -> list[tuple[str, str, str]]:
    """Name, label for messages, and text of each SQL file, by name."""
    directory = _base(root) / dialect / kind
    found = [entry for entry in directory.iterdir() if entry.name.endswith(".sql")] if directory.is_dir() else []
    return [
        (file.name.removesuffix(".sql"), f"{dialect}/{kind}/{file.name}", file.read_text(encoding="utf-8"))
        for file in sorted(found, key=lambda entry: entry.name)
    ]


@lru_cache(maxsize=16)
def _blocks(root: Path | None, dialect: str) -> list[_Block]:
    return [block for _, label, text in _read(root, dialect, "queries") for block in _split(text, label)]


def _split(text: str, label: str) -> Iterator[_Block]:
    before, *parts = re.split(r"^--[ \t]*name[ \t]*:", text, flags=re.MULTILINE)
    if re.sub(r"--.*", "", before).strip():
        _refuse(f"{label}:1", "there is SQL before the first '-- name:' line")
    line = 1 + before.count("\n")
    for part in parts:
        name, *rest = part.split("\n")
        header = [entry.removeprefix("--").strip() for entry in rest[: _header_size(rest)]]
        declared = [entry.removeprefix("params:") for entry in header if entry.startswith("params:")]
        params = tuple(param.strip() for param in ",".join(declared).split(",") if param.strip())
        block = _Block(name.strip(), "\n".join(["", *rest]), label, line, params)
        if not re.fullmatch(r"[A-Za-z_]\w*", block.name):
            _refuse(block.source, f"a query needs a name of letters, digits and underscores, not {block.name!r}")
        if len(header) == len(declared):
            _refuse(block.source, f"query {block.name!r} needs a line that describes it")
        if len(set(params)) != len(params):
            _refuse(block.source, f"query {block.name!r} declares a parameter twice")
        yield block
        line += part.count("\n")


def _pieces(root: Path | None, dialect: str) -> dict[str, str]:
    pieces = (block for block in _blocks(root, dialect) if block.name.startswith("_"))
    return {block.name: re.sub(r"--.*", "", block.text).strip().rstrip(";") for block in pieces}


def _header_size(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))


def _statements(
    text: str, block: _Block, dialect: Dialect, tokens: Mapping[str, str], *, is_script: bool = False
) -> Iterator[str]:
    """The statements of a text, for the driver: without comments, with names instead of tokens."""

    def expand(match: re.Match[str]) -> str:
        if match[1] is None:
            base = tokens.get(match[2], match[2])
            return dialect.shifted_time(base, match[3], match[4])
        if match[1] not in tokens:
            _refuse(_place(block, text[: match.start()]), f"{{{match[1]}}} is not a known token")
        return tokens[match[1]]

    # The lines of comments stay, empty, so that places can be counted.
    text = _LEXEME.sub(lambda match: "\n" * match[0].count("\n") if match["comment"] else match[0], text)
    for _ in range(2):  # a piece has tokens of its own
        text = _TOKEN.sub(expand, text)
    numbers: dict[str, int] = {}
    current, position = "", 0
    for match in _LEXEME.finditer(text):
        current += text[position : match.start()]
        position = match.end()
        if match["param"] and not is_script:
            if match["param"] not in block.params:
                _refuse(_place(block, text[: match.start()]), f":{match['param']} is not declared in '-- params:'")
            numbers.setdefault(match["param"], block.params.index(match["param"]) + 1)
            current += f"${numbers[match['param']]}" if dialect.numbered else match[0]
        elif match["end"]:
            if current.strip():
                yield current.strip()
            current = ""
        else:
            current += match[0]
    if unused := [param for param in block.params if param not in numbers]:
        _refuse(block.source, f"query {block.name!r} declares {', '.join(unused)} without using it")
    if rest := (current + text[position:]).strip():
        yield rest


def _place(block: _Block, before: str) -> str:
    return f"{block.label}:{block.line + before.count(chr(10))}"


def _refuse(source: str, problem: str) -> NoReturn:
    raise SqlFileError(f"{source}: {problem}.")

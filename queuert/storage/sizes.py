"""How much room the tables take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableSize:
    """One table. What its database does not tell is None."""

    name: str
    bytes: int
    index_bytes: int
    rows: int | None
    dead_rows: int | None


@dataclass(frozen=True)
class Sizes:
    """All tables, and what they are in: a SQLite file or a PostgreSQL database. What cannot be found out is None."""

    tables: list[TableSize]
    # Of the whole file or database, whoever's tables are in it.
    total_bytes: int | None
    wal_bytes: int | None
    # Pages of a file that hold nothing: `vacuum` gives them back.
    free_bytes: int | None

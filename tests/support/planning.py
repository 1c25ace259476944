"""Sessions that tell what the queries run on them cost: which indexes they used, how much they read.

On PostgreSQL each query is explained, with its real numbers, as a prepared statement of the plan kind asked for. On SQLite
its steps are counted while it runs. Both run the query for real as well, so that the repository works as always.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from queuert.storage.loader import Query
from queuert.storage.protocol import Params, Row

STEP = 5

_numbers = itertools.count(1)


@dataclass
class Cost:
    """What a number of queries used and read."""

    indexes: set[str] = field(default_factory=set)
    scanned: set[str] = field(default_factory=set)
    """Tables of ours that were read from end to end."""
    rows: int = 0
    """Rows that scans of tables and indexes gave or threw away (PostgreSQL)."""
    buffers: int = 0
    estimate: float = 0.0
    """The highest cost that the planner expected of a query (PostgreSQL)."""
    sorted: int = 0
    """The most rows that one sort took in (PostgreSQL)."""
    steps: int = 0
    """Instructions of the virtual machine (SQLite)."""
    text: list[str] = field(default_factory=list)


class PostgresPlans:
    """A session on a psycopg connection in a transaction."""

    hooks = None

    def __init__(self, session: Any, *, generic: bool) -> None:
        self._session = session
        self.raw = session.raw
        self.cost = Cost()
        self._generic = generic

    def run(self, query: Query, params: Params) -> list[Row]:
        self._explain(query, params)
        before = self._scans()
        rows: list[Row] = self._session.run(query, params)
        for name, (kind, scans, read) in self._scans().items():
            _, scans_before, read_before = before[name]
            if scans > scans_before:
                (self.cost.indexes if kind == "i" else self.cost.scanned).add(name)
                if query.name in ("complete_jobs", "complete_job", "lock_rows"):
                    self.cost.rows += read - read_before
        return rows

    def _scans(self) -> dict[str, tuple[str, int, int]]:
        """What was read in this transaction by name: an explained function does not show what happens in it."""
        found = self.raw.execute(
            "SELECT relname, relkind, pg_stat_get_xact_numscans(oid), pg_stat_get_xact_tuples_returned(oid) FROM pg_class"
            " WHERE relname LIKE 'queuert%%' AND relkind IN ('r', 'i')",
            {},
        )
        return {name: (kind, scans, read) for name, kind, scans, read in found}

    def savepoint(self) -> Any:
        return self._session.savepoint()

    def _explain(self, query: Query, params: Params) -> None:
        names, text = query.params, query.statements[0]
        name = f"plan_{next(_numbers)}"
        types = ", ".join(_TYPES.get(type(params[p]), "unknown") for p in names)
        values = ", ".join(_literal(params[p]) for p in names)
        conn = self.raw
        mode = "force_generic_plan" if self._generic else "force_custom_plan"
        conn.execute("SAVEPOINT plans")
        conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        conn.execute(f"PREPARE {name}{f' ({types})' if names else ''} AS {text}".replace("%", "%%"), {})
        call = f"EXECUTE {name}{f' ({values})' if names else ''}".replace("%", "%%")
        (explained,) = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}", {}).fetchone()
        conn.execute("ROLLBACK TO plans")
        conn.execute("RELEASE plans")
        plan = explained if isinstance(explained, list) else json.loads(explained)
        self._add(plan[0]["Plan"], top=True)
        self.cost.text.append(json.dumps(plan[0]["Plan"], indent=1))

    def _add(self, node: dict[str, Any], *, top: bool = False) -> None:
        cost, loops = self.cost, node["Actual Loops"]
        if top:
            cost.buffers += node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
            cost.estimate = max(cost.estimate, node["Total Cost"])
        cost.indexes.update(filter(None, [node.get("Index Name")]), node.get("Conflict Arbiter Indexes", []))
        kind = node["Node Type"]
        if kind == "Seq Scan" and loops:
            cost.scanned.add(node["Relation Name"])
        if kind in ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Bitmap Index Scan"):
            read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            cost.rows += int(read * loops)
        if "Sort" in kind and node.get("Plans"):
            cost.sorted = max(cost.sorted, int(node["Plans"][0]["Actual Rows"]))
        for child in node.get("Plans", []):
            self._add(child)


_TYPES = {int: "bigint", float: "double precision", bool: "boolean"}


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    return "'" + str(value).replace("'", "''") + "'"


class SqlitePlans:
    """A session on a sqlite3 connection in a transaction."""

    hooks = None

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.cost = Cost()
        self._rows: list[Row] = []

    def run(self, query: Query, params: Params) -> list[Row]:
        rows: list[Row] = []
        for statement in query.statements:
            cursor = self._execute(statement, params)
            if cursor.description is not None:
                rows = self._rows
        return rows

    def change(self, query: Query, params: Params) -> int:
        return self._execute(query.statements[0], params).rowcount

    def _execute(self, statement: str, params: Params) -> sqlite3.Cursor:
        self._explain(statement, params)
        with self._counting():
            cursor = self.raw.execute(statement, dict(params))
            self._rows = cursor.fetchall()
        return cursor

    def savepoint(self) -> Any:
        return nullcontext()

    def _explain(self, statement: str, params: Params) -> None:
        for *_, detail in self.raw.execute(f"EXPLAIN QUERY PLAN {statement}", params).fetchall():
            self.cost.text.append(detail)
            if match := re.search(r"USING (?:COVERING )?INDEX (\S+)", detail):
                self.cost.indexes.add(match[1])
            if match := re.match(r"SCAN (?!json_each|CONSTANT)(\S+)(?: VIRTUAL.*)?$", detail):
                self.cost.scanned.add(match[1])

    @contextmanager
    def _counting(self) -> Iterator[None]:
        def count() -> None:
            self.cost.steps += STEP

        self.raw.set_progress_handler(count, STEP)
        try:
            yield
        finally:
            self.raw.set_progress_handler(None, 0)

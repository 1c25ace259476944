"""What others do to the same database meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from queuert.storage.sqlfiles import Query

COUNT = Query("count", ("SELECT count(*) FROM orders",))
INSERT = Query("insert", ("INSERT INTO orders (id, state) VALUES (:id, 'ours')",))


@contextmanager
def locked_orders(target: str | Path) -> Iterator[None]:
    """Somebody else's transaction has the orders, until the end of the block."""
    if isinstance(target, str):
        with psycopg.connect(target) as conn:
            conn.execute("SELECT * FROM orders FOR UPDATE")
            yield
            conn.rollback()
        return
    with closing(sqlite3.connect(target, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


class BusyNeighbour:
    """Work for `run()` that reads first, while somebody else writes to the file whenever that can be done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.wrote = self.kept_out = 0

    def work(self, session: Any) -> None:
        session.run(COUNT, {})
        with closing(sqlite3.connect(self._path, timeout=0)) as other:
            try:
                other.execute("INSERT INTO orders (id, state) VALUES (?, 'theirs')", [100 + self.wrote])
                other.commit()
                self.wrote += 1
            except sqlite3.OperationalError:
                self.kept_out += 1
        session.run(INSERT, {"id": 1})

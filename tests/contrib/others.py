"""What others do to the same database meanwhile."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from queuert import Queuert
from queuert.errors import DatabaseUnavailableError
from queuert.storage.loader import Query

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


def forked(work: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> int:
    """The exit code of a child that did `work`: 0, 2 if the database was refused to it, else 1. Then the parent goes on."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except DatabaseUnavailableError:
            os._exit(2)
        finally:
            os._exit(1)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def chains_around_a_close(app: Queuert, close: Callable[[], object]) -> int:
    """A forked child starts a chain; its parent closes its connections; the child starts another. The child's exit code."""
    told, go = os.pipe(), os.pipe()

    def work() -> None:
        app.start_chain("ship")
        os.write(told[1], b".")
        os.read(go[0], 1)
        app.start_chain("ship")

    def meanwhile() -> None:
        os.close(told[1])
        os.read(told[0], 1)
        close()
        os.write(go[1], b".")

    return forked(work, meanwhile)

"""A connection of our own pool. While it is lent to user code, it refuses to end the transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


class OwnConnection(psycopg.Connection[Any]):
    """A `psycopg.Connection` that knows whether it is lent, and what user code has left open on it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made_at = time.monotonic()
        self.lent = False
        # Whether a thread of ours had it for itself, and it has that thread's settings.
        self.was_kept = False
        # Whether a statement that commits by itself sees all that was committed before it.
        self.reads_committed = False
        # Whether it was closed in the middle of an answer.
        self.interrupted = False
        # How many `transaction()` blocks were entered and not left.
        self.open_inside = 0

    def commit(self) -> None:
        self._refuse_if_lent("commit")
        super().commit()

    def rollback(self) -> None:
        self._refuse_if_lent("rollback")
        super().rollback()

    @contextmanager
    def transaction(self, savepoint_name: str | None = None, force_rollback: bool = False) -> Iterator[psycopg.Transaction]:
        self.open_inside += 1
        try:
            with super().transaction(savepoint_name, force_rollback) as transaction:
                yield transaction
        finally:
            self.open_inside -= 1

    def _refuse_if_lent(self, what: str) -> None:
        if self.lent:
            raise psycopg.ProgrammingError(
                f"Explicit {what}() forbidden inside this block: it commits when it ends, and rolls back on an exception."
            )

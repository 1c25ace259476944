"""Sessions on PostgreSQL: how named queries run on a connection, and the types that go in and come out.

Queries run on cursors of our own with adapters of our own: whatever a user registered on the connection does not reach
us, and what we register does not reach the user.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from queuert.errors import TransactionMisuseError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.storage.loader import Query
from queuert.storage.protocol import Fault, Params, Row

try:
    import psycopg
    import psycopg_pool  # noqa: F401 - not used here, but part of what the extra brings
    from psycopg import RawCursor, pq
    from psycopg.adapt import AdaptersMap, Buffer, Loader
    from psycopg.rows import tuple_row
    from psycopg.types.numeric import Int8Dumper
    from psycopg.types.string import TextLoader
except ImportError as missing:
    raise UnsupportedDatabaseError(
        f"PostgreSQL needs psycopg 3 and its pool: pip install 'queuert[postgres]' ({missing})."
    ) from None

from queuert.postgres.connection import OwnConnection
from queuert.postgres.direct import HOT, DirectConnection
from queuert.postgres.settings import check_readable
from queuert.postgres.times import load_timestamp

Connection = psycopg.Connection[Any]

# One name for all: savepoints nest, and the server looks for the innermost of a name.
SAVEPOINT: Final = "queuert_savepoint"
_RETURNS_NOTHING: Final = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|SET|LOCK)\b(?!.*\bRETURNING\b)", re.I | re.S)


class _UtcLoader(Loader):
    def load(self, data: Buffer) -> datetime:
        return load_timestamp(bytes(data).decode())


def _our_adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for name in ("uuid", "json", "jsonb"):
        adapters.register_loader(name, TextLoader)
    adapters.register_loader("timestamptz", _UtcLoader)
    # One type for every int: psycopg picks by size, and each size would be another prepared statement.
    adapters.register_dumper(int, Int8Dumper)
    return adapters


_ADAPTERS = _our_adapters()


class OurCursor(RawCursor[Row]):
    """A cursor with our adapters, and parameters as PostgreSQL writes them: to convert psycopg's names costs 8 µs a statement.
    Making one costs 5 µs, registering the adapters on each would cost 10 more."""

    __slots__ = ()

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PostgresSession:
    """A connection on which named queries run: in a transaction, or one statement at a time."""

    def __init__(self, raw: Connection, hooks: Hooks | None = None) -> None:
        if not isinstance(raw, OwnConnection):
            check_readable(raw)
        self.raw = raw
        self.hooks = hooks

    def run(self, query: Query, params: Params) -> list[Row]:
        conn = self.raw
        if query.name in HOT and isinstance(conn, DirectConnection) and conn.is_direct:
            return conn.run_query(query, params)
        text = query.statements[0]
        cursor = OurCursor(self.raw, row_factory=tuple_row)
        cursor.execute(text, [params[name] for name in query.params])
        if cursor.pgresult is None:  # in a pipeline: the answer is still under way
            return [] if _RETURNS_NOTHING.match(text) else _fetch_from_pipeline(cursor)
        return cursor.fetchall() if cursor.pgresult.status == pq.ExecStatus.TUPLES_OK else []

    def change(self, query: Query, params: Params) -> int:
        cursor = OurCursor(self.raw, row_factory=tuple_row)
        return cursor.execute(query.statements[0], [params[name] for name in query.params]).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        # Not conn.transaction(): on a user's connection that has not begun yet it would begin, and commit, by itself.
        self._statement(f"SAVEPOINT {SAVEPOINT}")
        with self.hooks.savepoint() if self.hooks is not None else contextlib.nullcontext():
            try:
                yield
                self._sync()
            except BaseException:
                # The transaction may be gone, and the savepoint with it: then the error that did it is the one to tell.
                with contextlib.suppress(psycopg.Error):
                    self._sync(failed=True)
                    self._statement(f"ROLLBACK TO {SAVEPOINT}")
                    self._statement(f"RELEASE {SAVEPOINT}")
                raise
            self._statement(f"RELEASE {SAVEPOINT}")

    def fault(self) -> Fault:
        conn = self.raw
        if conn.closed and not conn.broken and not getattr(conn, "interrupted", False):  # one that was lost is broken
            return "closed"
        lost = conn.closed or conn.info.transaction_status.name in ("INERROR", "UNKNOWN")
        return "database" if lost else "elsewhere"

    def _statement(self, statement: Any) -> None:
        OurCursor(self.raw, row_factory=tuple_row).execute(statement, prepare=False)

    def _sync(self, *, failed: bool = False) -> None:
        """In a pipeline: collect all answers, so that an error shows inside the savepoint that it belongs to."""
        with contextlib.suppress(psycopg.Error) if failed else contextlib.nullcontext():
            sync(self.raw)


class BlockSession(PostgresSession):
    """The session of a block: user code has its connection, and could have ended the transaction with SQL."""

    def run(self, query: Query, params: Params) -> list[Row]:
        self.check_open()
        return super().run(query, params)

    def change(self, query: Query, params: Params) -> int:
        self.check_open()
        return super().change(query, params)

    def _statement(self, statement: Any) -> None:
        self.check_open()
        super()._statement(statement)

    def check_open(self) -> None:
        """What we run now would commit alone: a completion without the handler's writes."""
        if self.raw.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            raise TransactionMisuseError(
                "The transaction was ended inside the block, by COMMIT or ROLLBACK as SQL: leave that to the block."
            )


def sync(conn: Connection) -> None:
    """In a pipeline: wait for all answers."""
    if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        with conn.pipeline() as pipeline:
            pipeline.sync()


def _fetch_from_pipeline(cursor: OurCursor) -> list[Row]:
    try:
        return cursor.fetchall()
    except psycopg.ProgrammingError:
        if cursor.pgresult is not None and cursor.pgresult.status == pq.ExecStatus.COMMAND_OK:
            return []
        raise

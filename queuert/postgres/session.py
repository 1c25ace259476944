"""Sessions on PostgreSQL: how named queries run on a connection, and the types that go in and come out.

Queries run on cursors of our own with adapters of our own: whatever a user registered on the connection does not reach
us, and what we register does not reach the user.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from queuert.errors import StaleSnapshotError, UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.sqlite.guard import SAVEPOINT, TransactionMisuseError
from queuert.storage.protocol import ABOVE_READ_COMMITTED, Params, Row
from queuert.storage.sqlfiles import Query

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

from queuert.postgres.direct import (
    CAN_PIPELINE,
    COMPLETING,
    FIXED_SNAPSHOT,
    HOT,
    LEASE_LOST,
    OwnConnection,
    open_inside,
    statement,
)
from queuert.postgres.times import load_timestamp

Connection = psycopg.Connection[Any]

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


class _Cursor(RawCursor[Row]):
    """A cursor with our adapters, and parameters as PostgreSQL writes them: to convert psycopg's names costs 8 µs a statement.
    Making one costs 5 µs, registering the adapters on each would cost 10 more."""

    __slots__ = ()

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PostgresSession:
    """A connection on which named queries run: in a transaction, or one statement at a time."""

    dialect = "postgres"
    changed = 0

    def __init__(self, raw: Connection, hooks: Hooks | None = None) -> None:
        self.raw = raw
        self.hooks = hooks

    def run(self, query: Query, params: Params) -> list[Row]:
        if not query.parts:
            return []
        if query.name in HOT and isinstance(self.raw, OwnConnection) and self.raw.is_direct:
            return self._run_directly(self.raw, query, params)
        # A user's connection may have psycopg's client-side binding cursors as its default: ours is always a plain one.
        cursor = _Cursor(self.raw, row_factory=tuple_row)
        text = query.parts[0]
        numbered = statement(text)
        cursor.execute(numbered.text, [params[name] for name in numbered.params])
        if cursor.pgresult is None:  # in a pipeline: the answer is still under way
            if _RETURNS_NOTHING.match(text):
                return []
            return _fetch_from_pipeline(cursor)
        return cursor.fetchall() if cursor.pgresult.status == pq.ExecStatus.TUPLES_OK else []

    def _run_directly(self, conn: OwnConnection, query: Query, params: Params) -> list[Row]:
        return conn.run_query(query.parts[0], params)

    def ends_with_next(self) -> None:
        pass

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

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        if not psycopg.Pipeline.is_supported():
            yield
            return
        with self.raw.pipeline():
            yield

    def _statement(self, statement: Any) -> None:
        _Cursor(self.raw, row_factory=tuple_row).execute(statement, prepare=False)

    def _sync(self, *, failed: bool = False) -> None:
        """In a pipeline: collect all answers, so that an error shows inside the savepoint that it belongs to."""
        if self.raw.pgconn.pipeline_status == pq.PipelineStatus.OFF:
            return
        with (
            contextlib.suppress(psycopg.Error) if failed else contextlib.nullcontext(),
            self.raw.pipeline() as pipeline,
        ):
            pipeline.sync()


class BlockSession(PostgresSession):
    """The session of a block: user code has its connection, and could have ended the transaction with SQL."""

    def __init__(self, raw: Connection, hooks: Hooks | None = None) -> None:
        super().__init__(raw, hooks)
        self.committed = False
        """Whether the last query has carried the COMMIT along."""
        self._is_last = False
        self._pid = os.getpid()

    def run(self, query: Query, params: Params) -> list[Row]:
        self._check_open()
        return super().run(query, params)

    def ends_with_next(self) -> None:
        # A forked child must not commit, and neither what user code has left open inside.
        self._is_last = CAN_PIPELINE and os.getpid() == self._pid and not open_inside(self.raw)

    def _run_directly(self, conn: OwnConnection, query: Query, params: Params) -> list[Row]:
        open_ = conn.pgconn.transaction_status == pq.TransactionStatus.INTRANS
        if not (self._is_last and open_ and query.name in COMPLETING):
            return super()._run_directly(conn, query, params)
        self._is_last = False
        try:
            rows = conn.run_query(query.parts[0], {**params, "strict": True}, commit=True)
        except psycopg.Error as error:
            if error.sqlstate not in (LEASE_LOST, FIXED_SNAPSHOT):
                raise
            if error.sqlstate == FIXED_SNAPSHOT:
                raise StaleSnapshotError(ABOVE_READ_COMMITTED) from error
            # The caller is told as if it had asked without COMMIT, and has a new transaction to look around in.
            conn.run_command(b"ROLLBACK AND CHAIN")
            return []
        self.committed = True
        return rows

    def _statement(self, statement: Any) -> None:
        self._check_open()
        super()._statement(statement)

    def _check_open(self) -> None:
        # What we run now would commit alone: a completion without the handler's writes.
        if self.raw.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            raise TransactionMisuseError(
                "The transaction was ended inside the block, by COMMIT or ROLLBACK as SQL: leave that to the block."
            )


def _fetch_from_pipeline(cursor: _Cursor) -> list[Row]:
    try:
        return cursor.fetchall()
    except psycopg.ProgrammingError:
        if cursor.pgresult is not None and cursor.pgresult.status == pq.ExecStatus.COMMAND_OK:
            return []
        raise

"""Sessions on PostgreSQL: how named queries run on a connection, and the types that go in and come out.

Queries run on cursors of our own with adapters of our own: whatever a user registered on the connection does not reach
us, and what we register does not reach the user.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final

from queuert.errors import UnsupportedDatabaseError
from queuert.hooks import Hooks
from queuert.storage.base import Params, Row
from queuert.storage.guard import SAVEPOINT, TransactionMisuseError
from queuert.storage.sqlfiles import Query

try:
    import psycopg
    import psycopg_pool  # noqa: F401 - not used here, but part of what the extra brings
    from psycopg import pq
    from psycopg.adapt import AdaptersMap, Buffer, Loader
    from psycopg.rows import tuple_row
    from psycopg.types.numeric import Int8Dumper
    from psycopg.types.string import TextLoader
except ImportError as missing:
    raise UnsupportedDatabaseError(
        f"PostgreSQL needs psycopg 3 and its pool: pip install 'queuert[postgres]' ({missing})."
    ) from None

Connection = psycopg.Connection[Any]

_RETURNS_NOTHING: Final = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|SET|LOCK)\b(?!.*\bRETURNING\b)", re.I | re.S)


class _UtcLoader(Loader):
    """timestamptz as an aware datetime in UTC, whatever the connection's time zone."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return _parse_timestamp(text).astimezone(timezone.utc)
        except ValueError:
            raise psycopg.DataError(f"The time {text!r} cannot be read: leave the DateStyle of connections at ISO.") from None


def _parse_timestamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # Python 3.10 wants the fraction and the offset written out
        match = re.fullmatch(r"(\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?([+-]\d\d)(:\d\d)?(:\d\d)?", text)
        if match is None:
            raise
        moment, fraction, hours, minutes, rest = match.groups()
        return datetime.fromisoformat(f"{moment}.{(fraction or '').ljust(6, '0')}{hours}{minutes or ':00'}{rest or ''}")


def _our_adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for name in ("uuid", "json", "jsonb"):
        adapters.register_loader(name, TextLoader)
    adapters.register_loader("timestamptz", _UtcLoader)
    # One type for every int: psycopg picks by size, and each size would be another prepared statement.
    adapters.register_dumper(int, Int8Dumper)
    return adapters


_ADAPTERS = _our_adapters()


class _Cursor(psycopg.Cursor[Row]):
    """A plain cursor with our adapters; making one costs 5 µs, registering them on each would cost 10 more."""

    __slots__ = ()

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PostgresSession:
    """A connection on which named queries run: in a transaction, or one statement at a time."""

    dialect = "postgres"

    def __init__(self, raw: Connection, hooks: Hooks | None = None) -> None:
        self.raw = raw
        self.hooks = hooks

    def run(self, query: Query, params: Params) -> list[Row]:
        if not query.parts:
            return []
        # A user's connection may have psycopg's client-side binding cursors as its default: ours is always a plain one.
        cursor = _Cursor(self.raw, row_factory=tuple_row)
        statement: Any = query.parts[0]  # psycopg's types want literals; ours come from files
        cursor.execute(statement, params)
        if cursor.pgresult is None:  # in a pipeline: the answer is still under way
            if _RETURNS_NOTHING.match(statement):
                return []
            return _fetch_from_pipeline(cursor)
        return cursor.fetchall() if cursor.pgresult.status == pq.ExecStatus.TUPLES_OK else []

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

    def run(self, query: Query, params: Params) -> list[Row]:
        self._check_open()
        return super().run(query, params)

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

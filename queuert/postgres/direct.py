"""The connections of our own pool, and the straight way to the server for what is run once for every job.

A statement on a cursor of psycopg costs about 25 µs more than libpq needs for it: the query is converted, types are looked up,
a prepared statement is searched for. That is little for a batch and a lot for one job. So the few queries in `HOT` are sent
through `psycopg.pq` as they are, prepared under a name of ours.

Only on connections that we have made: on a user's own somebody may drop prepared statements, or have a pipeline open, and
psycopg is the one who knows.

The wait for an answer is psycopg's way too, without blocking in libpq: an interrupt gets through. It leaves the connection in
the middle of an answer, so it is closed.
"""

from __future__ import annotations

import re
import select
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors, pq

from queuert.postgres.times import load_timestamp
from queuert.storage.protocol import Params, Row

COMPLETING: Final = frozenset(("complete_job", "continue_job"))
HOT: Final = COMPLETING | {"claim_head", "insert_chain", "insert_plain"}

LEASE_LOST: Final = "QU001"
FIXED_SNAPSHOT: Final = "QU002"
"""What the function that completes one job raises, where the COMMIT was sent along."""

CANCEL_WITHIN: Final = 2.0
CAN_PIPELINE: Final = psycopg.Pipeline.is_supported()

_PARAMETER: Final = re.compile(r"%\((\w+)\)s|%%")
_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class StatementsDroppedError(psycopg.OperationalError):
    """User code has sent DEALLOCATE ALL, or DISCARD ALL."""

    sqlstate = "40001"  # what can be run again, as after a serialization failure


class Statement(NamedTuple):
    """A query as libpq takes it."""

    name: bytes
    text: bytes
    params: tuple[str, ...]


@lru_cache(maxsize=256)
def statement(text: str) -> Statement:
    """Made from the text for psycopg."""
    params: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        if match[1] is None:
            return "%"
        return f"${params.setdefault(match[1], len(params) + 1)}"

    numbered = _PARAMETER.sub(number, text).encode()
    return Statement(b"queuert_%08x" % zlib.crc32(numbered), numbered, tuple(params))


_COMMIT: Final = statement("COMMIT")


class OwnConnection(psycopg.Connection[Any]):
    """A connection of our own pool. While it is lent to user code, it refuses to end the transaction."""

    __module__ = "psycopg"  # by which tools tell drivers apart

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lent = False
        self.was_kept = False
        """Whether a thread of ours had it for itself, and it has that thread's settings."""
        self.interrupted = False
        """Whether it was closed in the middle of an answer."""
        self._known_statements: dict[bytes, bytes] = {}
        """The names under which statements are prepared. None is used twice: the server may still know an old one."""
        self._generation = 0
        self._keeps_statements = True

    def commit(self) -> None:
        self._refuse_if_lent("commit")
        super().commit()

    def rollback(self) -> None:
        self._refuse_if_lent("rollback")
        super().rollback()

    def _refuse_if_lent(self, what: str) -> None:
        if self.lent:
            raise psycopg.ProgrammingError(
                f"Explicit {what}() forbidden inside this block: it commits when it ends, and rolls back on an exception."
            )

    def _deallocate(self, name: bytes | None) -> Any:
        # psycopg drops all statements after a ROLLBACK of its own, and after DROP and ALTER.
        if name is None:
            self._forget_statements()
        return super()._deallocate(name)

    def _forget_statements(self) -> None:
        self._known_statements.clear()
        self._generation += 1

    @property
    def is_direct(self) -> bool:
        """Whether the straight way can be taken now."""
        return (
            self._keeps_statements
            and self.prepare_threshold is not None
            and self.pgconn.pipeline_status == pq.PipelineStatus.OFF
            and self.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def run_command(self, text: bytes) -> None:
        """Run a command that has no parameters and returns nothing."""
        with self.lock:
            self._send(lambda: self.pgconn.send_query(text))

    def run_query(self, text: str, params: Params, *, commit: bool = False) -> list[Row]:
        """Run a named query, and COMMIT with it if it goes well."""
        query = statement(text)
        values = [_dump(params[name]) for name in query.params]
        with self.lock:
            alone = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
            try:
                return self._run_prepared(query, values, commit=commit)
            except errors.InvalidSqlStatementName as error:  # user code has sent DEALLOCATE ALL
                self._forget_statements()
                if alone:
                    return self._run_prepared(query, values, commit=commit)
                self._keeps_statements = False
                raise StatementsDroppedError(
                    "The prepared statements of this connection were dropped inside the transaction: run it again."
                ) from error

    # With the lock held.

    def _run_prepared(self, query: Statement, values: Sequence[bytes | None], *, commit: bool) -> list[Row]:
        name = self._known_statements.get(query.name) or self._prepare(query)
        if commit:
            commit_name = self._known_statements.get(_COMMIT.name) or self._prepare(_COMMIT)
            return _rows(self._send_with_commit(name, values, commit_name))
        return _rows(self._send(lambda: self.pgconn.send_query_prepared(name, values)))

    def _prepare(self, query: Statement) -> bytes:
        name = b"%s_%d" % (query.name, self._generation)
        self._send(lambda: self.pgconn.send_prepare(name, query.text))
        self._known_statements[query.name] = name
        return name

    def _send(self, send: Callable[[], None]) -> pq.abc.PGresult:
        try:
            send()
            result = None
            while (answer := self._next()) is not None:
                result = answer
        except psycopg.Error:
            raise
        except BaseException:
            self._interrupt()
            raise
        assert result is not None
        return _checked(result)

    def _send_with_commit(self, name: bytes, values: Sequence[bytes | None], commit: bytes) -> pq.abc.PGresult:
        """In a pipeline: if the query fails, the server skips the COMMIT."""
        pgconn = self.pgconn
        answers: list[pq.abc.PGresult] = []
        try:
            pgconn.enter_pipeline_mode()
            pgconn.send_query_prepared(name, values)
            pgconn.send_query_prepared(commit, None)
            pgconn.pipeline_sync()
            while True:
                answer = self._next()
                if answer is None:
                    if self.closed:
                        break
                elif answer.status == pq.ExecStatus.PIPELINE_SYNC:
                    break
                else:
                    answers.append(answer)
            if not self.closed:
                pgconn.exit_pipeline_mode()
        except BaseException:  # it may be in the middle of the pipeline
            self._interrupt()
            raise
        for answer in answers:
            _checked(answer)
        if len(answers) < 2:
            raise psycopg.OperationalError("the connection was lost")
        return answers[0]

    def _interrupt(self) -> None:
        """Have the server give up what it is doing, as psycopg does, and the connection with it."""
        self.interrupted = True
        if not self.closed:
            with suppress(Exception):
                self.cancel_safe(timeout=CANCEL_WITHIN)
        self.close()

    def _next(self) -> pq.abc.PGresult | None:
        """The next answer; None where a statement's answers end."""
        pgconn = self.pgconn
        while pgconn.flush():
            _wait(pgconn.socket, writing=True)
            pgconn.consume_input()
        while pgconn.is_busy():
            _wait(pgconn.socket)
            pgconn.consume_input()
        return pgconn.get_result()


def _checked(result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status not in _FINE:
        raise errors.error_from_result(result)
    return result


def _wait(descriptor: int, *, writing: bool = False) -> None:
    if not hasattr(select, "poll"):
        select.select([descriptor], [descriptor] if writing else [], [], 0.1)  # where an interrupt does not end it
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
    poll.poll()


def open_inside(conn: psycopg.Connection[Any]) -> bool:
    """Whether a `transaction()` of psycopg's is still open on a connection: user code has entered it and not left."""
    return bool(getattr(conn, "_num_transactions", 0))


# Values


def _dump(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return str.encode(value)  # not str(value), which is the name of an enum's member
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"%d" % value
    return repr(value).encode()


def _rows(result: pq.abc.PGresult) -> list[Row]:
    get, type_of = result.get_value, result.ftype
    columns = range(result.nfields)
    return [
        tuple(
            [
                None if (value := get(row, column)) is None else _LOADS.get(type_of(column), bytes.decode)(value)
                for column in columns
            ]
        )
        for row in range(result.ntuples)
    ]


def _load_boolean(value: bytes) -> bool:
    return value == b"t"


def _load_time(value: bytes) -> Any:
    return load_timestamp(value.decode())


_LOADS: dict[int, Callable[[bytes], Any]] = {16: _load_boolean, 20: int, 21: int, 23: int, 701: float, 1184: _load_time}
"""By the numbers that PostgreSQL has for its types; everything else is text to us."""

"""The straight way to the server for what is run once for every job.

A statement on a cursor of psycopg costs about 25 µs more than libpq needs for it: types are looked up for each parameter, a
prepared statement is searched for, a cursor is made. That is little for a batch and a lot for one job. So the few queries in
`HOT` are sent through `psycopg.pq` as they are, prepared under a name of ours. Medians of five alternating runs, PostgreSQL 18,
two cores: one chain at a time 11,400 a second with this and its plain insert, 7,100 with neither; jobs with `complete()` and
10 slots 3,540 and 3,060.

Only on connections that we have made: on a user's own somebody may drop prepared statements, or have a pipeline open, and
psycopg is the one who knows. psycopg drops all statements after a ROLLBACK of its own, and after DROP and ALTER; it tells
nobody but its method `_deallocate`. Where that is missing, or `ENABLED` is False, everything goes through psycopg's cursors.

The wait for an answer is psycopg's way too, without blocking in libpq: an interrupt gets through. It leaves the connection in
the middle of an answer, so it is closed.
"""

from __future__ import annotations

import select
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import errors, pq

from queuert.postgres.connection import OwnConnection
from queuert.postgres.times import load_timestamp
from queuert.storage.loader import Query
from queuert.storage.protocol import Params, Row

ENABLED = hasattr(psycopg.Connection, "_deallocate")
HOT: Final = frozenset(("claim_head", "complete_job", "continue_job", "start_chain"))
CANCEL_WITHIN: Final = 2.0

_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_COMMIT: Final = Query("commit", ("COMMIT",))


class StatementsDroppedError(psycopg.OperationalError):
    """User code has sent DEALLOCATE ALL, or DISCARD ALL."""

    sqlstate = "40001"  # what can be run again, as after a serialization failure


class DirectConnection(OwnConnection):
    """A connection of our own pool that can run a query without a cursor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The names under which statements are prepared. None is used twice: the server may still know an old one.
        self._known_statements: dict[str, bytes] = {}
        self._generation = 0
        self._keeps_statements = True

    def _deallocate(self, name: bytes | None) -> Any:
        if name is None:
            self._forget_statements()
        return super()._deallocate(name)  # type: ignore[misc, unused-ignore]  # psycopg's own: see above

    def _forget_statements(self) -> None:
        self._known_statements.clear()
        self._generation += 1

    @property
    def is_direct(self) -> bool:
        """Whether the straight way can be taken now."""
        return (
            ENABLED
            and self._keeps_statements
            and self.prepare_threshold is not None
            and self.pgconn.pipeline_status == pq.PipelineStatus.OFF
            and self.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def run_query(self, query: Query, params: Params, *, commit: bool = False) -> list[Row]:
        """Run a named query, and COMMIT with it if it goes well."""
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

    def _run_prepared(self, query: Query, values: Sequence[bytes | None], *, commit: bool) -> list[Row]:
        name = self._known_statements.get(query.name) or self._prepare(query)
        if commit:
            commit_name = self._known_statements.get(_COMMIT.name) or self._prepare(_COMMIT)
            return _rows(self._send_with_commit(name, values, commit_name))
        return _rows(self._send(lambda: self.pgconn.send_query_prepared(name, values)))

    def _prepare(self, query: Query) -> bytes:
        text = query.statements[0].encode()
        name = b"queuert_%08x_%d" % (zlib.crc32(text), self._generation)
        self._send(lambda: self.pgconn.send_prepare(name, text))
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
    poll.poll(100)  # not for ever: an interrupt that is no signal would not end it


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

"""A connection of an engine for one block: on its own, or with an ORM session that owns its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from queuert.errors import QueuertError, TransactionMisuseError

SessionFactory = Union["sessionmaker[Any]", "scoped_session[Any]", Callable[[], Session]]


class ConnectionLoan:
    """A connection; user code gets the driver's."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.raw: Any = conn.connection.driver_connection
        self.handle: Any = self.raw

    def begin(self) -> None:
        """Tell SQLAlchemy; it sends nothing by itself."""
        self._conn.begin()
        self.raw = self.handle = self._conn.connection.driver_connection  # another one, if it was invalidated

    def commit(self) -> None:
        self._conn.commit()

    def rollback(self) -> None:
        self._conn.rollback()

    def flush(self) -> None:
        """Nothing waits here to be written."""

    def invalidate(self) -> None:
        """The connection is broken: the pool must not get it back."""
        if not self._conn.closed and not self._conn.invalidated:
            self._conn.invalidate()


class SessionLoan:
    """An ORM session. Its commit() is refused: the block commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.handle: Any = session
        self.raw: Any = None

    def begin(self) -> None:
        self._session.begin()
        self._conn = self._session.connection()
        self.raw = self._conn.connection.driver_connection
        self._transaction = self._session.get_transaction()
        event.listen(self._session, "before_commit", _refuse_commit)

    def commit(self) -> None:
        self._done()
        if self._session.get_transaction() is not self._transaction:
            raise TransactionMisuseError("The session was rolled back inside the block, so nothing of it can be saved.")
        self._session.commit()

    def rollback(self) -> None:
        self._done()
        self._session.rollback()

    def flush(self) -> None:
        self._session.flush()

    def invalidate(self) -> None:
        self._session.invalidate()

    def _done(self) -> None:
        if event.contains(self._session, "before_commit", _refuse_commit):
            event.remove(self._session, "before_commit", _refuse_commit)


def _refuse_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        raise TransactionMisuseError(
            "Refused inside this block: commit(). The block commits when it ends, and rolls back on an exception."
        )


@contextmanager
def connection_loan(engine: Engine) -> Iterator[ConnectionLoan]:
    with engine.connect() as conn:
        yield ConnectionLoan(conn)


@contextmanager
def session_loan(engine: Engine, factory: SessionFactory, wrote: Callable[[Any], bool]) -> Iterator[SessionLoan]:
    """A session of the factory. One that a framework shares (a `scoped_session`) may have been read with: that ends first.

    `wrote` tells from the driver's connection whether something was written in its open transaction.
    """
    session: Any = factory()
    shared = isinstance(factory, scoped_session)
    if not isinstance(session, Session):
        raise TypeError(f"session_factory must give a sqlalchemy.orm.Session, not {type(session).__name__}.")
    try:
        _check_bind(session, engine)
        if session.in_transaction():
            _end_reading(session, wrote)
        yield SessionLoan(session)
    finally:
        if not shared:
            session.close()


def _check_bind(session: Session, engine: Engine) -> None:
    bind = session.get_bind()
    if bind is not engine and getattr(bind, "engine", None) is not engine:
        raise QueuertError(
            f"The sessions of session_factory are on {bind!r}, and this app is on {engine!r}: make both on one engine."
        )


def _end_reading(session: Session, wrote: Callable[[Any], bool]) -> None:
    pending = session.new or session.deleted or session.dirty
    if pending or wrote(session.connection().connection.driver_connection):
        raise TransactionMisuseError(
            "The session has changes from before this block, which would be lost or committed elsewhere: make them inside "
            "the block, or commit them first."
        )
    session.rollback()

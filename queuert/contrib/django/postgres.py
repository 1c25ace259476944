"""PostgreSQL on Django's connections."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# First, since it says what to install where psycopg is missing.
from queuert.postgres.session import BlockSession, Connection, PostgresSession

# isort: split
import psycopg
from django.core import mail
from django.db import Error as DjangoError
from django.db import transaction
from psycopg import pq

from queuert.contrib.django.provider import OnDjango, hooks_of, is_managed, is_our_thread
from queuert.errors import DatabaseUnavailableError
from queuert.hooks import Hooks
from queuert.postgres.database import PostgresDatabase
from queuert.postgres.lending import is_alive
from queuert.postgres.transaction import begin, check_still_open
from queuert.storage.protocol import Block, ManagedBlock
from queuert.storage.trouble import Trouble
from queuert.storage.unwrap import driver_error, unwrap
from queuert.storage.urls import MASK


class DjangoPostgres(OnDjango, PostgresDatabase):
    """Borrows Django's connection of the thread instead of one of a pool."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        super().__init__("postgresql://")  # Django knows how to connect

    def __repr__(self) -> str:
        return f"DjangoPostgres({self.alias!r})"

    @property
    def tells_other_processes(self) -> bool:
        """Not in tests: Django drops the database at their end, and cannot while somebody is connected."""
        return not hasattr(mail, "outbox")

    # Sessions.

    @contextmanager
    def read(self) -> Iterator[PostgresSession]:
        if not (self._is_apart and is_managed(self._wrapper)):
            with super().read() as session:
                yield session
            return
        conn = self.open_listener()  # the thread's own is in the transaction
        try:
            yield PostgresSession(conn)
        finally:
            conn.close()

    def block(self, *, shared: bool = False) -> Block:
        return ManagedBlock(self._block())

    @contextmanager
    def _block(self) -> Iterator[PostgresSession]:
        self._refuse_inside_block()
        wrapper = self._wrapper
        if wrapper.in_atomic_block:
            with self._joined_block(wrapper) as session:
                yield session
            return
        with ExitStack() as inside:
            inside.enter_context(self._inside_block())
            self._connected()
            with transaction.atomic(using=self.alias):
                transaction.on_commit(inside.close, using=self.alias)
                begin(wrapper.connection)
                yield DjangoBlockSession(wrapper)
                check_still_open(wrapper.connection)

    def join(self, conn: object, *, reading: bool = False, hooks: Hooks | None = None) -> PostgresSession:
        wrapper = self._wrapper
        if unwrap(conn, reading=reading) is wrapper.connection and wrapper.connection is not None:
            return self._joined(wrapper, reading=reading, hooks=hooks)
        return super().join(conn, reading=reading, hooks=hooks)

    def _joined(self, wrapper: Any, *, reading: bool = False, hooks: Hooks | None = None) -> DjangoPostgresSession:
        unwrap(wrapper, reading=reading)  # refuses one that can only be rolled back
        return DjangoPostgresSession(wrapper, hooks or hooks_of(wrapper))

    # Connections.

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        wrapper, pid = self._wrapper, os.getpid()
        raw = self._connected()
        try:
            yield raw
        finally:
            if os.getpid() == pid:
                self._settle(wrapper, raw)

    def _connected(self) -> Connection:
        wrapper = self._wrapper
        while True:
            try:
                wrapper.ensure_connection()
            except DjangoError as error:
                raise DatabaseUnavailableError(
                    f"Django's database {self.alias!r} cannot be reached: {self._scrubbed(error)}"
                ) from None
            raw: Connection = wrapper.connection
            if wrapper.in_atomic_block or is_alive(raw):
                return raw
            wrapper.close()

    def _settle(self, wrapper: Any, raw: Connection) -> None:
        try:
            if not raw.closed and raw.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                raw.rollback()
        except psycopg.Error:
            raw.close()
        # A pool of Django's is shared by all threads: ours keep no connection of it.
        if raw.closed or (is_our_thread() and getattr(wrapper, "pool", None)):
            wrapper.close()

    def open_listener(self) -> Connection:
        wrapper = self._wrapper
        try:
            raw: Connection = wrapper.Database.connect(**wrapper.get_connection_params())
        except psycopg.Error as error:
            raise DatabaseUnavailableError(
                f"Django's database {self.alias!r} cannot be reached: {self._scrubbed(error)}"
            ) from None
        raw.autocommit = True
        return raw

    def _scrubbed(self, error: BaseException) -> str:
        text, password = str(driver_error(error)).strip(), self._wrapper.settings_dict.get("PASSWORD")
        return text.replace(str(password), MASK) if password else text

    def trouble(self, error: BaseException) -> Trouble | None:
        return super().trouble(driver_error(error))

    def after_fork(self) -> Iterable[object]:
        return self._let_go()


class DjangoPostgresSession(PostgresSession):
    """Savepoints are Django's, so that its `on_commit` knows of them."""

    def __init__(self, wrapper: Any, hooks: Hooks | None) -> None:
        super().__init__(wrapper.connection, hooks)
        self._wrapper = wrapper

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        inside = self._wrapper.in_atomic_block
        with transaction.atomic(using=self._wrapper.alias) if inside else super().savepoint():
            yield


class DjangoBlockSession(BlockSession):
    """The session of a block of ours."""

    def __init__(self, wrapper: Any) -> None:
        super().__init__(wrapper.connection, hooks_of(wrapper))
        self._alias = wrapper.alias

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with transaction.atomic(using=self._alias):
            yield

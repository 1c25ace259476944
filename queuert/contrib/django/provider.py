"""The provider: which of Django's databases, and what its connections are to us.

Django's transactions are ambient: whoever is inside `atomic()` on a thread is in its transaction, without passing anything
around. A call without `conn=` inside your `atomic()` takes part in it, as the ORM would; outside, it has a transaction of its
own. `conn="default"`, or a connection, says the same and insists on a transaction.

Inside a block of the library (`app.transaction()`, `prepare()`, `complete()`, `complete_chain()`) the ORM is in its transaction
too; the library's own calls say `conn=` there, as on every other database, so that a handler means the same everywhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from django.db import close_old_connections, connections, reset_queries, transaction
from django.utils.connection import ConnectionDoesNotExist

from queuert.errors import TransactionRequiredError, UnsupportedDatabaseError
from queuert.hooks import Effect, Hooks
from queuert.storage.protocol import Database, Provider

logger = logging.getLogger("queuert.django")

REMEDY = "run `manage.py migrate`"
VENDORS = ("sqlite", "postgresql")


class DjangoProvider(Provider):
    """Lends the connections of one of Django's databases to a `Queuert`.

    app = Queuert(DjangoProvider("default"))
    """

    def __init__(self, alias: str = "default") -> None:
        if not isinstance(alias, str):
            raise TypeError(f"DjangoProvider takes an alias of DATABASES, not {alias!r}.")
        self.alias = alias

    def __repr__(self) -> str:
        return f"DjangoProvider({self.alias!r})"

    def database(self, *, busy_timeout: float, check_foreign_keys: bool) -> Database:
        wrapper = checked_wrapper(self.alias)
        if wrapper.vendor == "sqlite":
            from queuert.contrib.django.sqlite import DjangoSqlite

            return DjangoSqlite(self.alias, busy_timeout=busy_timeout, check_foreign_keys=check_foreign_keys)
        from queuert.contrib.django.postgres import DjangoPostgres  # psycopg is an extra

        return DjangoPostgres(self.alias)


def checked_wrapper(alias: str) -> Any:
    """Django's connection of this thread; UnsupportedDatabaseError if it is one that cannot be used. Does not connect."""
    try:
        wrapper: Any = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise UnsupportedDatabaseError(f"Django has no database {alias!r}: DATABASES has {known}.") from None
    engine = wrapper.settings_dict["ENGINE"]
    if wrapper.vendor not in VENDORS:
        raise UnsupportedDatabaseError(
            f"The database {alias!r} is on {engine}: this library works on django.db.backends.sqlite3 and "
            "django.db.backends.postgresql."
        )
    if wrapper.vendor == "postgresql" and wrapper.Database.__name__ != "psycopg":
        raise UnsupportedDatabaseError(
            f"Django uses {wrapper.Database.__name__} for the database {alias!r}; this library needs psycopg 3: "
            "pip install 'queuert[postgres]'."
        )
    if not wrapper.settings_dict.get("AUTOCOMMIT", True):
        raise UnsupportedDatabaseError(
            f"The database {alias!r} has AUTOCOMMIT off: turn it on, and use transaction.atomic() where you want a transaction."
        )
    return wrapper


def is_managed(wrapper: Any) -> bool:
    """Whether somebody's transaction is open: `atomic()`, or autocommit switched off by hand."""
    return bool(wrapper.in_atomic_block or (wrapper.connection is not None and not wrapper.autocommit))


def hooks_of(wrapper: Any) -> Hooks | None:
    """None where Django does not tell of the commit: in a transaction that is managed by hand."""
    return DjangoHooks(wrapper.alias) if wrapper.in_atomic_block else None


class DjangoHooks(Hooks):
    """Effects through `transaction.on_commit`, which knows of savepoints itself."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias

    def on_commit(self, effect: Effect) -> None:
        transaction.on_commit(effect, using=self._alias, robust=True)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        yield

    def discard(self) -> None:
        """Django forgets them by itself."""

    def flush(self) -> None:
        """Django runs them by itself."""


class OnDjango(Database):
    """What both dialects do alike. Comes first among the bases."""

    remedy = REMEDY
    alias: str

    @property
    def _wrapper(self) -> Any:
        return connections[self.alias]

    def _joined(self, wrapper: Any, *, reading: bool = False) -> Any:
        raise NotImplementedError

    @contextmanager
    def read(self) -> Iterator[Any]:
        self._refuse_inside_block()
        wrapper = self._wrapper
        if is_managed(wrapper):
            yield self._joined(wrapper, reading=True)
            return
        with super().read() as session:  # type: ignore[safe-super]  # the dialect's
            yield session

    def run(
        self,
        work: Callable[[Any], Any],
        *,
        recover: Callable[[Any], Any] | None = None,
        single: bool = False,
    ) -> Any:
        self._refuse_inside_block()
        wrapper = self._wrapper
        if is_managed(wrapper):
            return work(self._joined(wrapper))
        return super().run(work, recover=recover, single=single)  # type: ignore[safe-super]  # the dialect's

    @contextmanager
    def _joined_block(self, wrapper: Any) -> Iterator[Any]:
        """A block inside somebody's `atomic()`: a savepoint of it."""
        with self.inside_users_block(), transaction.atomic(using=self.alias):
            yield self._joined(wrapper)

    def ambient(self) -> object | None:
        """Inside a block of ours, which is on Django's own connection, a service works as it does in a view."""
        return self.alias if self.in_block or self.in_users_block else None

    def _refuse_inside_block(self) -> None:
        try:
            super()._refuse_inside_block()
        except TransactionRequiredError:
            raise TransactionRequiredError(
                f"A transaction of this app is open on this thread: say conn={self.alias!r} to take part in it."
            ) from None

    @contextmanager
    def inside_users_block(self, inside: bool = True) -> Iterator[None]:
        before = self._is_apart
        self._thread.apart = not inside
        try:
            with super().inside_users_block(inside):
                yield
        finally:
            self._thread.apart = before

    @property
    def _is_apart(self) -> bool:
        """Whether what is read now must not come from the transaction that is open."""
        return bool(getattr(self._thread, "apart", False))

    def around_attempt(self) -> AbstractContextManager[None]:
        return connections_of_one_job()

    def thread_ends(self) -> None:
        for wrapper in connections.all(initialized_only=True):
            with suppress(Exception):
                wrapper.close()

    def close(self) -> None:
        """Django's connections are Django's."""

    def reserve(self, connections: int) -> None:
        """Every thread has a connection of its own."""

    def _let_go(self) -> Iterable[object]:
        """In a child: forget what the parent has open, and never close it."""
        kept: list[object] = []
        for wrapper in connections.all(initialized_only=True):
            if wrapper.alias == self.alias and wrapper.connection is not None:
                kept.append(wrapper.connection)
                wrapper.connection = None
                wrapper.in_atomic_block = False
                wrapper.savepoint_ids = []
                wrapper.atomic_blocks = []
                wrapper.run_on_commit = []
            pools: Any = getattr(type(wrapper), "_connection_pools", None)
            if wrapper.alias == self.alias and pools and self.alias in pools:
                kept.append(pools.pop(self.alias))
        return kept


@contextmanager
def connections_of_one_job() -> Iterator[None]:
    """As around a request: the log of queries starts afresh, and connections that are too old or broken are closed."""
    reset_queries()
    _close_old()
    try:
        yield
    finally:
        _close_old()


def _close_old() -> None:
    if any(wrapper.in_atomic_block for wrapper in connections.all(initialized_only=True)):
        return  # a test's own transaction: Django would close the connection under it
    close_old_connections()


def is_our_thread() -> bool:
    return threading.current_thread().name.startswith("queuert-")

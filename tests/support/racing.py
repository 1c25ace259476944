"""Threads and processes that start together, and watching who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from queuert.postgres.session import PostgresSession
from support.inside import lock_of
from support.store import Store
from support.waiting import eventually

T = TypeVar("T")

PATIENCE = 30.0


def together(*actions: Callable[[], T]) -> list[T]:
    """Run each in a thread of its own, started at the same instant; their results in order, or the first error."""
    barrier = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def run(number: int, action: Callable[[], T]) -> None:
        try:
            barrier.wait(PATIENCE)
            results[number] = action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    if errors:
        raise errors[0]
    return results


class Background:
    """A call in another thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float = PATIENCE) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "it is still waiting"
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def holding(store: Store, statement: str, **params: object) -> Iterator[None]:
    """Somebody's open transaction that has run a statement; undone at the end."""
    with store.database.open_listener() as conn, conn.transaction(force_rollback=True):
        PostgresSession(conn).run(store.query(statement), params)
        yield


def wait_until_blocked(store: Store, number: int = 1) -> None:
    """Until so many transactions of this database wait for a lock of another.

    On a SQLite file the first of them tries to begin, behind another connection, and the others stand in line behind it.
    """
    if store.dialect == "sqlite":
        eventually(lambda: lock_of(store.database).waiting_writers >= number - 1, every=0.002)
        return
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    with closing(store.database.open_listener()) as conn:
        eventually(lambda: conn.execute(waiting).fetchone()[0] >= number, every=0.002)


def is_free(store: Store, job_id: str, strength: str = "UPDATE") -> bool:
    """Whether a row could be locked just now."""
    query = store.query(f"SELECT id FROM {{job}} WHERE id = :id FOR {strength} SKIP LOCKED")
    with closing(store.database.open_listener()) as conn:
        return bool(PostgresSession(conn).run(query, {"id": job_id}))


def claim_until_empty(url: str, types: Sequence[str], worker: str, batch: int) -> list[str]:
    """What a process does that claims until there is nothing left."""
    store = Store(url, types=types)
    try:
        taken: list[str] = []
        while jobs := store.claim(batch, types, worker=worker, token=len(taken) + 1):
            taken += [job.id for job in jobs]
        return taken
    finally:
        store.close()

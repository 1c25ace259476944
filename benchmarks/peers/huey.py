"""huey on SQLite: takes a task out of the file before it runs it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import huey
from huey.consumer import Consumer
from huey.storage import SqliteStorage

from benchmarks.peers.base import Peer, handled


class NormalStorage(SqliteStorage):  # type: ignore[misc]  # huey has no types
    def _create_connection(self) -> sqlite3.Connection:
        conn: sqlite3.Connection = super()._create_connection()
        conn.execute("PRAGMA synchronous = NORMAL")
        return conn


class Huey(Peer):
    name = "huey"
    settings = "SqliteHuey(fsync=True, results=False), threads, max_delay=0.1"
    jobs = 4_000
    storage: type[SqliteStorage] = SqliteStorage

    def __init__(self, url: str) -> None:
        super().__init__(url)
        path = url.removeprefix("sqlite:///")
        self._huey = huey.Huey(filename=path, fsync=True, results=False, storage_class=self.storage, timeout=10)

        def plain(payload: dict[str, Any]) -> None:
            handled.hit()

        self._task = self._huey.task(name="plain")(plain)

    def enqueue_each(self, payloads: Sequence[dict[str, Any]]) -> None:
        for payload in payloads:
            self._task(payload)

    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        """It has nothing for many but a loop."""
        self.enqueue_each(payloads)

    def fill(self, payload: dict[str, Any], jobs: int) -> None:
        rows = [(self._huey.name, self._huey.serialize_task(self._task.s(payload)), 0) for _ in range(jobs)]
        with self._huey.storage.db(commit=True) as cursor:
            cursor.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, ?)", rows)

    def count_open(self) -> int:
        return int(self._huey.storage.queue_size())

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        consumer = Consumer(self._huey, workers=concurrency, periodic=False, max_delay=0.1)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        consumer.start()
        for number, handler in handlers.items():  # it takes over the signals of the process
            signal.signal(number, handler)
        try:
            yield
        finally:
            consumer.stop(graceful=True)

    def close(self) -> None:
        self._huey.storage.close()


class HueyNormal(Huey):
    name = "huey NORMAL"
    settings = "the same with synchronous=NORMAL"
    variant = "durability"
    durable = False
    storage = NormalStorage

"""litequeue: a table of messages. It has no worker, so a loop in one thread takes messages and marks them as done."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import litequeue

from benchmarks.peers.base import Peer, handled

IDLE_SECONDS = 0.01


class LiteQueue(Peer):
    name = "litequeue"
    settings = "synchronous=FULL, a loop in one thread"
    jobs = 2_000
    synchronous = "FULL"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._path = url.removeprefix("sqlite:///")
        self._queue = self._open()

    def _open(self) -> litequeue.LiteQueue:
        queue = litequeue.LiteQueue(self._path, timeout=10)
        queue.conn.execute(f"PRAGMA synchronous = {self.synchronous}")
        return queue

    def enqueue_each(self, payloads: Sequence[dict[str, Any]]) -> None:
        for payload in payloads:
            self._queue.put(json.dumps(payload))

    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        with self._queue.transaction():
            self.enqueue_each(payloads)

    def count_open(self) -> int:
        row = self._queue.conn.execute("SELECT count(*) FROM Queue WHERE status IN (0, 1)").fetchone()
        return int(row[0])

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        stop = threading.Event()

        def run() -> None:
            queue = self._open()
            while not stop.is_set():
                message = queue.pop()
                if message is None:
                    stop.wait(IDLE_SECONDS)
                    continue
                json.loads(message.data)
                handled.hit()
                queue.done(message.message_id)
            queue.close()

        thread = threading.Thread(target=run, name="litequeue-loop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self._queue.close()


class LiteQueueNormal(LiteQueue):
    name = "litequeue NORMAL"
    settings = "the same with synchronous=NORMAL (its default)"
    variant = "durability"
    durable = False
    synchronous = "NORMAL"

"""chancy: fetches as many as there are free slots, and writes what is done once a second."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chancy
from chancy import Job, Queue, Worker

from benchmarks.peers.base import AsyncPeer, handled


async def plain(**payload: Any) -> None:
    handled.hit()


class Chancy(AsyncPeer):
    name = "chancy"
    settings = "async executor, eager_polling"
    jobs = 1_500

    async def open(self) -> None:
        # Its logger, unless it is given one, prints a line for each job.
        log = logging.getLogger("chancy.quiet")
        log.setLevel(logging.ERROR)
        self._app = chancy.Chancy(self.url, log=log)
        await self._app.pool.open()
        if not await self._app.is_up_to_date():
            await self._app.migrate()
        self._job = Job.from_func(plain)

    async def shut(self) -> None:
        await self._app.pool.close()

    async def enqueue_one(self, payload: dict[str, Any]) -> None:
        await self._app.push(self._job.with_kwargs(**payload))

    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        async def enqueue() -> None:
            async for _ in self._app.push_many([self._job.with_kwargs(**payload) for payload in payloads]):
                pass

        self.call(enqueue())

    def count_open(self) -> int:
        async def count() -> int:
            async with self._app.pool.connection() as conn:
                query = "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')"
                row = await (await conn.execute(query)).fetchone()
                return int(row[0]) if row else 0

        return self.call(count())

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        async def start() -> Worker:
            queue = Queue("default", concurrency=concurrency, executor=chancy.Chancy.Executor.Async, eager_polling=True)
            await self._app.declare(queue, upsert=True)
            worker = Worker(self._app, register_signal_handlers=False)
            await worker.start()
            return worker

        worker = self.call(start())
        try:
            yield
        finally:
            self.call(worker.stop())

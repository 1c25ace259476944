"""procrastinate: one job a fetch, asynchronous tasks in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import procrastinate

from benchmarks.peers.base import AsyncPeer, handled


class Procrastinate(AsyncPeer):
    name = "procrastinate"
    settings = "async task, delete_jobs=never (its default), LISTEN/NOTIFY"
    jobs = 600

    async def open(self) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.url, min_size=4, max_size=20))

        @self._app.task(name="plain", queue="default")
        async def plain(**payload: Any) -> None:
            handled.hit()

        self._task = plain
        await self._app.open_async()
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()

    async def shut(self) -> None:
        await self._app.close_async()

    async def enqueue_one(self, payload: dict[str, Any]) -> None:
        await self._task.defer_async(**payload)

    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        self.call(self._task.batch_defer_async(*payloads))

    def count_open(self) -> int:
        query = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        row = self.call(self._app.connector.execute_query_one_async(query))
        return int(row["n"])

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        async def run() -> None:
            with suppress(asyncio.CancelledError):
                await self._app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

        async def start() -> asyncio.Task[None]:
            return asyncio.create_task(run())

        async def stop() -> None:
            task.cancel()
            await task

        task = self.call(start())
        try:
            yield
        finally:
            self.call(stop())

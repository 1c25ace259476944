"""pgqueuer: batches at both ends, on asyncpg and, as its command line does, on uvloop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import asyncpg
import pgqueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.base import AsyncPeer, handled


class PgQueuer(AsyncPeer):
    name = "pgqueuer"
    settings = "asyncpg, uvloop, batch_size=10 (its default, nearest to ten slots), autovacuum as in its guide"
    jobs = 8_000
    batch = 10

    def new_loop(self) -> asyncio.AbstractEventLoop:
        try:
            import uvloop
        except ImportError:
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()

    async def open(self) -> None:
        self._conn = await asyncpg.connect(self.url)
        self._queries = Queries.from_asyncpg_connection(self._conn)
        if not await self._queries.schema_is_installed():
            await self._queries.install()
            await self._queries.optimize_autovacuum()  # the first point of its checklist

    async def shut(self) -> None:
        await self._conn.close()

    async def enqueue_one(self, payload: dict[str, Any]) -> None:
        await self._queries.enqueue("plain", json.dumps(payload).encode())

    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        texts: list[bytes | None] = [json.dumps(payload).encode() for payload in payloads]
        self.call(self._queries.enqueue(["plain"] * len(texts), texts, [0] * len(texts)))

    def count_open(self) -> int:
        return int(self.call(self._conn.fetchval("SELECT count(*) FROM pgqueuer")))

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        async def run(conn: asyncpg.Connection, app: pgqueuer.PgQueuer) -> None:
            await app.run(batch_size=self.batch)
            await conn.close()

        async def start() -> tuple[pgqueuer.PgQueuer, asyncio.Task[None]]:
            conn = await asyncpg.connect(self.url)
            app = pgqueuer.PgQueuer.from_asyncpg_connection(conn)

            @app.entrypoint("plain")
            async def plain(job: Job) -> None:
                json.loads(job.payload or b"null")
                handled.hit()

            return app, asyncio.create_task(run(conn, app))

        async def stop() -> None:
            app.shutdown.set()
            await task

        app, task = self.call(start())
        try:
            yield
        finally:
            self.call(stop())


class PgQueuerTuned(PgQueuer):
    name = "pgqueuer, batch 25"
    settings = "the same with batch_size=25, as in its guide to tuning; it runs as many at a time as it has fetched"
    variant = "worker"
    jobs = 12_000
    batch = 25


class PgQueuerHundred(PgQueuer):
    name = "pgqueuer, batch 100"
    settings = "the same with batch_size=100, the quickest that we found for jobs that do nothing"
    variant = "worker"
    jobs = 12_000
    batch = 100

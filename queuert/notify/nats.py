"""Notices between processes through NATS: plain subjects, hints by JetStream's key-value store where the server has it.

Queuert(url, notify=NatsNotifier("nats://localhost:4222"))
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from queuert.errors import QueuertError
from queuert.notify.in_process import Deliver
from queuert.notify.protocol import ANYTHING, Channel, PerProcess
from queuert.notify.remote import HINT_SECONDS, Message, RemoteNotifier
from queuert.notify.watcher import Watcher

logger = logging.getLogger("queuert.notify")

T = TypeVar("T")

ANSWER_WITHIN = 5.0
LOOK = 0.2
"""Seconds after which the listener sees that it has to stop, or that the connection is gone."""
HEARTBEAT = 5.0
"""Seconds between pings; a server that leaves one without an answer until the next is given up."""
TRIES = 20
"""How often to try to take a job from a counter that others take from at the same time."""
_REFUSED = ("authorization", "authentication", "credentials", "nkey", "user jwt")


class NatsNotifier(RemoteNotifier):
    """Tells this process at once, and others through NATS.

    `servers` is a URL or a list of them; `options` go to `nats.connect` (`user`, `password`, `token`, `user_credentials`,
    `tls`, ...). Apps that share a database need the same `prefix`; two databases on one server should have different ones.
    """

    server = "NATS"

    def __init__(
        self, servers: str | Sequence[str], *, prefix: str = "queuert", heartbeat: float = HEARTBEAT, **options: Any
    ) -> None:
        super().__init__(prefix)
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls or not all(isinstance(url, str) and url for url in urls):
            raise ValueError("NatsNotifier takes the URL of a server, such as nats://localhost:4222, or a list of them.")
        options = {"connect_timeout": ANSWER_WITHIN, "ping_interval": heartbeat, "max_outstanding_pings": 1, **options}
        bucket = f"{prefix}_hints"
        self._links = PerProcess(lambda: _Link(urls, options, bucket))

    def close(self) -> None:
        super().close()
        link = self._links.peek()
        if link is not None:
            link.close()

    def _check(self) -> None:
        try:
            self._links.get().run(_nothing)
        except Exception as error:
            # A server that is away may come back, and the listener says so; one that refuses us will not.
            if isinstance(error, NatsError) and any(word in str(error).lower() for word in _REFUSED):
                raise QueuertError(
                    f"NATS refuses the notifier ({type(error).__name__}): check the credentials that it was given."
                ) from error

    def _send(self, messages: Sequence[tuple[Channel, Message, int]]) -> None:
        async def send(client: Client, hints: KeyValue | None) -> None:
            if hints is not None:
                await asyncio.gather(*(hints.put(m.hint, str(count).encode()) for _, m, count in messages if m.hint))
            for channel, message, _ in messages:
                sent = message if hints is not None else message._replace(hint="")
                await client.publish(self._name(channel), str(sent).encode())
            await client.flush(ANSWER_WITHIN)  # type: ignore[arg-type]

        self._links.get().run(send)

    def take(self, hint: str) -> bool:
        """Take one of the jobs that a notice is about; also if NATS cannot say."""
        try:
            return self._links.get().run(lambda _, hints: _take(hints, hint))
        except Exception:
            return True

    def _make_watcher(self, deliver: Deliver) -> Watcher:
        channels = {self._name(channel): channel for channel in Channel}
        return _Listener(self._links.get(), channels, deliver, lambda c, text: self.arrived(c, text, self.take))


async def _nothing(client: Client, hints: KeyValue | None) -> None:
    """Connecting is all."""


async def _take(hints: KeyValue | None, hint: str) -> bool:
    for _ in range(TRIES):
        if hints is None:
            return True
        try:
            entry = await hints.get(hint)
            left = int(entry.value or b"0")
            if left < 1:
                return False
            await hints.update(hint, str(left - 1).encode(), last=entry.revision)
        except KeyNotFoundError:
            return False
        except KeyWrongLastSequenceError:
            continue  # somebody else was quicker
        return True
    return False


class _Listener(Watcher):
    source = "NATS"

    def __init__(
        self, link: _Link, channels: dict[str, Channel], deliver: Deliver, arrived: Callable[[Channel, str], None]
    ) -> None:
        super().__init__("queuert-notify-nats")
        self._link = link
        self._channels = channels
        self._deliver = deliver
        self._arrived = arrived
        self._inbox: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()

    def interrupt(self) -> None:
        self._inbox.put(None)

    def watch(self) -> None:
        async def heard(message: Any) -> None:
            self._inbox.put((message.subject, message.data))

        async def subscribe(client: Client, hints: KeyValue | None) -> tuple[Client, list[Any]]:
            subscriptions = [await client.subscribe(subject, cb=heard) for subject in self._channels]
            await client.flush(ANSWER_WITHIN)  # type: ignore[arg-type]
            return client, subscriptions

        client, subscriptions = self._link.run(subscribe)
        try:
            self.works()
            self._deliver(ANYTHING)
            while not self.stopping.is_set():
                if client.is_closed:
                    raise ConnectionError("the connection is closed")
                try:
                    arrived = self._inbox.get(timeout=LOOK)
                except queue.Empty:
                    continue
                if arrived is not None:
                    subject, data = arrived
                    self._arrived(self._channels[subject], data.decode("utf-8", "replace"))
        finally:
            if not client.is_closed:
                self._link.run(lambda *_: _unsubscribe(subscriptions))


async def _unsubscribe(subscriptions: list[Any]) -> None:
    for subscription in subscriptions:
        await subscription.unsubscribe()


class _Link:
    """The connection of one process to NATS, and the thread whose event loop it lives in; both made when needed.

    A connection that is lost is not mended but replaced by the next call: who listens must know that it missed something.
    """

    def __init__(self, urls: list[str], options: dict[str, Any], bucket: str) -> None:
        self._urls = urls
        self._options = options
        self._bucket = bucket
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connecting: asyncio.Lock | None = None
        self._client: Client | None = None
        self._hints: KeyValue | None = None

    def run(self, work: Callable[[Client, KeyValue | None], Awaitable[T]]) -> T:
        """Run `work` with the connection, in its thread, and wait for the answer."""
        with self._lock:
            loop = self._loop or self._start()
        future = asyncio.run_coroutine_threadsafe(self._with_client(work), loop)
        try:
            return future.result(2 * ANSWER_WITHIN)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._disconnect(), loop)
        thread.join(ANSWER_WITHIN)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._connecting = asyncio.Lock()
        self._thread = threading.Thread(target=_run_loop, args=[loop], name="queuert-notify-nats-loop", daemon=True)
        self._thread.start()
        return loop

    async def _with_client(self, work: Callable[[Client, KeyValue | None], Awaitable[T]]) -> T:
        assert self._connecting is not None
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                await self._connect()
            client, hints = self._client, self._hints
        assert client is not None
        return await asyncio.wait_for(work(client, hints), ANSWER_WITHIN)

    async def _connect(self) -> None:
        connecting: Coroutine[Any, Any, Client] = nats.connect(
            servers=self._urls, allow_reconnect=False, error_cb=_quiet, **self._options
        )
        self._client = client = await asyncio.wait_for(connecting, ANSWER_WITHIN)
        self._hints = await self._find_hints(client)

    async def _find_hints(self, client: Client) -> KeyValue | None:
        config = KeyValueConfig(bucket=self._bucket, ttl=HINT_SECONDS, history=1, storage=StorageType.MEMORY)
        try:
            return await client.jetstream(timeout=ANSWER_WITHIN / 2).create_key_value(config)
        except (NatsError, TimeoutError, asyncio.TimeoutError) as error:
            logger.info("This NATS server keeps no hints (%s): every idle worker looks at every notice.", type(error).__name__)
            return None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        try:
            if client is not None and not client.is_closed:
                await asyncio.wait_for(client.close(), ANSWER_WITHIN / 2)
        except Exception as error:
            logger.debug("NATS could not be closed (%s).", type(error).__name__)
        asyncio.get_running_loop().stop()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _quiet(error: Exception) -> None:
    """Whoever calls gets the error; the driver would also print it."""

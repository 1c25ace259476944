"""Notices between processes through Redis: publish and subscribe, hints by a counter for each notice of ready jobs.

Queuert(url, notify=RedisNotifier("redis://localhost:6379/0"))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError

from queuert.errors import QueuertError
from queuert.notify.in_process import Deliver
from queuert.notify.protocol import ANYTHING, Channel, PerProcess
from queuert.notify.remote import HINT_SECONDS, Message, RemoteNotifier
from queuert.notify.watcher import Watcher

ANSWER_WITHIN = 5.0
LOOK = 0.2
"""Seconds after which the listener sees that it has to stop."""
HEARTBEAT = 5.0
"""Seconds of silence after which the server is asked for a sign of life, and within which it has to give one."""

# Decrements only what is there: a counter that ran out or expired must not come back below zero, and for ever.
_TAKE = """
local left = tonumber(redis.call('GET', KEYS[1]) or '0')
if left < 1 then return 0 end
redis.call('DECR', KEYS[1])
return 1
"""


class RedisNotifier(RemoteNotifier):
    """Tells this process at once, and others through Redis.

    Takes a URL (`redis://`, `rediss://`, `unix://`) or a `redis.Redis` that stays the caller's. Apps that share a database
    need the same `prefix`; two databases on one server should have different ones. Redis forgets what nobody listens to:
    after an outage everybody looks once, and polling finds the rest.
    """

    server = "Redis"

    def __init__(self, target: str | redis.Redis, *, prefix: str = "queuert", heartbeat: float = HEARTBEAT) -> None:
        super().__init__(prefix)
        if isinstance(target, str):
            url = target
            _open(url).close()  # a URL that cannot be parsed is refused here
            self._clients = PerProcess(lambda: _open(url))
        elif isinstance(target, redis.Redis):
            client = target  # redis-py gives each process connections of its own
            self._clients = PerProcess(lambda: client)
        else:
            raise TypeError(f"RedisNotifier takes a URL or a redis.Redis, not {type(target).__name__}.")
        self._owns_client = isinstance(target, str)
        self._heartbeat = heartbeat

    def close(self) -> None:
        super().close()
        client = self._clients.peek()
        if client is not None and self._owns_client:
            client.close()

    def _check(self) -> None:
        try:
            self._clients.get().ping()
        except (AuthenticationError, AuthorizationError, NoPermissionError, ResponseError) as error:
            raise QueuertError(
                f"Redis refuses the notifier ({type(error).__name__}): check the user name, the password and the database "
                "that it was given."
            ) from error
        except (RedisError, OSError):
            pass  # away, and may come back: the listener says so

    def _send(self, messages: Sequence[tuple[Channel, Message, int]]) -> None:
        pipeline = self._clients.get().pipeline(transaction=False)
        for channel, message, count in messages:
            if message.hint:
                pipeline.set(self._hint(message.hint), count, ex=HINT_SECONDS)
            pipeline.publish(self._name(channel), str(message))
        pipeline.execute()

    def take(self, hint: str) -> bool:
        """Take one of the jobs that a notice is about; also if Redis cannot say."""
        try:
            return bool(self._clients.get().eval(_TAKE, 1, self._hint(hint)))
        except (RedisError, OSError):
            return True

    def _hint(self, hint: str) -> str:
        return f"{self._prefix}:hint:{hint}"

    def _make_watcher(self, deliver: Deliver) -> Watcher:
        channels = {self._name(channel): channel for channel in Channel}
        return _Listener(
            self._clients.get(), channels, deliver, lambda c, text: self.arrived(c, text, self.take), self._heartbeat
        )


class _Listener(Watcher):
    source = "Redis"

    def __init__(
        self,
        client: redis.Redis,
        channels: dict[str, Channel],
        deliver: Deliver,
        arrived: Callable[[Channel, str], None],
        heartbeat: float,
    ) -> None:
        super().__init__("queuert-notify-redis")
        self._client = client
        self._channels = channels
        self._deliver = deliver
        self._arrived = arrived
        self._heartbeat = heartbeat

    def watch(self) -> None:
        pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(*self._channels)
            self._listen(pubsub)
        finally:
            pubsub.close()

    def _listen(self, pubsub: Any) -> None:
        subscribed: set[str] = set()
        heard_at, asked = time.monotonic(), False
        while not self.stopping.is_set():
            message = pubsub.get_message(timeout=LOOK)
            now = time.monotonic()
            if message is None:
                if now - heard_at >= self._heartbeat:
                    if asked:
                        raise TimeoutError("a ping was not answered")
                    pubsub.ping()
                    heard_at, asked = now, True
                continue
            heard_at, asked = now, False
            name = _text(message["channel"]) if message["channel"] is not None else ""
            if message["type"] == "subscribe":
                subscribed.add(name)
                if len(subscribed) == len(self._channels):
                    self.works()
                    self._deliver(ANYTHING)
            elif message["type"] == "message" and name in self._channels:
                self._arrived(self._channels[name], _text(message["data"]))


def _open(url: str) -> redis.Redis:
    try:
        return redis.Redis.from_url(url, socket_timeout=ANSWER_WITHIN, socket_connect_timeout=ANSWER_WITHIN)
    except ValueError:
        # Not the driver's message, which may quote the password.
        raise ValueError(
            "RedisNotifier takes a URL such as redis://user:password@host:6379/0 (or rediss://, unix://)."
        ) from None


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

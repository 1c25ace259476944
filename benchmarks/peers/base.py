"""What a peer has to be able to do to be measured."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar

T = TypeVar("T")


class Handled:
    """Counts the jobs that handlers of this process have begun. Peers find handlers by name, so there is one for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self, tell: Callable[[float], object] | None = None) -> None:
        self.count = 0
        self.first: float | None = None
        self._tell = tell

    def hit(self) -> None:
        now = time.perf_counter()
        with self._lock:
            self.count += 1
            if self.first is None:
                self.first = now
        if self._tell is not None:
            self._tell(now)


handled = Handled()


class Peer(ABC):
    """A queue in a database of its own. The handler takes the payload and does nothing but `handled.hit()`."""

    name: ClassVar[str]
    settings: ClassVar[str]
    """The settings it runs with, for the reader."""
    jobs: ClassVar[int]
    """How many it drains in a few seconds."""
    variant: ClassVar[Literal["", "durability", "worker"]] = ""
    """In what it differs from the class it is a variant of."""
    durable: ClassVar[bool] = True
    """Whether a commit survives a power cut, as those of the library do."""

    def __init__(self, url: str) -> None:
        """Connect and make the tables, unless they are there."""
        self.url = url

    @abstractmethod
    def enqueue_each(self, payloads: Sequence[dict[str, Any]]) -> None:
        """One by one, each in a transaction of its own."""

    @abstractmethod
    def enqueue_batch(self, payloads: Sequence[dict[str, Any]]) -> None:
        """In the quickest way that it offers for many."""

    def enqueue_timed(self, payload: dict[str, Any]) -> tuple[float, float]:
        """One; when it was called, and when it returned."""
        called = time.perf_counter()
        self.enqueue_each([payload])
        return called, time.perf_counter()

    def fill(self, payload: dict[str, Any], jobs: int) -> None:
        for start in range(0, jobs, 1_000):
            self.enqueue_batch([payload] * min(1_000, jobs - start))

    @abstractmethod
    def count_open(self) -> int:
        """How many jobs are not done."""

    @abstractmethod
    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        """A worker that runs during the block."""

    @abstractmethod
    def close(self) -> None: ...


class AsyncPeer(Peer):
    """A peer that lives in an event loop: it has one of its own, in a thread."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._loop = self.new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{self.name}-loop", daemon=True)
        self._thread.start()
        self.call(self.open())

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def shut(self) -> None: ...

    @abstractmethod
    async def enqueue_one(self, payload: dict[str, Any]) -> None: ...

    def enqueue_each(self, payloads: Sequence[dict[str, Any]]) -> None:
        async def enqueue() -> None:
            for payload in payloads:
                await self.enqueue_one(payload)

        self.call(enqueue())

    def enqueue_timed(self, payload: dict[str, Any]) -> tuple[float, float]:
        async def enqueue() -> tuple[float, float]:  # the way between the threads is not the peer's
            called = time.perf_counter()
            await self.enqueue_one(payload)
            return called, time.perf_counter()

        return self.call(enqueue())

    def close(self) -> None:
        self.call(self.shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

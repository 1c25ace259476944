"""The slots: threads that run handlers, and the line of claimed jobs that wait for one.

A slot that is done takes the next job itself; only when there is none does it sleep. Waking one costs more than a short
job, so each slot that finds a line behind its own job wakes one other, instead of all being woken at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from queuert.worker.held import Held

Work = Callable[[Held], None]

WEIGHT = 0.1  # of the latest handler in what is usual


class Slots:
    """Runs `work(held)` in a number of threads; `on_free` is called, under the lock, when the line is short."""

    def __init__(self, size: int, work: Work, on_free: Callable[[], None]) -> None:
        self.size = size
        self.low = 0
        """A line shorter than this, or equal, is worth telling the dispatcher of."""
        self.finished = 0
        self.usual = 0.0
        """Seconds that a handler lately took, more or less."""
        self._work = work
        self._on_free = on_free
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._line: deque[tuple[float, Held]] = deque()
        self._running: dict[int, Held] = {}
        self._idle = 0
        self._closed = False

    # For the dispatcher.

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def running_jobs(self) -> list[Held]:
        with self._lock:
            return list(self._running.values())

    def submit(self, claimed: Sequence[Held]) -> None:
        now = time.monotonic()
        with self._lock:
            self._line.extend((now, held) for held in claimed)
            if self._idle:
                self._ready.notify()

    def waited_since(self) -> float | None:
        """When the first in the line joined it."""
        with self._lock:
            return self._line[0][0] if self._line else None

    def take_back(self, before: float | None = None) -> list[Held]:
        """Remove from the line all, or those that joined it before a time."""
        with self._lock:
            taken = []
            while self._line and (before is None or self._line[0][0] < before):
                taken.append(self._line.popleft()[1])
            return taken

    def close(self) -> None:
        """Start no more; slots end when their handlers do."""
        with self._lock:
            self._closed = True
            self._ready.notify_all()

    # The threads.

    def run(self, number: int) -> None:
        held = self._next(number)
        while held is not None:
            self._work(held)
            held = self._next(number)

    def _next(self, number: int) -> Held | None:
        with self._lock:
            done = self._running.pop(number, None)
            if done is not None:
                self.finished += 1
                if done.started is not None:
                    took = time.monotonic() - done.started
                    self.usual += (took - self.usual) * max(WEIGHT, 1 / self.finished)
            while not self._line or self._closed:
                if self._closed:
                    return None
                self._idle += 1
                self._on_free()
                self._ready.wait()
                self._idle -= 1
            held = self._line.popleft()[1]
            self._running[number] = held
            if self._line and self._idle:
                self._ready.notify()
            if len(self._line) <= self.low:
                self._on_free()
            return held

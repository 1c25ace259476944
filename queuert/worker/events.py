"""What the background threads have done, for tests to wait for instead of sleeping. Inert until somebody watches."""

from __future__ import annotations

import threading
import time
from collections import Counter


class Events:
    """Counts named events once `watch()` was called."""

    def __init__(self) -> None:
        self._watched = False
        self._changed = threading.Condition()
        self._counts: Counter[str] = Counter()

    def watch(self) -> Events:
        self._watched = True
        return self

    def happened(self, name: str) -> None:
        if self._watched:
            with self._changed:
                self._counts[name] += 1
                self._changed.notify_all()

    def count(self, name: str) -> int:
        with self._changed:
            return self._counts[name]

    def wait(self, name: str, *, count: int = 1, timeout: float = 10) -> None:
        """Wait until it has happened `count` times since `watch()`; TimeoutError otherwise."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._counts[name] < count:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"{name!r} happened {self._counts[name]} times, not {count}.")

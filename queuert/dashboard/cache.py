"""Answers that many open pages share: one question a second to the database, however many ask.

Who asks first computes the answer, and those who come meanwhile wait for it. An error is not kept.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MOST: Final = 256  # answers kept; the one that was not used for longest goes


class _Entry:
    """One question's answer. Its lock is held while the answer is computed, and is taken before no other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.good_until = 0.0


class Cache:
    """Keeps answers for a moment."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()  # of the dict; never held while an entry's lock is waited for

    def get(self, key: Hashable, lasts: float, compute: Callable[[], T]) -> T:
        """The answer to a question, at most `lasts` seconds old."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
                if len(self._entries) > MOST:
                    self._entries.popitem(last=False)
            else:
                self._entries.move_to_end(key)
        with entry.lock:
            if time.monotonic() >= entry.good_until:
                entry.value = compute()
                entry.good_until = time.monotonic() + lasts
            return cast(T, entry.value)

    def forget(self) -> None:
        """Something was changed: ask again."""
        with self._lock:
            self._entries.clear()

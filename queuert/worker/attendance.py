"""What a worker tells of itself: that it is there, how busy it is, which handlers are zombies, and how much it did lately.

It is told with the statement that renews the leases, at most every 5 seconds, so that it costs no round trip. Nothing is
written for a single job: results are counted here, and what was counted is written as absolute numbers, so that a statement
whose answer was lost can be sent again. A row for each type says what was done in the last minute, others what was done in
each five minutes; they stay when the worker has stopped, since its hour still counts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from queuert.observing import facts
from queuert.worker.held import Held
from queuert.worker.outcome import Outcome
from queuert.worker.slots import Slots

logger = logging.getLogger("queuert.worker")

MINUTE: Final = 60.0
PART: Final = 300.0

Row = dict[str, Any]
Totals = dict[str, tuple[int, int]]


class Rates:
    """Counts what was completed and what failed, by type. Slots count; one thread writes."""

    def __init__(self, now: float) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, list[int]] = {}
        self._began = now
        self._part = 1
        # What was counted when the part under way began, and what was written last.
        self._base: Totals = {}
        self._written: Totals = {}
        # The rows as they stand, of this part and of the last minute.
        self._rows: dict[tuple[str, int], tuple[int, int]] = {}
        self._history: deque[tuple[float, Totals]] = deque()

    def count(self, type_name: str, outcome: Outcome) -> None:
        """An attempt has ended."""
        failed = outcome.record is not None
        if failed and outcome.record["outcome"] != "failed":  # type: ignore[index]
            return
        with self._lock:
            self._counted.setdefault(type_name, [0, 0])[failed] += 1

    def rows(self, now: float) -> list[Row]:
        """What is to be written, since it has changed."""
        with self._lock:
            totals = {name: (numbers[0], numbers[1]) for name, numbers in self._counted.items()}
        part = 1 + int((now - self._began) // PART)
        if part != self._part:
            self._part, self._base = part, self._written
        self._history.append((now, totals))
        while len(self._history) > 1 and self._history[1][0] <= now - MINUTE:
            self._history.popleft()
        first = self._history[0]
        before = first[1] if first[0] <= now - MINUTE else {}
        found = []
        for name, numbers in totals.items():
            for number, base in ((self._part, self._base), (0, before)):
                row = _since(numbers, base.get(name, (0, 0)))
                # The last minute is told again as long as there is something in it: it is of the time at which it was told.
                if row != self._rows.get((name, number), (0, 0)) or (number == 0 and row != (0, 0)):
                    found.append({"type_name": name, "part": number, "completed": row[0], "failed": row[1]})
        return found

    def written(self, rows: Sequence[Row]) -> None:
        """They are in the database."""
        totals = dict(self._written)
        for row in rows:
            name, numbers = row["type_name"], (row["completed"], row["failed"])
            self._rows[name, row["part"]] = numbers
            if row["part"] == self._part:
                base = self._base.get(name, (0, 0))
                totals[name] = (base[0] + numbers[0], base[1] + numbers[1])
        self._written = totals


def _since(numbers: tuple[int, int], base: tuple[int, int]) -> tuple[int, int]:
    return numbers[0] - base[0], numbers[1] - base[1]


class Attendance:
    """What one worker tells of itself."""

    def __init__(
        self, worker_id: str, name: str, slots: Slots, types: Callable[[], Mapping[str, object]], stopping: Callable[[], bool]
    ) -> None:
        self._worker_id = worker_id
        self._slots = slots
        self._types = types
        self._stopping = stopping
        self._who = {"name": name, "host": socket.gethostname(), "pid": os.getpid(), "version": _version()}
        self._zombies: set[Held] = set()
        self.rates = Rates(time.monotonic())

    def sign(self) -> Row:
        """Who it is, and what it is doing."""
        running = self._slots.running_jobs()
        return {
            **self._who,
            "concurrency": self._slots.size,
            "busy": len(running),
            "waiting": self._slots.waiting,
            "zombies": self._note_zombies(
                {held for held in running if (held.lost is not None or held.hangs) and not held.over}
            ),
            "stopping": self._stopping(),
            "types": list(self._types()),
        }

    def _note_zombies(self, found: set[Held]) -> int:
        """How many there are; each is logged once."""
        for held in found - self._zombies:
            about = {"event": "zombie", "reason": held.lost, **facts(held.job, self._worker_id)}
            text = "The handler of %s runs on though its job was taken away (%s): it occupies a slot until it ends."
            logger.warning(text, held, str(held.lost).replace("_", " "), extra=about)
        self._zombies = found
        return len(found)


def _version() -> str:
    try:
        return version("queuert")
    except PackageNotFoundError:  # run from a directory that is not installed
        return "unknown"

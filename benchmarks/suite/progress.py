"""A bar that shows how far the suite is, by the time that its parts are known to take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness import show_progress
from benchmarks.suite.parts import Part

WIDTH = 30


class Bar:
    """On a terminal one line that changes; elsewhere a line for each part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._total = sum(part.seconds for part in parts)
        self._begun = time.monotonic()
        self._before = 0.0
        self._part: Part | None = None
        self._part_begun = self._begun
        self._terminal = sys.stderr.isatty()

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        self._part, self._part_begun = part, time.monotonic()
        show_progress(self.show)
        if not self._terminal:
            number = self._parts.index(part) + 1
            print(f"[{number}/{len(self._parts)}] {part.name}", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            show_progress(None)
            self._before += part.seconds
            self.clear()
            if not self._terminal:
                print(f"      {time.monotonic() - self._part_begun:.0f} s", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        if not self._terminal or self._part is None:
            return
        now = time.monotonic()
        done = (self._before + min(now - self._part_begun, self._part.seconds)) / self._total
        filled = round(done * WIDTH)
        minutes, seconds = divmod(round(now - self._begun), 60)
        bar = "█" * filled + "░" * (WIDTH - filled)
        print(f"\r\033[K{bar} {done:4.0%}  {minutes}:{seconds:02}  {text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

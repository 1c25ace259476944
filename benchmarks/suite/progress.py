"""A bar that shows how far the suite is, by the time that its parts are known to take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness import show_progress
from benchmarks.suite.parts import Part

WIDTH = 30


class Bar:
    """On a terminal one line that changes, every second at least; elsewhere a line for each part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._total = sum(part.seconds for part in parts)
        self._begun = time.monotonic()
        self._before = 0.0
        self._text = ""
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        begun, over = time.monotonic(), threading.Event()

        def show(text: str) -> None:
            self._text = text
            self._draw(min(time.monotonic() - begun, part.seconds))

        def tick() -> None:
            while not over.wait(1):
                self._draw(min(time.monotonic() - begun, part.seconds))

        ticker = threading.Thread(target=tick, name="benchmarks-progress", daemon=True)
        if self._terminal:
            ticker.start()
            show_progress(show)
        else:
            show_progress(lambda text: None)
            self.say(f"[{self._parts.index(part) + 1}/{len(self._parts)}] {part.name}")
        try:
            yield
        finally:
            over.set()
            show_progress(None)
            self._before += part.seconds
            if self._terminal:
                ticker.join()
            else:
                self.say(f"      {time.monotonic() - begun:.0f} s")

    def print(self, text: str) -> None:
        """A table, above the bar."""
        with self._lock:
            self._clear()
            print(text, flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _draw(self, elapsed: float) -> None:
        done = (self._before + elapsed) / self._total
        filled = round(done * WIDTH)
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        bar = "█" * filled + "░" * (WIDTH - filled)
        with self._lock:
            self._clear()
            print(f"{bar} {done:4.0%}  {minutes}:{seconds:02}  {self._text}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

"""A thread that looks for news from other processes until it is stopped.

It outlives whatever goes wrong: an error ends one try, and the next one starts after a pause that grows. One line in
the log per outage, one when it is over.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from abc import ABC, abstractmethod

logger = logging.getLogger("queuert.notify")

STOP_WITHIN = 2.0
"""Seconds to wait for the thread; only an attempt to connect can take longer, and it ends by itself."""


class Watcher(ABC):
    """Subclasses say how to look."""

    source: str
    """What is watched, for the log."""
    first_pause = 0.1
    longest_pause = 5.0

    def __init__(self, name: str) -> None:
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._out = False
        self._works_since = math.inf

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait for it; also called by the thread itself, out of a callback."""
        self.stopping.set()
        self.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_WITHIN)
            if self._thread.is_alive():
                logger.warning("%s still tries to connect; it ends as soon as that does.", self._thread.name)

    @abstractmethod
    def watch(self) -> None:
        """One try: open, call `works()`, look until `stopping` is set, and close whatever happens."""

    def interrupt(self) -> None:  # noqa: B027 - needed only where waiting for `stopping` is not how it waits
        """Make `watch` see that `stopping` is set."""

    def describe(self, error: Exception) -> str:
        """The error for the log. Only its class: a driver's message can quote the DSN, and the password with it."""
        return type(error).__name__

    def works(self) -> None:
        """From now on nothing is missed."""
        self._works_since = time.monotonic()
        if self._out:
            self._out = False
            logger.info("Notices from %s arrive again.", self.source)

    def _main(self) -> None:
        pause = self.first_pause
        while not self.stopping.is_set():
            self._works_since = math.inf
            try:
                self.watch()
            except Exception as error:
                if not self._out and not self.stopping.is_set():
                    self._out = True
                    logger.warning(
                        "No notices from %s (%s): until that is over, news is found by polling.",
                        self.source,
                        self.describe(error),
                    )
            # What breaks again at once is not well: only a try that lasted brings the short pauses back.
            if time.monotonic() - self._works_since > self.longest_pause:
                pause = self.first_pause
            self.stopping.wait(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, self.longest_pause)

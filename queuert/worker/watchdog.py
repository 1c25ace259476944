"""The watchdog: looks whether the worker's threads make progress, and cuts the connections of those that wait for too long."""

from __future__ import annotations

import logging
import threading

from queuert.context import Context
from queuert.worker.events import Events

logger = logging.getLogger("queuert.worker")

INTERVAL = 1.0


class Watchdog:
    """Looks every second, in one thread."""

    def __init__(self, context: Context, worker_id: str, events: Events) -> None:
        self._database = context.database
        self._worker_id = worker_id
        self._events = events
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            for name in self._database.cut_overdue():
                about = {"event": "no_progress", "worker_id": self._worker_id, "stuck": name}
                text = "%s has waited for the database for too long; its connection is cut, and it tries again on another."
                logger.warning(text, name, extra=about)
            self._events.happened("watched")

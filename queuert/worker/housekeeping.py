"""Calls the chores of an app, such as cleaning up, about once a second; one that fails is logged and called again.

They are not urgent: they wait for nobody's lock for long, and a worker that stops does not wait for them.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from queuert.storage.protocol import Database

logger = logging.getLogger("queuert.worker")

Chore = Callable[[threading.Event, str], object]
"""Called with an event that is set when the worker stops, and the worker's id. It decides itself whether it is time."""

INTERVAL = 1.0
DEADLINE = 60.0  # seconds for each transaction


class Housekeeper:
    """Calls one chore again and again, in a thread of its own: a long one delays neither the reaper nor another chore."""

    def __init__(self, database: Database, chore: Chore, worker_id: str) -> None:
        self._database = database
        self._chore = chore
        self._worker_id = worker_id
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                with self._database.impatient(), self._database.within(DEADLINE):
                    self._chore(self._stopping, self._worker_id)
                failing = False
            except Exception as error:
                if not failing and not self._stopping.is_set():  # once is enough: it may be the database that is away
                    about = {"event": "chore_failed", "worker_id": self._worker_id}
                    logger.warning("A chore of the worker failed; it is called again later.", exc_info=error, extra=about)
                failing = True
            self._stopping.wait(INTERVAL * random.uniform(0.8, 1.2))

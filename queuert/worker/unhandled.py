"""Tells of jobs that wait although nobody here handles their type: a module that was not imported, or a name that changed."""

from __future__ import annotations

import logging
import time
from typing import Final

from queuert.context import Context

logger = logging.getLogger("queuert.worker")

INTERVAL: Final = 60.0  # seconds between two looks
MOST: Final = 50  # types that are looked at


class UnhandledTypes:
    """Looks now and then for due jobs of types without a handler in this app, and says so once for each type."""

    def __init__(self, context: Context, worker_id: str) -> None:
        self._context = context
        self._worker_id = worker_id
        self._told: set[str] = set()
        self._look_at = 0.0

    def look_if_due(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + INTERVAL
        found = sorted(self._find() - self._told)
        if not found:
            return
        self._told.update(found)
        about = {"event": "types_unhandled", "worker_id": self._worker_id, "types": found}
        logger.warning(
            "Jobs are due that nobody here handles: %s. Import the modules that define these types where the app is made, "
            "unless workers of another program run them.",
            ", ".join(map(repr, found)),
            extra=about,
        )

    def _find(self) -> set[str]:
        repository, handled = self._context.repository, set(self._context.types.names_with_handlers())
        with self._context.database.read() as session:
            others = [name for name in repository.job_types(session) if name not in handled][:MOST]
            waits = {name: repository.next_due(session, [name]) for name in others}
        return {name for name, wait in waits.items() if wait is not None and wait <= 0}

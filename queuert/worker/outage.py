"""An outage, as one thread of a worker sees it: told once when it begins and once when it is over, waited out in between.

What cannot be waited out (`storage/trouble.py`) is raised, and takes the worker down.
"""

from __future__ import annotations

import logging
import random

from queuert.context import Context
from queuert.storage.trouble import Trouble

logger = logging.getLogger("queuert.worker")


class Outage:
    """Whether the database refuses what this thread wants of it, and how long to wait before it is asked again.

    `what` says what cannot be done, for the log: "Jobs cannot be claimed". `quotes` is whether the error's text may be
    logged too: it may quote a result.
    """

    def __init__(
        self,
        context: Context,
        worker_id: str,
        what: str,
        over: str,
        *,
        first: float,
        longest: float,
        quotes: bool = True,
    ) -> None:
        self._database = context.database
        self._worker_id = worker_id
        self._what = what
        self._over = over
        self._first = first
        self._longest = longest
        self._quotes = quotes
        self._pause = 0.0

    def __bool__(self) -> bool:
        return self._pause > 0

    def meet(self, error: Exception) -> float:
        """Take note of an error; how many seconds to wait. Raises it if it does not pass.

        An error that is one job's fault passes too: what asks for no job in particular is not to blame, and not to end.
        """
        if not self._database.is_transient(error) and self._database.trouble(error) is not Trouble.JOB:
            raise error
        if not self._pause:
            about = {"event": "database_unreachable", "worker_id": self._worker_id}
            text = f"{type(error).__name__}: {error}" if self._quotes else type(error).__name__
            logger.warning("%s (%s); trying again.", self._what, text, extra=about)
        self._pause = min(max(self._first, self._pause * 2), self._longest)
        return self._pause * random.uniform(0.8, 1.2)

    def is_over(self) -> None:
        if self._pause:
            self._pause = 0.0
            logger.info(self._over, extra={"event": "database_back", "worker_id": self._worker_id})

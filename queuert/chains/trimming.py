"""Trimming what grows without end: attempts and events of jobs that are tried for ever, jobs of chains that go on for ever.

Each step is a short transaction of a bounded number of rows, and a rest as long follows it. What is kept is always the newest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from queuert.context import Context
from queuert.options import Retention
from queuert.storage.protocol import Session

JOBS: Final = 100  # jobs whose histories are trimmed together
PAGE: Final = 1_000  # open chains looked at in one go
ROWS: Final = 500  # rows of a table a transaction

Over = Callable[[], bool]


class Trimmer:
    """Keeps the histories of what stays open within bounds."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def trim(self, policy: Retention, stop: threading.Event, over: Over) -> None:
        """Trim until there is nothing to trim, or it is time to end."""
        repository = self._context.repository
        if policy.attempts is not None:
            for type_name in self._context.read(None, repository.job_types):
                self._trim_histories(type_name, policy.attempts, stop, over)
        if policy.open_chain_jobs is not None:
            for type_name in self._context.read(None, repository.chain_types):
                self._trim_chains(type_name, policy.open_chain_jobs, stop, over)

    def _trim_histories(self, type_name: str, keep: int, stop: threading.Event, over: Over) -> None:
        repository = self._context.repository
        look = partial(repository.long_histories, type_name=type_name, keep=keep, limit=JOBS)
        while not over():
            ids = sorted(self._context.read(None, look))
            if not ids or not self._step(partial(repository.trim_histories, ids=ids, keep=keep, limit=ROWS), stop):
                return

    def _trim_chains(self, type_name: str, keep: int, stop: threading.Event, over: Over) -> None:
        repository = self._context.repository
        after: str | None = None
        while not over():
            look = partial(repository.long_chains, type_name=type_name, longer=keep + 1, after=after, limit=PAGE)
            page = self._context.read(None, look)
            for chain_id in (chain_id for chain_id, is_long in page if is_long):
                delete = partial(repository.delete_middles, ids=[chain_id], keep=keep, limit=ROWS)
                while not over() and self._step(delete, stop) >= ROWS:
                    pass
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def _step(self, work: Callable[[Session], int], stop: threading.Event) -> int:
        started = time.monotonic()
        gone = self._context.write(None, work)
        stop.wait(time.monotonic() - started)
        return gone

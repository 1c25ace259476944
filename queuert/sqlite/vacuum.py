"""Gives the free pages of a SQLite file back to the file system, little by little.

`PRAGMA incremental_vacuum` moves pages from the end of the file into the gaps, in one transaction: after a large cleanup that
would keep every writer waiting for seconds. A step moves a few, and a rest follows in which others get their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PAGES: Final = 100  # a step
LEAST_REST: Final = 0.01


def vacuum_in_steps(step: Callable[[int], int], stop: threading.Event | None = None) -> None:
    """Call `step(pages)`, which gives back so many and says how many are left, until none is or `stop` is set.

    Others free pages all the time: those that were not free at the start are not waited for.
    """
    stop = stop or threading.Event()
    left = 1
    todo: int | None = None
    while left and todo != 0 and not stop.is_set():
        started = time.monotonic()
        left = step(PAGES)
        todo = -(-left // PAGES) if todo is None else todo - 1
        if left and todo:
            stop.wait(max(LEAST_REST, time.monotonic() - started))

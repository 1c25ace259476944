"""Waiting for a condition instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 10, *, every: float = 0.01) -> T:
    """Call `predicate` until it gives something true, and return that; AssertionError after `timeout` seconds.

    An AssertionError inside the predicate counts as "not yet", and is the one that is raised in the end.
    """
    deadline = time.monotonic() + timeout
    while True:
        problem: AssertionError | None = None
        value = None
        try:
            value = predicate()
        except AssertionError as error:
            problem = error
        if value:
            return value
        if time.monotonic() >= deadline:
            raise problem or AssertionError(f"It did not become true within {timeout:g} seconds; last: {value!r}.")
        time.sleep(every)

"""Jobs whose last attempt was lost with its worker may be the reason why it was lost.

So a process runs one of them at a time, whatever number of workers it has, and prefetches nothing meanwhile: if it dies
again, few others die with it, and none of those that merely waited. The turn of one lasts until its result is written:
the next one might be deadly, and take an innocent one's success with it. That success clears it.
"""

from __future__ import annotations

import os
import threading

_turn = threading.Lock()


def take_turn() -> bool:
    """Whether the caller may now claim and run a suspect; then it calls `end_turn()` after it."""
    return _turn.acquire(blocking=False)


def end_turn() -> None:
    _turn.release()


def running() -> bool:
    """Whether this process has a suspect in hand."""
    return _turn.locked()


def _in_child() -> None:
    global _turn
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""Jobs whose last attempts were lost with their workers may be the reason why they were lost.

Suspicion is graded, so that the jobs of a lost host come back side by side, and a deadly one does not take its neighbours along
for ever (`outcome.lost` says what counts):

- After one loss a job runs beside others, but this process prefetches nothing meanwhile: none of those that merely wait for a
  slot die with it.
- After two losses in a row it is a *suspect*. A process runs one of them at a time, whatever number of workers it has. The
  turn of one lasts until its result is written: the next one might be deadly, and take an innocent one's success with it.
  That success clears it.

The lock `_counting` guards the number of jobs in hand that were lost once, and nothing else is taken with it.
"""

from __future__ import annotations

import os
import threading

_turn = threading.Lock()
_counting = threading.Lock()
_lost_before = 0


def take_turn() -> bool:
    """Whether the caller may now claim and run a suspect; then it calls `end_turn()` after it."""
    return _turn.acquire(blocking=False)


def end_turn() -> None:
    _turn.release()


def count_lost_before(change: int) -> None:
    """So many jobs that were lost once are in hand from now on, or no longer."""
    global _lost_before
    with _counting:
        _lost_before += change


def running() -> bool:
    """Whether this process has a job in hand that was lost before."""
    return _lost_before > 0 or _turn.locked()


def _in_child() -> None:
    global _turn, _counting, _lost_before
    _turn, _counting, _lost_before = threading.Lock(), threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""What a child process must forget after fork().

A child inherits its parent's connections as copies of the same sockets and file handles, and its locks in whatever
state another thread left them. It may use none of them, and may not even close them: a closed SQLite handle can take
the parent's WAL away, a closed PostgreSQL connection says goodbye on the parent's socket. So the child keeps them,
unused, for as long as it lives.

Better that there is nothing to inherit: before a fork the parent waits, for a while, until its threads are outside of
their transactions, and closes what it can.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol


class Forkable(Protocol):
    """May also have `before_fork()`, to close what can be closed, and `forked()`, to go on: both are called in the parent."""

    def after_fork(self) -> Iterable[object]:
        """Forget connections and locks, in the child; returns what must never be closed."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_kept: list[object] = []


def watch(holder: Forkable) -> None:
    """Call `holder.after_fork()` in every child from now on, while the holder lives."""
    _watched.add(holder)


def keep(inherited: Iterable[object]) -> None:
    """Never close these, not even when the interpreter ends."""
    for thing in inherited:
        _kept.append(thing)
        try:
            import ctypes

            # Module globals are dropped when the interpreter ends; one reference that nobody counts is not.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
        except (ImportError, AttributeError):
            continue


_one_at_a_time = threading.Lock()


def _before() -> None:
    _one_at_a_time.acquire()
    _tell("before_fork")


def _in_parent() -> None:
    _tell("forked")
    _one_at_a_time.release()


def _tell(method: str) -> None:
    for holder in list(_watched):
        call = getattr(holder, method, None)
        if call is not None:
            call()


def _in_child() -> None:
    _one_at_a_time.release()
    for holder in list(_watched):
        keep(holder.after_fork())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

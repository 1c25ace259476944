"""What a child process must forget after fork().

A child inherits its parent's connections as copies of the same sockets and file handles, and its locks in whatever
state another thread left them. It may use none of them, and may not even close them: a closed SQLite handle can take
the parent's WAL away, a closed PostgreSQL connection says goodbye on the parent's socket. So the child keeps them,
unused, for as long as it lives.

Better that there is nothing to inherit: before a fork the parent waits, for a while, until its threads are outside of
their transactions, and closes what it can.

uWSGI forks in C and tells Python of it only with `py-call-uwsgi-fork-hooks`. Without that, its own hook at least has the child
forget what it inherited.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

logger = logging.getLogger("queuert.forks")


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
_process = os.getpid()
"""Whose connections and locks there are."""


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
            try:
                call()
            except Exception:  # the others must be told all the same
                logger.exception("%r failed at a fork.", holder)


def _in_child() -> bool:
    """Whether something was inherited that must never be closed."""
    global _one_at_a_time, _process
    _one_at_a_time, _process = threading.Lock(), os.getpid()
    before = len(_kept)
    for holder in list(_watched):
        try:
            keep(holder.after_fork())
        except Exception:
            logger.exception("%r failed after a fork.", holder)
    return len(_kept) > before


def _in_child_of_uwsgi() -> None:
    if os.getpid() != _process and _in_child():
        logger.warning(
            "uWSGI has forked a process that had the database in use, and did not tell Python: set "
            "py-call-uwsgi-fork-hooks = true, without which a SQLite file cannot be used here."
        )


def _watch_uwsgi(uwsgi: Any) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("ctypes")  # now, and not in every process
    try:
        importlib.import_module("uwsgidecorators").postfork(_in_child_of_uwsgi)  # beside the hooks of others
    except Exception:  # it is not installed, or wants a master
        uwsgi.post_fork_hook = _in_child_of_uwsgi


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
if "uwsgi" in sys.modules:  # only inside its processes
    _watch_uwsgi(sys.modules["uwsgi"])

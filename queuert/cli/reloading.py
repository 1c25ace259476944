"""`queuert worker --autoreload`: a worker that ends when a source file changes, so that its supervisor starts it anew.

Not the frameworks' own reloaders: those run what they reload in a thread that dies with the process, in the middle of a job,
whose lease would then have to run out. Here the worker is stopped as by a signal.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from queuert import Worker

logger = logging.getLogger("queuert.worker")

LOOK_EVERY: Final = 0.5


class Sources:
    """The files of the modules that are imported, but for Python's own and installed ones."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self._installed = tuple({os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "purelib", "platlib")})
        self._seen: dict[str, int | None] = {}
        self.changed()

    def changed(self) -> str | None:
        """A file that is another, or gone, since it was first seen."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if isinstance(name, str) and name not in self._seen and not os.path.realpath(name).startswith(self._installed):
                self._seen[name] = _state(name)
        return next((name for name, state in self._seen.items() if _state(name) != state), None)


def _state(name: str) -> int | None:
    try:
        return os.stat(name).st_mtime_ns
    except OSError:
        return None


@contextmanager
def stopping_when_changed(worker: Worker, timeout: float, *, watch: bool) -> Iterator[threading.Event]:
    """Stop the worker when a source changes; the event says that it was so."""
    changed, over = threading.Event(), threading.Event()
    if not watch:
        yield changed
        return
    sources = Sources()

    def look() -> None:
        while not over.wait(LOOK_EVERY):
            if not (worker.running and (name := sources.changed())):
                continue
            logger.info("%s has changed: stopping, to start again.", name)
            changed.set()
            with suppress(Exception):  # what killed the worker is raised where it runs
                worker.stop(timeout)
            return

    threading.Thread(target=look, name="queuert-sources", daemon=True).start()
    try:
        yield changed
    finally:
        over.set()

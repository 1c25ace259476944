"""Side effects that wait for the commit.

A transaction collects callbacks; after the commit they run in order, after a rollback they are forgotten. A savepoint that
is rolled back forgets only what was collected inside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("queuert.hooks")

Effect = Callable[[], None]


class Hooks:
    """The effects of one transaction. Used by one thread at a time."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def on_commit(self, effect: Effect) -> None:
        """Run `effect` after the commit."""
        if not callable(effect):
            raise TypeError(f"on_commit takes a callable, not {effect!r}.")
        self._effects.append(effect)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Forget what is collected inside, if the block raises."""
        mark = len(self._effects)
        try:
            yield
        except BaseException:
            del self._effects[mark:]
            raise

    def discard(self) -> None:
        self._effects.clear()

    def flush(self) -> None:
        """Run and forget all effects; one that raises is logged and does not stop the others."""
        while self._effects:
            effects, self._effects = self._effects, []
            for effect in effects:
                try:
                    effect()
                except Exception:
                    logger.exception("An after-commit effect raised; the others still run.")

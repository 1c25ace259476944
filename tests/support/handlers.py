"""Handlers that stay where a test wants them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queuert import Chain, Queuert, RunningJob


class Held:
    """A chain whose handler is running in another thread, until `let_go()`."""

    def __init__(self, app: Queuert, name: str, **options: Any) -> None:
        self._app = app
        self._entered = threading.Event()
        self._leave = threading.Event()
        self.job: RunningJob[Any] | None = None
        app.job(name, **options)(self._handle)
        self.chain: Chain = app.start_chain(name)
        self._thread = threading.Thread(target=app.drain, kwargs={"types": [name]}, daemon=True)

    def _handle(self, job: RunningJob[Any]) -> str:
        self.job = job
        self._entered.set()
        self._leave.wait(30)
        return "by the handler"

    def enter(self) -> None:
        self._thread.start()
        assert self._entered.wait(10), "the handler was not called"

    def let_go(self) -> Chain | None:
        """Let the handler return; the chain after that, or None if it is gone."""
        self._leave.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self._app.get_chain(self.chain.id)


@contextmanager
def held(app: Queuert, name: str = "held", **options: Any) -> Iterator[Held]:
    """A chain that is running for as long as the block, or until `let_go()`."""
    holding = Held(app, name, **options)
    holding.enter()
    try:
        yield holding
    finally:
        holding.let_go()

"""A contender's worker in a process of its own, which tells when handlers start and how much processor time it used."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.latency import define_type
from benchmarks.peers.base import Peer, handled
from queuert import Queuert


@dataclass
class Served:
    """A worker that runs elsewhere."""

    starts: Any
    """A queue of the times at which handlers started."""
    _spent: Any
    _ready: Any
    _stop: Any
    _process: Any

    def wait(self) -> None:
        """Until it is ready."""
        if not self._ready.wait(30):
            raise RuntimeError("The worker's process did not start.")

    def start(self, timeout: float = 10) -> float:
        """When the next handler started."""
        if not self.starts._reader.poll(timeout):
            raise RuntimeError(f"No handler started in {timeout:g} seconds.")
        return float(self.starts.get())

    def stop(self) -> float:
        """The processor time that it used since it was ready, as a part of the time that went by."""
        self._stop.set()
        used = float(self._spent.get())
        self._process.join(30)
        return used


def serve(peer: tuple[str, str] | None, url: str, slots: int, starts: Any, spent: Any, ready: Any, stop: Any) -> None:
    with _worker(peer, url, slots, starts):
        time.sleep(1)  # connections, first polls
        ready.set()
        begun, processor = time.perf_counter(), time.process_time()
        stop.wait()
        spent.put((time.process_time() - processor) / (time.perf_counter() - begun))


@contextmanager
def _worker(peer: tuple[str, str] | None, url: str, slots: int, starts: Any) -> Iterator[None]:
    if peer is None:
        app = Queuert(url)
        define_type(app, starts)
        with app, app.worker(concurrency=slots):
            yield
        return
    module, name = peer
    opened: Peer = getattr(importlib.import_module(module), name)(url)
    handled.reset(starts.put)
    try:
        with opened.worker(slots):
            yield
    finally:
        opened.close()


@contextmanager
def served(peer: type[Peer] | None, url: str, slots: int) -> Iterator[Served]:
    """A worker of this peer, or of the library; it may take a moment until it is ready."""
    spawn = multiprocessing.get_context("spawn")
    starts, spent, ready, stop = spawn.SimpleQueue(), spawn.SimpleQueue(), spawn.Event(), spawn.Event()
    which = None if peer is None else (peer.__module__, peer.__name__)
    process = spawn.Process(target=serve, args=(which, url, slots, starts, spent, ready, stop), daemon=True)
    process.start()
    try:
        yield Served(starts, spent, ready, stop, process)
    finally:
        stop.set()
        process.join(30)
        if process.is_alive():
            process.terminate()


def wait_for(workers: dict[str, Served], notes: list[str]) -> None:
    """Until all are ready; those that do not come are taken out, and it is noted."""
    for name in list(workers):
        try:
            workers[name].wait()
        except RuntimeError as error:
            notes.append(f"{name} failed: {error}")
            del workers[name]

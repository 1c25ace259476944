"""Worker processes that a test starts, watches, stops in their tracks and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import queuert
from support.waiting import eventually

PATIENCE = 30.0


class Mark(NamedTuple):
    """A line that a process wrote: what it came to, with which job, in which attempt."""

    pid: int
    event: str
    job_id: str
    attempt: int
    detail: Any


class Marks:
    """A file to which many processes append lines, one write each, so that none is torn even by a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, event: str, job_id: str = "", attempt: int = 0, detail: Any = None) -> None:
        line = json.dumps([os.getpid(), event, job_id, attempt, detail]) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def all(self, event: str | None = None) -> list[Mark]:
        marks = [Mark(*json.loads(line)) for line in self.path.read_text().splitlines()]
        return [mark for mark in marks if event in (None, mark.event)]

    def count(self, event: str, pid: int | None = None) -> int:
        """How many there are, of one process or of all; quicker than reading them."""
        mark = f', "{event}", ' if pid is None else f'[{pid}, "{event}", '
        return self.path.read_bytes().count(mark.encode())

    def wait(self, event: str, count: int = 1, timeout: float = PATIENCE) -> list[Mark]:
        """Until there are so many of them; all of them."""
        return eventually(lambda: len(found := self.all(event)) >= count and found, timeout)


class Worker:
    """A process that runs a script of ours."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self._log = log

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(PATIENCE)

    def freeze(self) -> None:
        """Stop it in its tracks; returns when it stands."""
        self.signal(signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T", every=0.001)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> int:
        """Have it end in order; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"It did not end:\n{self.log}") from None


class Fleet:
    """All processes of one test. `options` are for every one of them."""

    def __init__(self, directory: Path, script: Path, **options: Any) -> None:
        self._directory = directory
        self._script = script
        self.options = options
        self.marks = Marks(directory / "marks")
        self.workers: list[Worker] = []

    def start(self, *, release: Path | None = None, **options: Any) -> Worker:
        """Start one, on the library that is tested, or on a release that is installed in a directory."""
        log = self._directory / f"log-{len(self.workers)}"
        settings = {"marks": str(self.marks.path), **self.options, **options}
        library = release or Path(queuert.__file__).parents[1]
        path = os.pathsep.join([str(library), str(self._script.parents[1])])
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, str(self._script), json.dumps(settings)],
                env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(Worker(popen, log))
        return self.workers[-1]

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.running]

    def logs(self) -> str:
        return "\n".join(f"--- {number}\n{worker.log}" for number, worker in enumerate(self.workers))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Shows what the processes said when something is not as it should be."""
        try:
            yield
        except AssertionError:
            print(self.logs())
            raise

    def until(self, done: Callable[[], Any], *, size: int, timeout: float, **options: Any) -> int:
        """Keep so many running, as a supervisor would, until it is done; how many had to be replaced."""
        replaced = -(size - len(self.running))

        def step() -> bool:
            nonlocal replaced
            while len(self.running) < size:
                self.start(**options)
                replaced += 1
            return bool(done())

        eventually(step, timeout, every=0.05)
        return replaced

    def end(self) -> None:
        for worker in self.running:
            worker.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

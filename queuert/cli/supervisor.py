"""Keeps a number of worker processes running: for work that needs more than one CPU.

**Why new interpreters, and not `os.fork`.** A fork copies whatever the application did when it was imported: threads
that are not there any more, locks they held, connections, handles of SQLite files that must not even be closed.
Children that are started afresh (`python -m queuert worker ...`) have none of that, and behave exactly like a worker
that was started alone. The price is an import of the application for each. So the supervisor itself never imports the
application and never touches the database, which leaves nothing in it that could fail or leak.

**A child that ends** is replaced. At once if it had been well for a while, otherwise after a delay that doubles with
each failure in a row, each place in the row for itself. Where a start says that the command line is wrong, or that there is
no schema (exit code 2), starting it again cannot help: if it is the very first, or the third such in a row, the supervisor
gives up. One that was killed is mourned by a short-lived process that names in the log the jobs it had in hand.

**Signals.** SIGTERM, SIGINT and SIGHUP are passed on: the first lets running jobs finish, the second ends the
children at once. Children lead sessions of their own, so that a Ctrl-C reaches them once, through here, and not a
second time from the terminal. One that has not ended `KILL_AFTER` seconds after the second signal is killed.

**If the supervisor is killed** nobody passes anything on. So it holds the writing end of a pipe, and every child the
reading end: the kernel closes the former whatever the reason, and at the end of the file the children stop as after a
first signal. (`PR_SET_PDEATHSIG` does the like on Linux only, and fires when the *thread* that forked ends.)
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from queuert.cli.exits import CHANGED, OK, REFUSED, USAGE

logger = logging.getLogger("queuert.supervisor")

FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
WELL_AFTER: Final = 30.0  # seconds; a crash loop turns faster than this
KILL_AFTER: Final = 5.0
REFUSALS: Final = 3  # starts in a row that say that starting cannot help
MOURN_AT_MOST: Final = 5.0

Command = Callable[[int, int], Sequence[str]]
"""From the number of the child, from 1 on, and the descriptor to watch, to what to run."""


class _Child:
    """One place in the row: the process that has it now, or the time at which it gets the next."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.starts = 0
        self.failures = 0
        self.refusals = 0
        self.due = 0.0
        self.done = False


class Supervisor:
    """Runs `processes` children until it is told to stop."""

    def __init__(
        self,
        command: Command,
        processes: int,
        *,
        until_done: bool = False,
        mourn: Callable[[int], Sequence[str]] | None = None,
        patient: bool = False,
        first_delay: float = FIRST_DELAY,
        longest_delay: float = LONGEST_DELAY,
        well_after: float = WELL_AFTER,
    ) -> None:
        self._command = command
        # Whether a child that ends well has done its part, and is not replaced.
        self._until_done = until_done
        self._mourn = mourn
        # Whether one that has run once is started for ever, whatever it says: somebody is editing its code.
        self._patient = patient
        self._mourners: list[subprocess.Popen[bytes]] = []
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._well_after = well_after
        self._children = [_Child(number) for number in range(1, processes + 1)]
        self._received: list[int] = []
        self._handled = 0
        self._kill_at: float | None = None
        self._code = OK

    def run(self) -> int:
        """Supervise until stopped; the exit code: 0 if every child ended well."""
        watched, held = os.pipe()  # held by this process alone, until it ends in whatever way
        try:
            with self._signals() as woken:
                while True:
                    self._pass_signals_on()
                    self._look_after_children()
                    if not self._alive() and (self._stopping or all(child.done for child in self._children)):
                        return self._finished()
                    self._start_due(watched)
                    select.select([woken], [], [], self._patience())
                    _drain(woken)
        finally:
            os.close(watched)
            os.close(held)

    def _finished(self) -> int:
        for mourner in self._mourners:
            try:
                mourner.wait(MOURN_AT_MOST)
            except subprocess.TimeoutExpired:
                mourner.kill()
                mourner.wait()
        return self._code

    @property
    def _stopping(self) -> bool:
        return self._handled > 0 or self._code == USAGE

    def _alive(self) -> list[_Child]:
        return [child for child in self._children if child.process is not None]

    # Signals

    def _pass_signals_on(self) -> None:
        while self._handled < len(self._received):
            number = self._received[self._handled]
            self._handled += 1
            name = signal.Signals(number).name
            if self._handled == 1:
                logger.info("%s: %d processes finish their running jobs.", name, len(self._alive()))
            elif self._handled == 2:
                logger.warning("%s again: the processes end at once.", name)
                self._kill_at = time.monotonic() + KILL_AFTER
                self._code = self._code or 128 + number
            else:
                self._kill_at = time.monotonic()
            # To a worker all of them mean the same.
            self._send(signal.SIGTERM)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for child in self._alive():
            if child.process is not None:
                child.process.send_signal(number)  # does nothing once it was reaped

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Collects signals; yields a descriptor that becomes readable with each, and when a child ends."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("A supervisor runs in the main thread: only that receives signals.")
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)

        def receive(number: int, frame: FrameType | None) -> None:
            self._received.append(number)

        handlers: dict[int, Any] = {signal.SIGTERM: receive, signal.SIGINT: receive, signal.SIGCHLD: lambda *_: None}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            handlers[signal.SIGHUP] = receive
        before_fd = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield readable
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(before_fd)
            os.close(readable)
            os.close(writable)

    # Children

    def _start_due(self, watched: int) -> None:
        now = time.monotonic()
        for child in self._children:
            if self._stopping or child.process is not None or child.done or child.due > now:
                continue
            command = list(self._command(child.number, watched))
            child.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(watched,), start_new_session=True)
            child.started = time.monotonic()
            child.starts += 1
            logger.info("Process %d of %d has started: pid %d.", child.number, len(self._children), child.process.pid)

    def _look_after_children(self) -> None:
        self._mourners = [mourner for mourner in self._mourners if mourner.poll() is None]
        for child in self._alive():
            assert child.process is not None
            code = child.process.poll()
            if code is not None:
                pid, child.process = child.process.pid, None
                self._ended(child, pid, code)

    def _ended(self, child: _Child, pid: int, code: int) -> None:
        if self._stopping:
            # One that dies of the first signal was still being started, and had no jobs.
            if code not in (0, -signal.SIGTERM) and self._code == OK:
                logger.warning("Process %d (pid %d) ended with %s.", child.number, pid, _reason(code))
                self._code = REFUSED
            return
        if self._until_done and code == OK:
            child.done = True
            logger.info("Process %d (pid %d) is done.", child.number, pid)
            return
        if self._patient and code == CHANGED:
            child.failures, child.due = 0, time.monotonic()
            return
        child.refusals = child.refusals + 1 if code == USAGE else 0
        if code == USAGE and (child.starts == 1 or (child.refusals >= REFUSALS and not self._patient)):
            logger.error("Process %d cannot start as asked; giving up.", child.number)
            self._code = USAGE
            self._send(signal.SIGTERM)
            return
        if self._mourn is not None and code < 0:
            command = list(self._mourn(pid))
            self._mourners.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        lived = time.monotonic() - child.started
        delay = self._back_off(child)
        logger.warning(
            "Process %d (pid %d) ended after %.1f s with %s; a new one starts in %.1f s.",
            *(child.number, pid, lived, _reason(code), delay),
        )

    def _back_off(self, child: _Child) -> float:
        """Set when the place gets its next process; in how many seconds."""
        now = time.monotonic()
        child.failures = 0 if now - child.started >= self._well_after else child.failures + 1
        doubled = self._first_delay * 2.0 ** min(child.failures - 1, 30)
        delay = min(doubled, self._longest_delay) if child.failures else 0.0
        child.due = now + delay
        return delay

    def _patience(self) -> float | None:
        """How long to wait at most: until a child is due, or to be killed."""
        now = time.monotonic()
        times = [] if self._kill_at is None else [self._kill_at]
        if not self._stopping:
            times += [child.due for child in self._children if child.process is None and not child.done]
        return max(0.0, min(times) - now) if times else None


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def _reason(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

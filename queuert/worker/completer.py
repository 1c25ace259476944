"""The completer: commits the results of all slots in groups.

While one group is being committed the next one gathers, so groups grow with the load and a lone result waits for nobody. Only
where jobs wait for slots, a few results wait a moment for others: many small commits would slow down all processes. The
queue is bounded: slots wait when the database cannot keep up.

A result whose rows are locked by somebody's open transaction is tried again from time to time, without waiting. If that
does not help, because the lock changes hands all the time, a thread of its own waits for it; the others go on.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from queuert.context import Context
from queuert.errors import DatabaseUnavailableError
from queuert.worker.events import Events
from queuert.worker.held import Held
from queuert.worker.leases import LeaseKeeper
from queuert.worker.outage import Outage
from queuert.worker.outcome import Outcome
from queuert.worker.results import Result, ResultWriter

logger = logging.getLogger("queuert.worker")

GROUP = 200
QUEUE = 1_000
GROUP_SIZE = QUEUE_SIZE = 8_000_000
"""Characters of payloads: 201 results of 1 MB in one group took 2.6 GB in the server and 1.7 GB here."""
HALVE_AFTER = 2
"""Times that a group meets an error that passes before it is written in halves: it may be the group that is too much."""
FEW, GATHER = 100, 0.005
"""Fewer results than that wait so many seconds for others, while jobs wait for slots: it holds up nobody."""
WORTHWHILE, LONGEST_GATHER = 10, 0.020
"""If the wait brought so many more, they wait again, up to so many seconds in all: where several processes share the work, each
has fewer results, and every group costs a commit."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
LOCKED_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before a result whose rows are locked is tried again; after the last, a thread waits for the lock."""
DEADLINE, LOCK_DEADLINE = 60.0, 600.0
"""Seconds that a group may take, or one result that waits for somebody's lock; then it is tried again on another connection."""
MAX_WAITING = 4
"""Threads that wait for locks at a time."""


class Completer:
    """Takes results from the slots and writes them in one thread."""

    def __init__(
        self,
        context: Context,
        worker_id: str,
        keeper: LeaseKeeper,
        events: Events,
        spawn: Callable[[str, Callable[[], None]], None],
        more_to_come: Callable[[], bool],
    ) -> None:
        self._context = context
        self._writer = ResultWriter(context, worker_id)
        self._keeper = keeper
        self._events = events
        self._spawn = spawn
        self._more_to_come = more_to_come
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for the completer
        self._space = threading.Condition(self._lock)  # for the slots
        self._queue: deque[Result] = deque()
        self._queued = 0  # characters
        self._locked: list[tuple[float, Result]] = []
        """When to try it again, and what."""
        self._waiting = 0
        self._idle = False
        self._ending = False
        self._hopeless = threading.Event()
        # Without the errors' texts, which may quote a result.
        self._outage = Outage(
            context,
            worker_id,
            "Results cannot be written",
            "Results are written again.",
            first=FIRST_PAUSE,
            longest=LONGEST_PAUSE,
            quotes=False,
        )
        self._gone = False

    def put(self, held: Held, outcome: Outcome) -> None:
        """Have a result written; waits while too many are waiting already."""
        with self._lock:
            while (len(self._queue) >= QUEUE or self._queued >= QUEUE_SIZE) and not self._hopeless.is_set():
                self._space.wait()
            if not self._gone:
                result = Result(held, outcome)
                self._queue.append(result)
                self._queued += result.size
                if self._idle:
                    self._idle = False
                    self._changed.notify()
                return
        self._end_commit(outcome)

    @staticmethod
    def _end_commit(outcome: Outcome) -> None:
        """Nobody is there to tell what became of it, but a transaction must not stay open."""
        if outcome.commit is not None:
            with suppress(Exception):
                outcome.commit.wait()

    def end(self) -> None:
        """End when everything is written."""
        with self._lock:
            self._ending = True
            self._changed.notify()

    def give_up(self) -> None:
        """The worker is going down: do not try again and again to reach a database that is not there."""
        self._hopeless.set()
        with self._lock:
            self._space.notify_all()

    @property
    def backlog(self) -> int:
        return len(self._queue) + len(self._locked) + self._waiting

    # The thread.

    def run(self) -> None:
        try:
            while group := self._next_group():
                locked = self._insist(group, wait=False)
                self._keeper.let_go(result.held for result in group if result.done)
                for result in locked:
                    self._later(result)
                self._events.happened("completed")
        finally:
            self.give_up()  # slots do not wait for a completer that is gone
            with self._lock:
                self._gone = True
                left, self._queue = self._queue, deque()
            for result in left:
                self._end_commit(result.outcome)

    def _next_group(self) -> list[Result]:
        with self._lock:
            while True:
                group = self._retriable() if self._locked else []
                self._gather()
                size = sum(result.size for result in group)
                while self._queue and len(group) < GROUP and (not group or size + self._queue[0].size <= GROUP_SIZE):
                    result = self._queue.popleft()
                    group.append(result)
                    size += result.size
                    self._queued -= result.size
                if group:
                    self._space.notify_all()
                    return group
                if self._ending and not self._locked and not self._waiting:
                    return []
                self._idle = True
                self._changed.wait(self._until_retry())
                self._idle = False

    def _gather(self) -> None:
        """Let a few results wait for others, as long as these come and nobody is held up."""
        until = time.monotonic() + LONGEST_GATHER
        while 0 < (found := len(self._queue)) < FEW and self._more_to_come() and not self._ending:
            self._changed.wait(GATHER)
            if len(self._queue) - found < WORTHWHILE or time.monotonic() >= until:
                return

    def _retriable(self) -> list[Result]:
        now = time.monotonic()
        due = [result for at, result in self._locked if at <= now]
        self._locked = [entry for entry in self._locked if entry[0] > now]
        return due

    def _until_retry(self) -> float | None:
        if not self._locked:
            return None
        return max(0.001, min(at for at, _ in self._locked) - time.monotonic())

    def _insist(self, group: list[Result], *, wait: bool) -> list[Result]:
        """Write a group, however long the database is away."""
        refused = 0
        while True:
            try:
                with self._context.database.within(LOCK_DEADLINE if wait else DEADLINE):
                    locked = self._writer.write(group, wait=wait)
            except Exception as error:
                pause = self._outage.meet(error)
                self._drop_lost(group)
                refused += not isinstance(error, DatabaseUnavailableError)
                if self._hopeless.wait(pause):
                    self._abandon(group)
                    return []
                if refused >= HALVE_AFTER and len(group) > 1:
                    middle = len(group) // 2
                    return self._insist(group[:middle], wait=wait) + self._insist(group[middle:], wait=wait)
                continue
            self._outage.is_over()
            return locked

    def _later(self, result: Result) -> None:
        with self._lock:
            alone = result.tries >= len(LOCKED_PAUSES) and self._waiting < MAX_WAITING
            if alone:
                self._waiting += 1
            else:
                pause = LOCKED_PAUSES[min(result.tries, len(LOCKED_PAUSES) - 1)]
                self._locked.append((time.monotonic() + pause * random.uniform(0.8, 1.2), result))
        result.tries += 1
        if alone:
            self._spawn("completer-locked", lambda: self._finish_alone(result))

    def _finish_alone(self, result: Result) -> None:
        try:
            self._insist([result], wait=True)
            self._keeper.let_go([result.held])
        finally:
            with self._lock:
                self._waiting -= 1
                self._changed.notify()

    def _drop_lost(self, group: list[Result]) -> None:
        """What was taken away meanwhile needs no writing any more."""
        for result in group:
            if result.held.lost:
                result.done = True

    def _abandon(self, group: list[Result]) -> None:
        left = [result for result in group if not result.done]
        for result in left:
            result.done = True
        if left:
            logger.error(
                "The database cannot be reached, and the worker ends: the results of %d jobs are not written; their leases "
                "run out and they run again.",
                len(left),
            )

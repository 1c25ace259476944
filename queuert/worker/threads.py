"""One start of a worker: its threads, and the order in which they end.

The order of the end, in a thread of its own so that whoever asks for it need not be there when it is over:

1. The dispatcher claims no more, and gives back what was claimed and not started. Reaper and chores end.
2. Handlers that run are waited for. Past the deadline they are told to stop, and waited for all the same.
3. The completer writes what they returned.
4. The lease keeper ends when nothing is in hand any more.

So however long a handler takes, its lease is renewed and its result is written. All threads are daemons: none of this keeps a
process alive that wants to end.

A thread that dies of an error takes the others down in the same order, as far as that is still possible.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from queuert.context import Context
from queuert.errors import DatabaseUnavailableError
from queuert.notify.protocol import Channel, HintingNotifier, Notice, Subscription
from queuert.options import BackoffFunction, Lease
from queuert.worker.attempt import AttemptRun
from queuert.worker.attendance import Attendance
from queuert.worker.claimer import Claimer
from queuert.worker.completer import Completer
from queuert.worker.dispatcher import Dispatcher
from queuert.worker.events import Events
from queuert.worker.held import Held
from queuert.worker.housekeeping import Chore, Housekeeper
from queuert.worker.leases import LeaseKeeper
from queuert.worker.leaving import give_back
from queuert.worker.reaper import Reaper
from queuert.worker.slots import Slots
from queuert.worker.watchdog import Watchdog

logger = logging.getLogger("queuert.worker")

BACKGROUND_CONNECTIONS = 5  # dispatcher, completer, lease keeper, reaper, and one for a result that waits for a lock
BACKGROUND = ("leases", "completer", "dispatcher", "reaper")
LEAST_PATIENCE = 60.0
LOOKS_MISSED = 5
"""A dispatcher that has not gone round for so many polls, and at least so many seconds, is stuck."""
READY_WITHIN = 10.0
STEP = 0.1
LONGEST_WAIT = 3600.0
GRACE = 0.5
"""Seconds that handlers have, after they were told to stop, before they count as unfinished."""


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker was told, checked."""

    name: str
    concurrency: int
    types: tuple[str, ...] | None
    poll_interval: float
    reap_interval: float
    lease: Lease | None
    backoff: BackoffFunction | None
    middleware: tuple[object, ...]
    chores: tuple[Chore, ...]


class WorkerThreads:
    """The threads of a worker, from a start to its end."""

    def __init__(self, context: Context, options: WorkerOptions, worker_id: str, events: Events) -> None:
        self.worker_id = worker_id
        self.pid = os.getpid()
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._context = context
        self._options = options
        self._on_stop: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._deadline = math.inf
        self._ending: threading.Thread | None = None
        self._threads: dict[threading.Thread, str] = {}
        self._subscription: Subscription | None = None
        self._reserved = 0

        self._keeper = LeaseKeeper(context, worker_id, events, lambda: self._dispatcher.look_again())
        self._claimer = Claimer(context, worker_id, options.types, options.lease)
        self._completer = Completer(context, worker_id, self._keeper, events, self._spawn, lambda: self._slots.waiting > 0)
        self._dispatcher = Dispatcher(
            context, worker_id, self._claimer, self._keeper, events, poll_interval=options.poll_interval
        )
        self._slots = Slots(options.concurrency, self._work, self._dispatcher.slot_free)
        self._dispatcher.attach(self._slots)
        self._attendance = Attendance(
            worker_id, options.name, self._slots, lambda: self._claimer.types, lambda: self._ending is not None
        )
        self._keeper.attach(self._attendance)
        self._reaper = Reaper(
            context,
            worker_id,
            interval=options.reap_interval,
            backoff=options.backoff,
            holds=self._keeper.holds,
            events=events,
        )
        self._watchdog = Watchdog(context, worker_id, events)
        self._housekeepers = [Housekeeper(context.database, chore, worker_id) for chore in options.chores]

    # Starting

    def start(self) -> None:
        self._check()
        _remember(self)
        self._reserved = self._options.concurrency + BACKGROUND_CONNECTIONS + len(self._housekeepers)
        self._context.database.reserve(self._reserved)
        channels = frozenset((Channel.SCHEDULED, Channel.OWNERSHIP_LOST))
        notifier = self._context.notifier
        if isinstance(notifier, HintingNotifier):
            self._subscription = notifier.subscribe(self._notice, channels=channels, wants=self._wants)
        else:
            self._subscription = notifier.subscribe(self._notice, channels=channels)
        if not self._context.database.in_block:
            self._keeper.sign()
        self._spawn("leases", self._keeper.run)
        self._keeper.ready.wait(READY_WITHIN)  # it has its connection before the slots can have them all
        self._spawn("completer", self._completer.run)
        for number in range(1, self._options.concurrency + 1):
            self._spawn(f"slot-{number}", partial(self._slots.run, number))
        self._spawn("dispatcher", self._dispatcher.run)
        self._spawn("reaper", self._reaper.run)
        self._spawn("watchdog", self._watchdog.run)
        for number, housekeeper in enumerate(self._housekeepers, 1):
            self._spawn(f"housekeeping-{number}", housekeeper.run)

    def _check(self) -> None:
        """What cannot work is said at once, by whoever starts the worker: no tables, no such file."""
        self._claimer.check()
        if not self._claimer.types:
            logger.warning("The worker %s has no job type with a handler to run.", self.worker_id)
        if self._context.database.in_block:
            return
        try:
            self._claimer.next_due()
        except Exception as error:
            database = self._context.database
            missing = isinstance(error, DatabaseUnavailableError) and not database.may_come_up
            if missing or not database.is_transient(error):
                raise
            logger.warning("The database is not there yet (%s: %s).", type(error).__name__, error)

    def _spawn(self, role: str, work: Callable[[], None]) -> None:
        def main() -> None:
            try:
                work()
            except BaseException as error:
                self._died(thread, error)
            finally:
                self._context.database.thread_ends()
                with self._lock:
                    del self._threads[thread]

        thread = threading.Thread(target=main, name=f"queuert-{self._options.name}-{role}", daemon=True)
        with self._lock:
            self._threads[thread] = role
        try:
            thread.start()
        except BaseException:
            with self._lock:
                del self._threads[thread]
            raise

    def _died(self, thread: threading.Thread, error: BaseException) -> None:
        about = {"event": "worker_died", "worker_id": self.worker_id}
        logger.critical("%s died; the worker %s stops.", thread.name, self.worker_id, exc_info=error, extra=about)
        with self._lock:
            self.error = self.error or error
        self.stop(0)

    def _notice(self, notice: Notice) -> None:
        if notice.channel is Channel.SCHEDULED:
            self._dispatcher.scheduled(notice.payload)
        else:
            self._keeper.doubt(notice.payload)

    def _wants(self, notice: Notice) -> bool:
        return notice.channel is Channel.SCHEDULED and self._dispatcher.wants(notice.payload)

    # One job, in a slot

    def _work(self, held: Held) -> None:
        try:
            self._attempt(held)
        finally:
            held.over = True

    def _attempt(self, held: Held) -> None:
        now = time.monotonic()
        if held.lost or now >= held.trusted_until:
            self._dispatcher.give_back(held)
            return
        options = self._options
        attempt = AttemptRun(
            self._context,
            held.job,
            held.job_type,
            worker_id=self.worker_id,
            middleware=options.middleware,
            backoff=options.backoff,
            claimed=held.claimed,
            settles=True,
        )
        self._keeper.start(held, attempt, now)
        try:
            outcome = attempt.run()
        except BaseException as error:  # a KeyboardInterrupt of the handler's own making: there is nobody to interrupt here
            outcome = attempt.failed(error)
        held.over = True
        if not (outcome.lost or held.lost):
            self._attendance.rates.count(held.job.type_name, outcome)
        if outcome.lost and not held.lost:
            outcome = attempt.broken_off()
        if outcome.commit is None and (outcome.committed or held.lost):
            attempt.over(outcome, written=False)
            self._keeper.let_go([held])
        else:
            self._completer.put(held, outcome)
        if outcome.fatal is not None:
            raise outcome.fatal

    # Ending

    @property
    def stopping(self) -> bool:
        return self._ending is not None

    def stop(self, timeout: float) -> None:
        """Begin to end, or be quicker about it; returns at once."""
        with self._lock:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            if self._ending is not None:
                return
            self._ending = threading.Thread(target=self._end, name=f"queuert-{self._options.name}-stop", daemon=True)
            callbacks, self._on_stop = self._on_stop, []
        try:
            self._ending.start()
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            self._end()
        for callback in callbacks:
            callback()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the end, for so long, or until the deadline has passed; whether it is the end."""
        own = math.inf if timeout is None else time.monotonic() + timeout
        while not self.ended.is_set():
            deadline = own if timeout is not None else self._deadline
            left = deadline + GRACE - time.monotonic()
            if left <= 0:
                break
            self.ended.wait(min(left, LONGEST_WAIT if timeout is not None else STEP))
        return self.ended.is_set()

    def is_own_thread(self) -> bool:
        """Whether the caller runs in one of the threads that would be waited for."""
        return threading.current_thread() in self._threads

    def unfinished(self) -> list[str]:
        """The handlers that still run, and the results that are still to be written."""
        now = time.monotonic()
        return [
            f"{held} (its result is not written yet)" if held.over else f"{held} (for {now - held.started:.1f} s)"
            for held in (*self._keeper.in_hand(), *self._keeper.zombies)
            if held.started is not None
        ]

    def stuck(self) -> list[str]:
        """The background threads that make no progress. One that waits for a database that is away does: it tries again."""
        if self.stopping:
            return []
        with self._lock:
            alive = set(self._threads.values())
        found = [role for role in BACKGROUND if role not in alive]
        patience = max(LEAST_PATIENCE, LOOKS_MISSED * self._options.poll_interval)
        if "dispatcher" in alive and time.monotonic() - self._dispatcher.looked_at > patience:
            found.append("dispatcher")
        return found

    @property
    def zombies(self) -> int:
        """How many slots are taken by handlers that did not end when their time was up."""
        return len(self._keeper.zombies)

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this when the end begins; at once if it has."""
        with self._lock:
            if self._ending is None:
                self._on_stop.append(callback)
                return
        callback()

    def _end(self) -> None:
        try:
            self._end_in_order()
        except BaseException as error:
            logger.critical("The worker %s could not end in order.", self.worker_id, exc_info=error)
            self.error = self.error or error
        finally:
            self._context.database.thread_ends()
            about = {"event": "worker_stopped", "worker_id": self.worker_id}
            logger.info("The worker %s has stopped.", self.worker_id, extra=about)
            self.ended.set()
            _alive.discard(self)

    def _end_in_order(self) -> None:
        self._keeper.sign_soon()
        self._dispatcher.stop(lambda: time.monotonic() >= self._deadline)
        self._reaper.stop()
        for housekeeper in self._housekeepers:
            housekeeper.stop()
        self._slots.close()
        self._join("slot-", late=self._tell_to_stop)
        self._join("dispatcher")
        self._dispatcher.return_all()  # what a slot refused to start after the dispatcher had ended
        self._completer.end()
        self._join("completer", late=self._completer.give_up)
        self._give_back()
        self._keeper.end()
        self._join("leases", "reaper")
        self._watchdog.stop()
        self._join("watchdog")
        if self._subscription is not None:
            self._subscription.close()
        self._context.database.reserve(-self._reserved)

    def _give_back(self) -> None:
        """What is still in hand, because a thread died, goes back: its result is not written, and no attempt is used up."""
        left = self._keeper.in_hand()
        if left:
            give_back(self._context, self.worker_id, left, "The worker died before the result was written.")
            self._keeper.let_go(left)

    def leave(self) -> None:
        """The process ends, or the app is closed: what handlers still work on goes back, and nobody takes it for lost."""
        if self.ended.is_set() or self.pid != os.getpid():
            return
        left = [held for held in self._keeper.in_hand() if not held.over]
        if not left:
            return
        self._keeper.let_go(left)
        for held in left:
            held.lose("stopping")
        give_back(self._context, self.worker_id, left, "The worker has left before the handler came to its end.")

    def _join(self, *roles: str, late: Callable[[], None] | None = None) -> None:
        """Wait for threads to end, however long that takes; `late` is called once if the deadline passes."""
        with self._lock:
            threads = [thread for thread, role in self._threads.items() if role.startswith(roles)]
        for thread in threads:
            while thread.is_alive():
                if late is None:
                    thread.join()
                    continue
                # In short steps, since the deadline may move: somebody loses patience.
                thread.join(max(0.0, min(self._deadline - time.monotonic(), STEP)))
                if time.monotonic() >= self._deadline and thread.is_alive():
                    late()
                    late = None

    def _tell_to_stop(self) -> None:
        running = self._slots.running_jobs()
        about = {"event": "handlers_told_to_stop", "worker_id": self.worker_id, "jobs": len(running)}
        logger.info("The worker %s tells %d handlers to stop.", self.worker_id, len(running), extra=about)
        for held in running:
            held.tell("stopping")


# All that have not ended, in this process or, in a forked child, in its parent.
_alive: set[WorkerThreads] = set()
_at_exit: list[int] = []


def _remember(threads: WorkerThreads) -> None:
    _alive.add(threads)
    if os.getpid() not in _at_exit:
        _at_exit.append(os.getpid())
        # Here, after those of the database's module: they run in the opposite order, and connections are still needed.
        atexit.register(leave_all)


def leave_all(context: Context | None = None) -> None:
    """What the workers of an app, or of this process, have not finished goes back."""
    for threads in list(_alive):
        if context is None or threads._context is context:
            try:
                threads.leave()
            except Exception:
                logger.exception("The worker %s could not give back what it has in hand.", threads.worker_id)

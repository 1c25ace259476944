"""The worker: a pool of threads in this process that claims jobs and runs their handlers.

    with app.worker(concurrency=4):
        ...

    app.worker(concurrency=10).run()  # in a process of its own: until SIGTERM or SIGINT

Each start has threads and an id of its own (`threads.py`), so a worker can be started again after it stopped.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from queuert.context import Context
from queuert.errors import QueuertError
from queuert.job_types import BackoffOption, JobTypeOrName, TypeOptions
from queuert.options import UNSET, Duration, Lease, seconds
from queuert.storage import forks
from queuert.worker.claimer import Claimer, checked_types
from queuert.worker.events import Events
from queuert.worker.housekeeping import Chore
from queuert.worker.reaper import LONGEST_INTERVAL, PART_OF_LEASE
from queuert.worker.threads import WorkerOptions, WorkerThreads

logger = logging.getLogger("queuert.worker")

POLL_INTERVAL = 5.0
STOP_TIMEOUT = 30.0
MAX_CONCURRENCY = 1_000
MAX_NAME_LENGTH = 100

_numbers = itertools.count(1)


class Worker:
    """Runs jobs until it is stopped.

    `types` limits it to some of the types that have a handler here. `lease` and `backoff` are for types that set none of
    their own. `poll_interval` is the safety net behind the wake-ups, `reap_interval` how often jobs of dead workers are looked
    for (by default a quarter of the shortest lease, at most 15 seconds).
    """

    def __init__(
        self,
        context: Context,
        *,
        concurrency: int = 1,
        types: Iterable[JobTypeOrName] | None = None,
        name: str | None = None,
        poll_interval: Duration = POLL_INTERVAL,
        reap_interval: Duration | None = None,
        lease: Lease | None = None,
        backoff: BackoffOption | None = None,
        middleware: Sequence[object] = (),
        housekeeping: Sequence[Chore] = (),
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int):
            raise TypeError(f"concurrency must be a whole number, not {concurrency!r}.")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency must be from 1 to {MAX_CONCURRENCY:,}, not {concurrency}.")
        checked = TypeOptions(lease=lease, backoff=backoff, middleware=middleware)
        names = checked_types(context, types)
        if reap_interval is None:
            leases = Claimer(context, "", names, lease).types.values()
            shortest = min((each.duration for each in leases), default=LONGEST_INTERVAL / PART_OF_LEASE)
            reap_interval = min(LONGEST_INTERVAL, shortest * PART_OF_LEASE)
        self._options = WorkerOptions(
            name=_checked_name(name),
            concurrency=concurrency,
            types=names,
            poll_interval=seconds(poll_interval, "poll_interval", positive=True),
            reap_interval=seconds(reap_interval, "reap_interval", positive=True),
            lease=lease,
            backoff=None if checked.backoff is UNSET else backoff,
            middleware=tuple(checked.middleware),
            chores=tuple(housekeeping),
        )
        self._context = context
        self.events = Events()
        self._lock = threading.Lock()
        self._threads: WorkerThreads | None = None
        # Those whose error was raised to somebody: until then `run()` does not start others over it.
        self._raised: WorkerThreads | None = None
        self._id = worker_id(self._options.name)
        forks.watch(self)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<Worker {self._id!r}, {state}>"

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def id(self) -> str:
        """Unique for every start, whatever the name."""
        return self._id

    @property
    def running(self) -> bool:
        """Whether it claims jobs."""
        threads = self._threads
        return threads is not None and not threads.stopping

    @property
    def error(self) -> BaseException | None:
        """What killed it, if something did."""
        threads = self._threads
        return threads.error if threads is not None else None

    def stuck_threads(self) -> list[str]:
        """The background threads that make no progress; also during an outage there should be none."""
        threads = self._threads
        return threads.stuck() if threads is not None else []

    @property
    def unfinished(self) -> list[str]:
        """After `stop()`: the jobs whose handlers still run, or whose results are still to be written."""
        threads = self._threads
        return threads.unfinished() if threads is not None and threads.stopping else []

    @property
    def zombies(self) -> int:
        """How many of its slots are taken by handlers that did not end when their `timeout` was over."""
        threads = self._threads
        return threads.zombies if threads is not None else 0

    def start(self) -> None:
        """Start the threads and return."""
        self._start()

    def _start(self) -> WorkerThreads:
        with self._lock:
            if self.running:
                raise QueuertError(f"The worker {self._id} runs already: stop it first, or make another.")
            before = self._threads
            if before is not None:
                self._id = worker_id(self._options.name)
            # Known before it starts: its first job may stop it.
            threads = self._threads = WorkerThreads(self._context, self._options, self._id, self.events)
            try:
                threads.start()
            except BaseException:
                threads.stop(0)
                self._threads = before
                raise
        self._introduce()
        return threads

    def _introduce(self) -> None:
        """Which database, types and slots: what is wrong most often when a worker seems to do nothing."""
        types = sorted(self._options.types or self._context.types.names_with_handlers())
        slots, database = self._options.concurrency, repr(self._context.database)
        about = {"event": "worker_started", "worker_id": self._id, "types": types, "concurrency": slots, "database": database}
        logger.info(
            "The worker %s has started on %s with %s, for %s.",
            self._id,
            database,
            "1 slot" if slots == 1 else f"{slots} slots",
            ", ".join(types) if types else "no types at all: import the modules that define them",
            extra=about,
        )

    def stop(self, timeout: Duration | None = STOP_TIMEOUT) -> bool:
        """Claim no more, give back what was not started, and wait for the handlers that run.

        Past the timeout these are told to stop. False if some run on all the same (`unfinished` names them): their leases
        are renewed, and what they return is written, for as long as the process lives. From inside a handler it returns at
        once. None waits for ever.
        """
        limit = float("inf") if timeout is None else seconds(timeout, "timeout")
        threads = self._threads
        if threads is None:
            return True
        threads.stop(limit)
        ended = threads.ended.is_set() if threads.is_own_thread() else threads.wait(limit)
        self._raise_error(threads)
        if not ended:
            about = {"event": "worker_unfinished", "worker_id": threads.worker_id}
            unfinished = ", ".join(threads.unfinished())
            logger.warning("The worker %s has stopped, but not finished: %s.", threads.worker_id, unfinished, extra=about)
        return ended

    def run(self, *, timeout: Duration | None = STOP_TIMEOUT) -> bool:
        """Work until stopped: by `stop()`, or, in the main thread, by SIGTERM or SIGINT.

        The first signal stops it as `stop(timeout)` does, whose result is returned; a second one ends the process at once.
        """
        limit = float("inf") if timeout is None else seconds(timeout, "timeout")
        # A SimpleQueue, since a signal may come while this thread holds the lock of anything else.
        inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with _signals(inbox.put):
            threads = self._threads
            if threads is None or (threads.stopping and (threads.error is None or threads is self._raised)):
                threads = self._start()
            threads.on_stop(lambda: inbox.put(None))
            received = inbox.get()
            if received is not None:
                about = {"event": "worker_signalled", "worker_id": self._id}
                logger.info("The worker %s stops on %s.", self._id, signal.Signals(received).name, extra=about)
                threads.stop(limit)
            ended = threads.wait()
        if not ended:
            threads.leave()
        self._raise_error(threads)
        return ended

    def _raise_error(self, threads: WorkerThreads) -> None:
        if threads.error is not None:
            self._raised = threads
            raise threads.error

    def __enter__(self) -> Worker:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise
            logger.exception("The worker %s died while the block it was used in raised.", self._id)

    def after_fork(self) -> Iterable[object]:
        """In a child there are no threads of ours: this worker has not been started there."""
        inherited, self._threads = self._threads, None
        self._lock = threading.Lock()
        self._id = worker_id(self._options.name)
        return () if inherited is None else (inherited,)


def worker_id(name: str) -> str:
    """An id that no other start of any worker has."""
    return f"{name}@{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


def _checked_name(name: str | None) -> str:
    if name is None:
        return f"worker-{next(_numbers)}"
    if not isinstance(name, str):
        raise TypeError(f"The name of a worker must be a string, not {name!r}.")
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"The name of a worker must have from 1 to {MAX_NAME_LENGTH} printable characters, not {name!r}.")
    return name


@contextmanager
def _signals(receive: Callable[[int], None]) -> Iterator[None]:
    """Receive the first SIGTERM or SIGINT; the second ends the process. Elsewhere than in the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        receive(number)

    before: dict[int, Any] = {}
    try:
        for each in (signal.SIGTERM, signal.SIGINT):
            before[each] = signal.signal(each, handle)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python, and cannot be set back
                signal.signal(number, handler)

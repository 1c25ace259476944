"""A fair read/write lock for threads.

Why it exists. SQLite lets one connection write at a time. A second one gets SQLITE_BUSY, and all that SQLite offers
is to sleep and ask again: whoever asks at the right moment wins, and a thread can lose for seconds while others pass
it. Within one process we know who waits, so we can do better: the writers queue here, each is woken exactly when its
turn comes, and the busy timeout is left to what it is needed for, other processes.

A database file in WAL mode uses only the write side, since its readers have their own snapshot. A shared `:memory:`
database has no WAL: a reader would see half a transaction, or be refused with SQLITE_LOCKED, so it uses both sides.

The standard library has no such lock. A plain `threading.Lock` would serialise the readers too, and gives no order: a
thread that releases it and takes it again at once usually gets it, and the others starve.

The rules:

- Readers share, a writer excludes everybody.
- Everybody who cannot go in at once joins one queue, and the queue is served in order of arrival. Readers next to
  each other in it go in together.
- So a queued writer holds back every reader that comes after it, although the readers inside would let it in: a
  stream of overlapping readers cannot starve a writer. It does not hold back readers that were there before it: a
  stream of writers cannot starve a reader either. Whoever waits, waits for a finite number of turns, and writers go
  in the order they came in.
- The lock is handed over, not thrown open. The one who leaves makes the next one the owner and wakes that thread
  only. Nobody can slip in between, and a hundred waiting threads do not wake up to find that ninety-nine of them must
  sleep again.
- It is not reentrant. Taking either side while holding either side would wait for oneself: it raises RuntimeError at
  once. So does releasing what this thread does not hold.
- A wait that ends early, by its timeout or by an interrupt, leaves the queue as if it had never been in it; those it
  held back go in.

All state is guarded by one mutex, held for a few instructions; each waiting thread sleeps on a `threading.Condition`
of its own over that mutex. After a fork the child must make a new lock: the threads that held the old one do not
exist there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class _Waiter:
    """A thread in the queue."""

    __slots__ = ("granted", "thread", "turn", "writes")

    def __init__(self, mutex: threading.Lock, *, writes: bool) -> None:
        self.turn = threading.Condition(mutex)
        self.thread = threading.get_ident()
        self.writes = writes
        self.granted = False


class RWLock:
    """Many readers or one writer, in order of arrival.

    with lock.read(): ...
    with lock.write(timeout=5): ...  # TimeoutError if it takes longer
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._readers: set[int] = set()
        self._writer: int | None = None
        self._queue: deque[_Waiter] = deque()
        self._waiting_writers = 0

    @property
    def waiting_writers(self) -> int:
        """How many writers are queued. It may be out of date as soon as it is read."""
        return self._waiting_writers

    @property
    def waiting_readers(self) -> int:
        """How many readers are queued. It may be out of date as soon as it is read."""
        with self._mutex:
            return len(self._queue) - self._waiting_writers

    @contextmanager
    def read(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the read side."""
        self.acquire_read(timeout)
        try:
            yield
        finally:
            self.release_read()

    @contextmanager
    def write(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the write side."""
        self.acquire_write(timeout)
        try:
            yield
        finally:
            self.release_write()

    @property
    def held(self) -> bool:
        """Whether this thread holds either side."""
        thread = threading.get_ident()
        return self._writer == thread or thread in self._readers

    def acquire_read(self, timeout: float | None = None) -> None:
        """Take the read side; TimeoutError if that takes longer than `timeout` seconds."""
        self._acquire(timeout, writes=False)

    def acquire_write(self, timeout: float | None = None) -> None:
        """Take the write side; TimeoutError if that takes longer than `timeout` seconds."""
        self._acquire(timeout, writes=True)

    def release_read(self) -> None:
        thread = threading.get_ident()
        with self._mutex:
            if thread not in self._readers:
                raise RuntimeError("This thread does not hold the read side of the lock.")
            self._leave(thread)

    def release_write(self) -> None:
        thread = threading.get_ident()
        with self._mutex:
            if self._writer != thread:
                raise RuntimeError("This thread does not hold the write side of the lock.")
            self._leave(thread)

    def _acquire(self, timeout: float | None, *, writes: bool) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        thread = threading.get_ident()
        with self._mutex:
            if self._writer == thread or thread in self._readers:
                held = "write" if self._writer == thread else "read"
                raise RuntimeError(f"This thread holds the {held} side of the lock already and would wait for itself.")
            if not self._queue and self._admits(writes):
                self._enter(thread, writes)
                return
            self._wait(_Waiter(self._mutex, writes=writes), deadline)

    def _wait(self, waiter: _Waiter, deadline: float | None) -> None:
        self._queue.append(waiter)
        self._waiting_writers += waiter.writes
        try:
            while not waiter.granted:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise TimeoutError(f"The {'write' if waiter.writes else 'read'} side of the lock is still taken.")
                waiter.turn.wait(remaining)
        except BaseException:
            if waiter.granted:  # an interrupt that came with the turn
                self._leave(waiter.thread)
            else:
                self._queue.remove(waiter)
                self._waiting_writers -= waiter.writes
                self._serve()
            raise

    # The rest is called with the mutex held.

    def _admits(self, writes: bool) -> bool:
        return self._writer is None and not (writes and self._readers)

    def _enter(self, thread: int, writes: bool) -> None:
        if writes:
            self._writer = thread
        else:
            self._readers.add(thread)

    def _leave(self, thread: int) -> None:
        if self._writer == thread:
            self._writer = None
        else:
            self._readers.discard(thread)
        self._serve()

    def _serve(self) -> None:
        """Let in who is next: one writer, or the readers before the next writer."""
        while self._queue and self._admits(self._queue[0].writes):
            waiter = self._queue.popleft()
            self._waiting_writers -= waiter.writes
            self._enter(waiter.thread, waiter.writes)
            waiter.granted = True
            waiter.turn.notify()

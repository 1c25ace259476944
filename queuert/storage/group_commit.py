"""Group commit on SQLite: transactions that follow one another share one COMMIT, and so one wait for the disk.

There is one writer at a time. When a transaction is done and another already waits for its turn, committing first would make
that one wait for the disk as well. Instead the transaction is left open and handed over: the next one runs in it, in a
savepoint of its own, and so on. The last one commits for all. Nobody outside sees uncommitted work: readers have other
connections.

Only work that can be run again shares: the blocks of handlers. `app.transaction()` and the like commit alone, and what went
wrong with them is what they are told.

What a member may rely on:

- It returns when its work is on the disk, as if it had committed alone; or, if it left before, it is told then.
- If it fails, its savepoint is undone and the others are not touched.
- If the COMMIT fails, or something rolls the whole transaction back, none of the members is saved, and each gets an error.
  Whose fault it was cannot be told (it may be a deferred foreign key that one of them violated), so the error is one that
  passes. A handler that was undone so is run again at no cost of an attempt, and from then on it shares with nobody: if
  it was the culprit, it gets the error for itself.

A group ends when nobody waits, or when it is large or old. If the one that was to go on never comes (its wait was
interrupted), one of those who wait for the COMMIT takes the lock and commits.

A worker's slot does not even wait for the COMMIT that it left to others: it goes on with the next job, and the completer
waits, and tells what became of the job. But it never leaves the transaction open with nobody there to go on: the file would
be locked for other processes while a handler runs.

The group is owned by whoever holds the write lock; `done` is the only part that others look at.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Final

from queuert.storage.guard import GuardedConnection

MOST_MEMBERS: Final = 32
OLDEST: Final = 0.010  # seconds: about thirty waits for a disk that takes 300 µs
PATIENCE: Final = 0.05  # seconds until a waiting member looks whether it has to commit itself


class SharedCommitError(sqlite3.OperationalError):
    """The COMMIT that a transaction shared with others failed, for one of them or for all."""


class Group:
    """Transactions of one connection that are committed together."""

    def __init__(self, conn: GuardedConnection) -> None:
        self.conn = conn
        self.members = 0
        """How many have done their work and wait for the COMMIT."""
        self._started = time.monotonic()
        self._done = threading.Event()
        self._error: BaseException | None = None

    @property
    def full(self) -> bool:
        return self.members >= MOST_MEMBERS or time.monotonic() - self._started > OLDEST

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    def end(self, error: BaseException | None = None, *, alone: bool = False) -> None:
        """It was committed, or failed; `alone` says that there was one member, whose error it must be."""
        self._error = error
        if error is not None and not (alone and isinstance(error, Exception)):  # an interrupt is for one thread only
            self._error = SharedCommitError(f"a COMMIT that is shared with other transactions failed: {error!r}")
            self._error.__cause__ = error
        self._done.set()

    def wait(self) -> bool:
        """Whether it has ended, after some patience; raises what it failed with."""
        if not self._done.wait(PATIENCE):
            return False
        self.check()
        return True

    def check(self) -> None:
        if self._error is not None:
            raise self._error

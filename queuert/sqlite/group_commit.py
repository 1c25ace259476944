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

The group is owned by whoever holds the write lock, and `GroupCommit` is for that thread alone; whether a group has ended is the
only thing that others look at.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from queuert.hooks import Hooks
from queuert.sqlite.connections import Connections
from queuert.sqlite.errors import SharedCommitError
from queuert.sqlite.guard import COMMIT, SAVEPOINT, GuardedConnection
from queuert.sqlite.session import SqliteSession
from queuert.sqlite.transaction import begin_immediate, roll_back, transact

T = TypeVar("T")

MOST_MEMBERS: Final = 32
OLDEST: Final = 0.010  # seconds: about thirty waits for a disk that takes 300 µs
PATIENCE: Final = 0.05  # seconds until a waiting member looks whether it has to commit itself

_MEMBER: Final = f"SAVEPOINT {SAVEPOINT}"
_MEMBER_DONE: Final = f"RELEASE {SAVEPOINT}"
_MEMBER_UNDONE: Final = f"ROLLBACK TO {SAVEPOINT}"


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


class GroupCommit:
    """The group of one database that is open, if one is: its members come and go, and one of them commits."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._group: Group | None = None

    def transact(self, work: Callable[[Any], T], hooks: Hooks, *, single: bool) -> T:
        """Our own short transaction: in the one that was handed over, or alone."""
        group = self._open_group()
        if group is not None:
            with suppress(SharedCommitError):  # it was for another's fault: we do it again, alone
                return self._transact_in(group, work, hooks)
        return transact(self._connections, work, hooks, single=single)

    def enter(self, *, shared: bool) -> Group:
        """Join the transaction that was handed over, or begin one. Who does not share is alone."""
        if not shared:
            self.commit_for_members()
        group = self._open_group()
        if group is None:
            group = self._group = Group(begin_immediate(self._connections))
        try:
            group.conn.own(_MEMBER)
        except BaseException as error:  # an interrupt: nobody is there to go on in it, and the file would stay locked
            if group.members:
                self.commit_for_members()
            else:
                self._fail(error)
            raise
        return group

    def leave(self, group: Group, error: BaseException | None) -> bool:
        """Our work in it is done, or after an `error` undone; True if there still is a transaction to commit or hand over."""
        conn = group.conn
        if not conn.in_transaction:  # rolled back by SQLite itself, with everybody's work
            self._group = None
            group.end(error or sqlite3.OperationalError("the transaction was rolled back; the disk may be full"))
            self._connections.close_if_retired(conn)
            return False
        try:
            if error is not None:
                conn.own(_MEMBER_UNDONE)
            conn.own(_MEMBER_DONE)
        except BaseException as broken:  # or interrupted, and nobody knows how far it came
            self._fail(broken)
            raise
        group.members += error is None
        return True

    def commit(self) -> None:
        """Commit the open group, if there is one, and tell its members; raises what one of them is to raise."""
        group = self._open_group()
        if group is None:
            return
        try:
            group.conn.own(COMMIT)
            self._end(group)
        except Exception as error:
            self._fail(error, alone=group.members == 1)
            group.check()
            raise
        except BaseException as interrupt:  # it may have come with the answer: then the COMMIT is done
            if group.conn.in_transaction:
                self._fail(interrupt)
            else:
                self._end(group)
            raise

    def commit_for_members(self) -> None:
        """Commit the open group, if there is one, for others: what it fails with is theirs."""
        with suppress(Exception):
            self.commit()

    def is_open(self, group: Group) -> bool:
        return self._group is group

    def forget(self) -> None:
        """In a forked child: the group is the parent's."""
        self._group = None

    def _open_group(self) -> Group | None:
        group = self._group
        if group is not None and not group.conn.in_transaction:
            # An interrupt came between its COMMIT and the word of it. Who waits for it has to look.
            self._fail(sqlite3.OperationalError("the transaction has ended"))
            return None
        return group

    def _transact_in(self, group: Group, work: Callable[[Any], T], hooks: Hooks) -> T:
        """Run `work` in a transaction that was handed over, and commit both."""
        group.conn.own(_MEMBER)
        try:
            result = work(SqliteSession(group.conn, hooks))
            group.conn.own(_MEMBER_DONE)
        except BaseException:
            hooks.discard()
            try:
                group.conn.own(_MEMBER_UNDONE)
                group.conn.own(_MEMBER_DONE)
            except sqlite3.Error as broken:  # SQLite has rolled all of it back, or an interrupt came after the release
                self._fail(broken)
            else:
                self.commit_for_members()
            raise
        group.members += 1
        try:
            self.commit()
        except Exception as error:
            hooks.discard()
            raise SharedCommitError(str(error)) from error
        return result

    def _end(self, group: Group) -> None:
        self._group = None
        group.end()
        self._connections.close_if_retired(group.conn)

    def _fail(self, error: BaseException, *, alone: bool = False) -> None:
        group, self._group = self._group, None
        if group is not None:
            roll_back(self._connections, group.conn)
            group.end(error, alone=alone)
            self._connections.close_if_retired(group.conn)

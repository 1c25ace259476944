"""A transaction for user code on SQLite: one member of a group that is committed together (`group_commit.py`)."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING

from queuert.errors import TransactionMisuseError
from queuert.hooks import Hooks
from queuert.sqlite.group_commit import Group
from queuert.sqlite.session import BlockSession, SqliteSession
from queuert.storage.protocol import Block, Commit

if TYPE_CHECKING:
    from queuert.sqlite.database import SqliteDatabase


class SqliteBlock(Block):
    """A transaction for user code: one member of a group, and unless it is `shared` its only one.

    Entered and left by one thread, which holds the write lock in between.
    """

    def __init__(self, database: SqliteDatabase, *, shared: bool) -> None:
        self._database = database
        self._shared = shared
        self._hooks = Hooks()
        self._pid = os.getpid()

    def __enter__(self) -> SqliteSession:
        database = self._database
        database._refuse_inside_block()
        self._group = group = database._enter_group(shared=self._shared)
        database._enter_block()
        self.session = session = BlockSession(group.conn, self._hooks)
        group.conn.lend(session)
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._left:
            return
        if error is not None:
            self._undo(error)
            return
        self.commit().wait()

    def commit(self) -> Commit:
        """Hand the transaction over, or COMMIT if it is our turn to: who shares waits for another's."""
        self._left = True
        conn = self._group.conn
        try:
            if os.getpid() != self._pid:
                raise TransactionMisuseError("The process forked inside this block: only the parent can commit it.")
            conn.check_open()
        except BaseException as error:
            self._undo(error)
            raise
        self._database._exit_block()
        try:
            conn.reclaim()
        except BaseException as error:
            self._database._leave_group(self._group, error, shared=self._shared)
            raise
        self._database._leave_group(self._group, shared=self._shared)
        return _GroupCommit(self._database, self._group, self._hooks)

    def _undo(self, error: BaseException) -> None:
        self._hooks.discard()
        self._database._exit_block()
        if os.getpid() == self._pid:
            try:
                self._group.conn.reclaim()
            finally:
                self._database._leave_group(self._group, error, shared=self._shared)


class _GroupCommit:
    """The COMMIT of a group that was left by one of its members."""

    def __init__(self, database: SqliteDatabase, group: Group, hooks: Hooks) -> None:
        self._database = database
        self._group = group
        self._hooks = hooks

    @property
    def ended(self) -> bool:
        return self._group.ended

    def wait(self) -> None:
        self._database._await_group(self._group)
        self._hooks.flush()

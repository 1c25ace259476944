"""After-commit effects of a user's session, on the session's own events.

An effect belongs to the transaction that was current when it was collected, which may be a savepoint. It runs after the
session's outermost commit; it is forgotten when its transaction, or one around that, is rolled back or given up.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, SessionTransaction

from queuert.hooks import Effect, Hooks


class SessionHooks(Hooks):
    """The effects of one session."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_soft_rollback", self._rolled_back)
        event.listen(session, "after_transaction_end", self._ended)

    def on_commit(self, effect: Effect) -> None:
        super().on_commit(effect)
        self._effects[-1] = _Owned(effect, _current(self._session))

    def _committed(self, session: Session) -> None:
        if not session.in_nested_transaction():
            self.flush()

    def _rolled_back(self, _: Session, rolled_back: SessionTransaction) -> None:
        self._forget(rolled_back)

    def _ended(self, _: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self.discard()  # closed without a commit; after one there is nothing left

    def _forget(self, transaction: SessionTransaction) -> None:
        self._effects = [effect for effect in self._effects if not _is_inside(effect, transaction)]


class _Owned:
    def __init__(self, effect: Effect, owner: SessionTransaction | None) -> None:
        self.effect = effect
        self.owner = owner

    def __call__(self) -> None:
        self.effect()


def hooks_of(session: Session, owner: object) -> Hooks | None:
    """The hooks that `owner`, a database, has on this session.

    None where the session's commit is not the end: it takes part in the transaction of a connection.
    """
    if isinstance(session.bind, Connection):
        return None
    key = (SessionHooks, id(owner))
    hooks: SessionHooks | None = session.info.get(key)
    if hooks is None:
        hooks = session.info[key] = SessionHooks(session)
    return hooks


def _current(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _is_inside(effect: Any, transaction: SessionTransaction) -> bool:
    owner = effect.owner if isinstance(effect, _Owned) else None
    while owner is not None:
        if owner is transaction:
            return True
        owner = owner.parent
    return False

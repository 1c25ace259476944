"""The session that an application shares: a `scoped_session`, whose transaction a call without `conn=` takes part in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, scoped_session


class SharedSession:
    """The session of whoever asks, if there is one on this engine."""

    def __init__(self, scoped: scoped_session[Any] | None, engine: Engine) -> None:
        self._scoped = scoped
        self._engine = engine

    def in_transaction(self) -> Session | None:
        """This thread's session, if its transaction is open."""
        if self._scoped is None or not self._exists():
            return None
        session: Session = self._scoped()
        return session if session.in_transaction() and self._is_ours(session) else None

    @contextmanager
    def around_attempt(self) -> Iterator[None]:
        """A handler's session ends with it: what it left open is not the next one's to take part in."""
        if self._scoped is None or self._exists():
            yield
            return
        try:
            yield
        finally:
            if self._exists():
                self._scoped.remove()

    def _exists(self) -> bool:
        try:
            return self._scoped is not None and bool(self._scoped.registry.has())
        except RuntimeError:  # its scope is a context, such as Flask's, and there is none here
            return False

    def _is_ours(self, session: Session) -> bool:
        try:
            bind = session.get_bind()
        except exc.UnboundExecutionError:
            return False
        return bind is self._engine or getattr(bind, "engine", None) is self._engine

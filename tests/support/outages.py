"""A database that cannot be reached for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from queuert import Queuert
from support.inside import database_of


class Gone(Exception):
    """The database cannot be reached just now."""


def gone(*args: object, **options: object) -> Any:
    raise Gone


@contextmanager
def outage(app: Queuert, run: Callable[..., Any] = gone) -> Iterator[None]:
    """Transactions go to `run` instead. Its `Gone` is taken for an error that passes, also when it is looked at later."""
    database: Any = database_of(app)
    is_transient, usual = database.is_transient, database.run
    database.is_transient = lambda error: isinstance(error, Gone) or is_transient(error)
    database.run = run
    try:
        yield
    finally:
        database.run = usual

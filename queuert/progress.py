"""How far a handler says it is. Telling it costs next to nothing: it is noted here, and written with the lease."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Final, NamedTuple

from queuert.error_codes import clean

MAX_MESSAGE: Final = 1_000


class Told(NamedTuple):
    """What was told."""

    fraction: float
    message: str | None


class Report:
    """The latest that the handler of an attempt has told."""

    __slots__ = ("latest", "on_news")

    def __init__(self) -> None:
        self.latest: Told | None = None
        self.on_news: Callable[[], None] | None = None

    def note(self, fraction: float, message: str | None) -> None:
        told = _checked(fraction, message)
        if told == self.latest:
            return
        self.latest = told  # before the news, or who is told might look too early
        if self.on_news is not None:
            self.on_news()


def _checked(fraction: object, message: object) -> Told:
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
        raise TypeError(f"progress takes a number from 0 to 1, not {type(fraction).__name__}.")
    part = float(fraction)
    if not 0 <= part <= 1:
        raise ValueError(f"progress takes a number from 0 to 1, not {part:g}.")
    if message is None:
        return Told(part, None)
    if not isinstance(message, str):
        raise TypeError(f"The message of progress must be a string, not {type(message).__name__}.")
    if len(message) > MAX_MESSAGE:
        raise ValueError(f"The message of progress may have {MAX_MESSAGE:,} characters, not {len(message):,}.")
    return Told(part, clean(message, MAX_MESSAGE))

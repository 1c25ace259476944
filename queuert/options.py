"""Options that users pass in: how long a lease lasts, how retries back off, what deduplicates, what is kept.

All are frozen and check themselves when made, so that a bad one never reaches the database.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, Union

Duration = Union[int, float, timedelta]
BackoffFunction = Callable[[int], float]
BlockersUntil = Literal["completed", "closed"]

DEFAULT_MAX_ATTEMPTS: Final = 25
PRIORITY_RANGE: Final = (-100, 100)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
MAX_SECONDS: Final = 100 * 365 * 86_400.0  # a century: beyond it dates overflow before anybody notices


class _Unset:
    """The value of an option that was left out, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


def seconds(value: Duration, name: str, *, positive: bool = False) -> float:
    """A duration as seconds, checked."""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
    else:
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {type(value).__name__}.")
    if not math.isfinite(result) or result < 0 or (positive and result == 0) or result > MAX_SECONDS:
        shown = repr(value) if math.isfinite(result) or isinstance(value, float) else "a number beyond a century"
        raise ValueError(f"{name} must be {'more than zero' if positive else 'zero or more'} seconds, not {shown}.")
    return result


def storable(text: str, name: str) -> str:
    """A text that a database can be asked about, checked."""
    if _UNSTORABLE.search(text):
        raise ValueError(f"{name} must hold no NUL and no lone surrogate: {text!r}.")
    return text


def instant(value: datetime, name: str) -> datetime:
    """A time in UTC, checked."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(value).__name__}.")
    if value.utcoffset() is None:
        raise ValueError(f"{name} must be an aware datetime, such as datetime.now(timezone.utc); this one has no time zone.")
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{name} is outside the calendar in UTC: {value.isoformat()}.") from None


def check_max_attempts(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_attempts must be a whole number or None (forever), not {value!r}.")
    if not 1 <= value <= 2**31 - 1:
        raise ValueError(f"max_attempts must be at least 1, or None to retry forever, not {value}.")
    return value


def check_blockers_until(value: object) -> str:
    if value not in ("completed", "closed"):
        raise ValueError(f"blockers_until must be 'completed' or 'closed', not {value!r}.")
    return str(value)


def check_priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"priority must be a whole number, not {value!r}.")
    low, high = PRIORITY_RANGE
    if not low <= value <= high:
        raise ValueError(f"priority must be from {low} to {high}, not {value}.")
    return value


@dataclass(frozen=True)
class Lease:
    """How long a claim lasts without renewal, and how often it is renewed (a third of the duration by default)."""

    duration: Duration = 60
    renew_every: Duration | None = None

    def __post_init__(self) -> None:
        duration = seconds(self.duration, "Lease.duration", positive=True)
        if self.renew_every is not None:
            every = seconds(self.renew_every, "Lease.renew_every", positive=True)
            if every >= duration:
                raise ValueError("Lease.renew_every must be shorter than Lease.duration.")

    @property
    def duration_seconds(self) -> float:
        return seconds(self.duration, "Lease.duration")

    @property
    def renew_seconds(self) -> float:
        if self.renew_every is None:
            return self.duration_seconds / 3
        return seconds(self.renew_every, "Lease.renew_every")


@dataclass(frozen=True)
class Backoff:
    """The wait before the next try: `initial · multiplier^(used - 1)`, at most `maximum`, plus or minus `jitter`."""

    initial: Duration = 10
    multiplier: float = 2
    maximum: Duration = 300
    jitter: float = 0.1

    def __post_init__(self) -> None:
        seconds(self.initial, "Backoff.initial")
        seconds(self.maximum, "Backoff.maximum")
        if isinstance(self.multiplier, bool) or not isinstance(self.multiplier, (int, float)):
            raise TypeError("Backoff.multiplier must be a number.")
        if not math.isfinite(self.multiplier) or self.multiplier < 1:
            raise ValueError("Backoff.multiplier must be at least 1.")
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, (int, float)):
            raise TypeError("Backoff.jitter must be a number.")
        if not 0 <= self.jitter <= 1:
            raise ValueError("Backoff.jitter must be from 0 (exact) to 1.")

    def __call__(self, used: int) -> float:
        """Seconds to wait after `used` attempts."""
        initial = seconds(self.initial, "Backoff.initial")
        maximum = seconds(self.maximum, "Backoff.maximum")
        try:
            wait = min(initial * self.multiplier ** max(0, used - 1), maximum)
        except OverflowError:
            wait = maximum
        if not self.jitter:
            return wait
        return min(wait * random.uniform(1 - self.jitter, 1 + self.jitter), maximum)


@dataclass(frozen=True)
class Dedup:
    """One chain per key and chain type: while it is `incomplete`, or for a `window` in `any` state."""

    key: str
    scope: Literal["incomplete", "any"] = "incomplete"
    window: Duration | None = None
    exclude_chain_ids: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise TypeError(f"Dedup.key must be a string, not {type(self.key).__name__}.")
        if not self.key or len(self.key) > 1_000 or _UNSTORABLE.search(self.key):
            raise ValueError("Dedup.key must have from 1 to 1,000 characters, none of them NUL or a lone surrogate.")
        if self.scope not in ("incomplete", "any"):
            raise ValueError(f"Dedup.scope must be 'incomplete' or 'any', not {self.scope!r}.")
        if self.window is not None:
            seconds(self.window, "Dedup.window", positive=True)
        elif self.scope == "any":
            raise ValueError("Dedup with scope='any' needs a window.")
        if isinstance(self.exclude_chain_ids, (str, bytes)) or not isinstance(self.exclude_chain_ids, Iterable):
            raise TypeError("Dedup.exclude_chain_ids must be a list of chains or ids.")
        object.__setattr__(self, "exclude_chain_ids", tuple(self.exclude_chain_ids))

    @property
    def window_seconds(self) -> float | None:
        return None if self.window is None else seconds(self.window, "Dedup.window")


@dataclass(frozen=True)
class Retention:
    """How long closed chains are kept, counted from when they closed, and how much of open ones; None keeps it forever."""

    completed: Duration | None = timedelta(days=30)
    failed: Duration | None = timedelta(days=90)
    cancelled: Duration | None = timedelta(days=30)
    # Of a job that is tried again and again: how many of its last attempts, and of its last events, are kept.
    attempts: int | None = 1_000
    # Of a chain that goes on and on: how many of its last jobs are kept, beside the first.
    open_chain_jobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("completed", "failed", "cancelled"):
            value = getattr(self, name)
            if value is not None:
                seconds(value, f"Retention.{name}")
        for name in ("attempts", "open_chain_jobs"):
            number = getattr(self, name)
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"Retention.{name} must be a whole number or None, not {number!r}.")
            if not 1 <= number <= 1_000_000_000:
                raise ValueError(f"Retention.{name} must be at least 1, or None to keep all, not {number}.")

    def as_seconds(self) -> dict[str, float]:
        """The states that are cleaned up, with their age in seconds."""
        named = {"completed": self.completed, "failed": self.failed, "cancelled": self.cancelled}
        return {name: seconds(value, f"Retention.{name}") for name, value in named.items() if value is not None}

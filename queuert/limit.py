"""`Limit`: how many jobs run at a time, how often they start, in which order. Checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from queuert.options import Duration, seconds

Order = Literal["any", "strict"]
MAX_NUMBER: Final = 1_000_000
MAX_LIMIT_NAME: Final = 200


def check_number(value: object, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}.")
    if not 1 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} must be from 1 to {MAX_NUMBER:,}, not {value}.")
    return value


def check_rate(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"rate must be a number, not {value!r}.")
    if not math.isfinite(value) or not 0 < value <= MAX_NUMBER:
        raise ValueError(f"rate must be more than 0 and at most {MAX_NUMBER:,}, not {value}.")
    return float(value)


@dataclass(frozen=True)
class Limit:
    """At most so many at a time, so many starts in a span of time, keys that take turns, or jobs of a key in strict order.

    `Limit(5)` lets five run at a time, `Limit(rate=100, per=60)` a hundred start in a minute. With `key`, a field of the input
    or a function of it, each value has a limit of its own. Types that give it the same `name` share it.
    """

    concurrency: int | None = None
    rate: float | None = field(default=None, kw_only=True)
    per: Duration | None = field(default=None, kw_only=True)
    burst: int | None = field(default=None, kw_only=True)
    key: str | Callable[[Any], object] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    order: Order = field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        check_number(self.concurrency, "Limit.concurrency")
        check_rate(self.rate)
        check_number(self.burst, "Limit.burst")
        if (self.rate is None) != (self.per is None):
            raise ValueError("Limit needs rate and per together: rate=100, per=60 is a hundred a minute.")
        if self.burst is not None and self.rate is None:
            raise ValueError("Limit.burst needs a rate.")
        if self.per is not None:
            object.__setattr__(self, "per", seconds(self.per, "Limit.per", positive=True))
        if self.key is not None and not callable(self.key) and (not isinstance(self.key, str) or not self.key):
            raise TypeError(f"Limit.key must be the name of a field or a function of the input, not {self.key!r}.")
        if self.name is not None:
            check_limit_name(self.name)
        if self.order not in ("any", "strict"):
            raise ValueError(f"Limit.order must be 'any' or 'strict', not {self.order!r}.")
        if self.order == "strict" and (self.key is None or self.concurrency not in (None, 1)):
            raise ValueError("Limit with order='strict' needs a key, and a concurrency of 1.")
        if self.concurrency is None and self.rate is None and self.key is None:
            raise ValueError("Limit needs a concurrency, a rate or a key.")

    @property
    def strict(self) -> bool:
        return self.order == "strict"

    def same_numbers(self, other: Limit) -> bool:
        """Whether two types can share it: what each takes as the key is its own affair."""
        return replace(self, key=None if not self.key else "key") == replace(other, key=None if not other.key else "key")


def check_limit_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"The name of a limit must be a string, not {name!r}.")
    if not name or len(name) > MAX_LIMIT_NAME or not name.isprintable() or name.startswith(":"):
        raise ValueError(
            f"The name of a limit must have 1 to {MAX_LIMIT_NAME} printable characters and no colon first: {name!r}."
        )
    return name

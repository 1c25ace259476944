"""Limits: which key a job counts for, how many of a key may start now, and when to look again.

What runs is what the job rows say. A claim locks the rows of the keys it looks at, and counts what runs of each in a later
statement, which sees every claim that was committed before: so two claims of a key come one after the other, and nothing can
drift, whoever dies when. A rate is one time for each key: up to when its allowance is used up.

The keys are found by jumping through an index from one to the next, from where the last claim stopped, so that they take turns.
A key without room is looked at again when something of it ends, of which the workers are told, or after a second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from queuert.codec import dump_json, load_json
from queuert.context import Context
from queuert.errors import JobTypeValidationError
from queuert.job_types import JobType, JobTypes
from queuert.limit import Limit, check_limit_name, check_number, check_rate
from queuert.options import _UNSTORABLE, Duration, seconds
from queuert.storage.limits import KeyLevel, KeyState
from queuert.storage.protocol import Session
from queuert.storage.records import iso

NO_LIMIT: Final = ":none"
"""The limit of jobs whose type has one that does not count for them."""
MAX_KEY: Final = 1_000
MOST_COUNTED: Final = 10_000


# Which key


def limit_columns(job_type: JobType[Any, Any], text: str, limit_key: object = None) -> dict[str, Any]:
    """What is stored with a job about its limit, from its input as it is stored."""
    limit = job_type.limit
    if limit is None or (limit.key is None and limit_key is not None):
        if limit_key is not None:
            raise ValueError(f"limit_key= needs a type with a keyed limit, and {job_type.name!r} has none.")
        return {}
    if limit.key is None:
        key: str | None = ""
    elif limit_key is not None:
        key = _key_text(job_type, limit_key)
    else:
        key = _key_text(job_type, _key_of(job_type, limit.key, text))
    if key is None:
        return {"limit_name": NO_LIMIT, "limit_key": ""}
    return {"limit_name": job_type.limit_name, "limit_key": key, "limit_strict": limit.strict}


def _key_of(job_type: JobType[Any, Any], key: Any, text: str) -> object:
    if callable(key):
        try:
            return key(job_type.decode_input(text))
        except Exception as error:
            raise _bad_key(job_type, f"its limit's key function raised {type(error).__name__}: {error}") from error
    data = load_json(text)
    if not isinstance(data, dict) or key not in data:
        raise _bad_key(job_type, f"its limit's key {key!r} is not a field of it")
    return data[key]


def _key_text(job_type: JobType[Any, Any], value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else dump_json(value)
    if not text or len(text) > MAX_KEY or _UNSTORABLE.search(text):
        raise _bad_key(job_type, f"its limit's key must have from 1 to {MAX_KEY:,} characters, none of them NUL")
    return text


def _bad_key(job_type: JobType[Any, Any], problem: str) -> JobTypeValidationError:
    return JobTypeValidationError(
        "invalid_input", f"This input does not fit the job type {job_type.name!r}: {problem}.", type_name=job_type.name
    )


def types_of(types: JobTypes, limit_names: Collection[str]) -> list[str]:
    """The types that may start when something of these limits has ended."""
    return [each.name for each in types if each.limit is not None and each.limit_name in limit_names]


# How many


@dataclass(frozen=True)
class Numbers:
    """What counts for a limit: what an operator has set, and else the code's."""

    concurrency: int | None
    rate: float | None
    per: float | None
    burst: int | None

    @classmethod
    def of(cls, limit: Limit | None, concurrency: Any, rate: Any, per: Any, burst: Any) -> Numbers:
        own_per = None if limit is None or limit.per is None else seconds(limit.per, "per")
        strict = limit is not None and limit.strict
        return cls(
            1 if strict else concurrency or (limit.concurrency if limit else None),
            rate or (limit.rate if limit else None),
            per or own_per,
            burst or (limit.burst if limit else None),
        )

    @property
    def spacing(self) -> float | None:
        """Seconds between two starts, evenly."""
        return self.per / self.rate if self.rate and self.per else None

    @property
    def allowance(self) -> int:
        """How many may start at once."""
        return self.burst or max(1, math.floor(self.rate or 1))

    def starts(self, now: datetime, used_until: datetime | None) -> int:
        """How many the rate lets start now."""
        if self.spacing is None:
            return MOST_COUNTED
        ahead = 0.0 if used_until is None else max(0.0, (used_until - now).total_seconds())
        return max(0, math.floor((self.allowance * self.spacing - ahead) / self.spacing + 1e-6))

    def next_start(self, now: datetime, used_until: datetime | None) -> datetime:
        """When the rate lets the next one start."""
        if self.spacing is None or used_until is None:
            return now
        return max(now, used_until - timedelta(seconds=(self.allowance - 1) * self.spacing))

    def used_after(self, now: datetime, used_until: datetime | None, number: int) -> datetime:
        assert self.spacing is not None
        return max(now, used_until or now) + timedelta(seconds=number * self.spacing)


class Room(NamedTuple):
    """How many of a key may start now, and if none, when to look again; None: when something of it ends."""

    state: KeyState
    numbers: Numbers
    number: int
    look_at: datetime | None


def room_of(limit: Limit | None, state: KeyState) -> Room:
    numbers = Numbers.of(limit, state.concurrency, state.rate, state.per, state.burst)
    if state.held_until is not None and state.held_until > state.now:
        return Room(state, numbers, 0, state.held_until)
    free = MOST_COUNTED if numbers.concurrency is None else numbers.concurrency - state.running
    if free <= 0:
        return Room(state, numbers, 0, None)
    starts = numbers.starts(state.now, state.used_until)
    if starts <= 0:
        return Room(state, numbers, 0, numbers.next_start(state.now, state.used_until))
    if limit is not None and limit.strict and state.head is None:
        return Room(state, numbers, 0, None)
    return Room(state, numbers, min(free, starts), None)


def key_items(limits: Mapping[str, Limit], levels: Sequence[KeyLevel]) -> list[dict[str, Any]]:
    """The keys of these levels, in order, each once; those without a limit left out."""
    keys = sorted({(level.name, level.key) for level in levels if level.name != NO_LIMIT})
    items = []
    for name, key in keys:
        limit = limits.get(name)
        items.append({"name": name, "key": key, "strict": limit is not None and limit.strict})
    return items


def used_rates(rooms: Mapping[tuple[str, str], Room], taken: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """What is written about the rates of keys of which so many were claimed."""
    items = []
    for at, number in taken.items():
        room = rooms.get(at)
        if room is not None and room.numbers.spacing is not None:
            until = room.numbers.used_after(room.state.now, room.state.used_until, number)
            items.append({"name": at[0], "key": at[1], "used_until": iso(until), "spacing": room.numbers.spacing})
    return items


# What operators see and set


@dataclass(frozen=True)
class LimitStatus:
    """How a limit stands, for one key of it."""

    name: str
    key: str | None
    concurrency: int | None
    running: int
    waiting: int
    rate: float | None
    per: float | None
    # When the next may start, if a rate or a pause that the other side asked for does not let it start now.
    next_at: datetime | None
    # Who has set these numbers; None: the code.
    set_by: str | None


class Limits:
    """Reads limits, and sets what operators say of them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def list(self, conn: object | None) -> list[LimitStatus]:
        context = self._context

        def work(session: Session) -> list[LimitStatus]:
            set_ = context.repository.list_limits(session)
            types = context.repository.job_types(session)
            used = context.repository.limits_in_use(session, types, MOST_COUNTED)
            limits = limits_by_name(context.types)
            found = []
            for each in used:
                if each.name == NO_LIMIT or not (each.running or each.waiting or each.held_until or each.used_until):
                    continue
                *numbers, set_by = set_.get(each.name, (None, None, None, None, None))
                own = Numbers.of(limits.get(each.name), *numbers)
                times = [own.next_start(each.now, each.used_until), each.held_until or each.now]
                next_at = max(times) if max(times) > each.now else None
                if not (each.running or each.waiting or next_at):
                    continue
                where = (each.name, each.key or None, own.concurrency, each.running, each.waiting)
                found.append(LimitStatus(*where, own.rate, own.per, next_at, set_by))
            return found

        return context.read(conn, work)

    def set(
        self,
        name: str,
        conn: object | None,
        *,
        concurrency: int | None,
        rate: float | None,
        per: Duration | None,
        burst: int | None,
        actor: str | None,
    ) -> None:
        check_limit_name(name)
        values = {
            "concurrency": check_number(concurrency, "concurrency"),
            "rate": check_rate(rate),
            "per": None if per is None else seconds(per, "per", positive=True),
            "burst": check_number(burst, "burst"),
        }
        if all(value is None for value in values.values()):
            raise ValueError("set_limit needs a number: concurrency, rate, per or burst. reset_limit gives back the code's.")
        context = self._context

        def work(session: Session) -> None:
            context.repository.set_limit(session, name=name, set_by=actor or "operator", **values)
            context.announce(session, ready=types_of(context.types, {name}))

        context.write(conn, work)

    def reset(self, name: str, conn: object | None) -> None:
        check_limit_name(name)
        context = self._context

        def work(session: Session) -> None:
            context.repository.reset_limit(session, name)
            context.announce(session, ready=types_of(context.types, {name}))

        context.write(conn, work)


def limits_by_name(types: JobTypes) -> dict[str, Limit]:
    return {str(each.limit_name): each.limit for each in types if each.limit is not None}

"""Types that are one JSON value: numbers, text, and what is written as text or a number."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from queuert.codec.converter import BOOL, INT, KINDS, NULL, NUMBER, STRING, Converter, as_it_is, mismatch, shorten
from queuert.codec.text import CodecError, plain_json


def _checked(test: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if test(value):
            return value
        raise mismatch(expected, value)

    return check


def _scalar(test: Callable[[Any], bool], expected: str, kinds: AbstractSet[str]) -> Converter:
    check = _checked(test, expected)
    return Converter(check, check, expected, kinds, plain=True)


def _str(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise mismatch("text", value)


def _int(value: Any) -> Any:
    if type(value) is int or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise mismatch("a whole number", value)


def _float(value: Any) -> float:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise mismatch("a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise CodecError("expected a number, got one that is too large") from None
    if not math.isfinite(number):
        raise CodecError(f"expected a number, got {number}")
    return number


def _text_form(expected: str, test: Callable[[Any], bool], dump: Callable[[Any], str], load: Callable[[str], Any]) -> Converter:
    """A type that is written as text."""

    def dump_text(value: Any) -> str:
        if test(value):
            return dump(value)
        raise mismatch(expected, value)

    def load_text(data: Any) -> Any:
        if not isinstance(data, str):
            raise mismatch(f"{expected} as text", data)
        try:
            return load(data)
        except (ValueError, InvalidOperation, OverflowError):
            raise CodecError(f"expected {expected}, got {shorten(data)}") from None

    return Converter(dump_text, load_text, expected, STRING)


def _parse_datetime(text: str) -> datetime:
    # Python 3.10 does not read the Z itself.
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text)


def _parse_time(text: str) -> time:
    return time.fromisoformat(f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text)


def _parse_decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(text)
    return number


def _dump_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise CodecError(f"expected a finite Decimal, got {value}")
    return str(value)


def _dump_timedelta(value: Any) -> int | float:
    if not isinstance(value, timedelta):
        raise mismatch("a timedelta", value)
    if not value.microseconds:
        return value.days * 86_400 + value.seconds
    if abs(value.days) > 100_000:  # 2^53 microseconds: beyond it a float cannot tell them apart
        raise CodecError("expected a timedelta, got one too long to keep its microseconds")
    return value.total_seconds()


def _load_timedelta(data: Any) -> timedelta:
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise mismatch("a number of seconds", data)
    try:
        return timedelta(seconds=data)
    except (OverflowError, ValueError):
        raise CodecError(f"expected a number of seconds, got {shorten(data)}") from None


ANY = Converter(plain_json, as_it_is, "JSON", frozenset(KINDS.values()), plain=True)
_NONE = _scalar(lambda value: value is None, "None", NULL)
SCALARS: Final[dict[Any, Converter]] = {
    Any: ANY,
    object: ANY,
    inspect.Parameter.empty: ANY,
    None: _NONE,
    type(None): _NONE,
    bool: _scalar(lambda value: isinstance(value, bool), "a bool", BOOL),
    int: Converter(_int, _int, "a whole number", INT, plain=True),
    float: Converter(_float, _float, "a number", NUMBER, plain=True),
    str: Converter(_str, _str, "text", STRING, plain=True),
    datetime: _text_form("a datetime", lambda v: isinstance(v, datetime), datetime.isoformat, _parse_datetime),
    date: _text_form(
        "a date", lambda v: isinstance(v, date) and not isinstance(v, datetime), date.isoformat, date.fromisoformat
    ),
    time: _text_form("a time", lambda v: isinstance(v, time), time.isoformat, _parse_time),
    timedelta: Converter(_dump_timedelta, _load_timedelta, "a timedelta", NUMBER),
    UUID: _text_form("a UUID", lambda v: isinstance(v, UUID), str, UUID),
    Decimal: _text_form("a Decimal", lambda v: isinstance(v, Decimal), _dump_decimal, _parse_decimal),
}
INSTEAD: Final[dict[Any, str]] = {
    set: "declare a list", frozenset: "declare a list", bytes: "encode it as text", bytearray: "encode it as text",
    memoryview: "encode it as text", complex: "declare a tuple of two floats",
}  # fmt: skip

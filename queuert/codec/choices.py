"""One of several: literals, enums and unions. What JSON could not tell apart is refused when it is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum, Flag
from typing import Any

from queuert.codec.converter import INT, KINDS, NULL, Converter, mismatch, shorten
from queuert.codec.text import CodecError, article


def _tagged(value: Any) -> tuple[type, Any]:
    # 1 == True == 1.0 as keys of a dict, but not in JSON.
    return type(value), value


def literal_of(values: Sequence[Any], where: str) -> Converter:
    expected = " or ".join(repr(value) for value in values)
    to_json: dict[Any, Any] = {}
    for value in values:
        data = value.value if isinstance(value, Enum) else value
        if not isinstance(data, (str, int, type(None))):
            raise TypeError(f"{where}: {value!r} has no JSON form.")
        to_json[_tagged(value)] = data
    from_json = {_tagged(data): value for (_, value), data in to_json.items()}

    def converter(table: dict[Any, Any]) -> Callable[[Any], Any]:
        def convert(value: Any) -> Any:
            try:
                return table[type(value), value]
            except (KeyError, TypeError):
                raise CodecError(f"expected {expected}, got {shorten(value)}") from None

        return convert

    return Converter(
        converter(to_json),
        converter(from_json),
        expected,
        frozenset(KINDS[kind] for kind, _ in from_json),
        plain=not any(isinstance(value, Enum) for value in values),
        choices=frozenset(from_json),
    )


def enum_of(cls: type[Enum], where: str) -> Converter:
    members = {_tagged(member.value): member for member in cls}
    if any(kind not in (str, int, float, bool, type(None)) for kind, _ in members):
        raise TypeError(f"{where}: the values of the enum {cls.__name__} must be text, numbers or None.")
    expected = article(cls.__name__)

    def dump(value: Any) -> Any:
        if isinstance(value, cls):
            return value.value
        raise mismatch(expected, value)

    def load(data: Any) -> Any:
        try:
            return members[type(data), data]
        except (KeyError, TypeError):
            pass
        try:
            if not isinstance(data, (bool, list, dict)):
                return cls(data)  # combined flags, and what the enum's own _missing_ knows
        except (ValueError, TypeError):
            pass
        raise CodecError(f"expected {expected}, got {shorten(data)}")

    open_ended = issubclass(cls, Flag)
    kinds = frozenset(KINDS[kind] for kind, _ in members) or INT
    return Converter(dump, load, expected, kinds, choices=None if open_ended else frozenset(members))


def union_of(members: Sequence[Converter], where: str, exact: Sequence[Converter] | None = None) -> Converter:
    """One of several types. Where `members` leave out fields that they do not know, `exact` are the same without that: what
    fits one of these is that one."""
    for index, member in enumerate(members):
        for other in members[index + 1 :]:
            if member.confusable_with(other):
                raise TypeError(
                    f"{where}: {member.expected} and {other.expected} cannot be told apart in JSON; use one of them, "
                    "or dataclasses that each have a field of another Literal."
                )
    # A float takes whole numbers too: an int beside it goes first, so that ints stay ints.
    ordered = sorted(members, key=lambda member: len(member.kinds))
    by_kind = {kind: tuple(member for member in ordered if name in member.kinds) for kind, name in KINDS.items()}
    expected = " or ".join(member.expected for member in members)

    def first(candidates: Sequence[Converter], step: str, value: Any) -> Any:
        inner: list[CodecError] = []
        for member in candidates:
            try:
                return getattr(member, step)(value)
            except CodecError as error:
                if error.path:
                    inner.append(error)
        if len(inner) == 1:
            raise inner[0]
        raise mismatch(expected, value)

    def load(data: Any) -> Any:
        candidates = by_kind.get(type(data), ())
        if exact is None or not isinstance(data, dict):
            return first(candidates, "load", data)
        try:
            return first([member for member in exact if "object" in member.kinds], "load", data)
        except CodecError:
            # The one that knows most of it loses least.
            known = sorted(candidates, key=lambda member: -len(data.keys() & member.shape.allowed) if member.shape else 0)
            return first(known, "load", data)

    return Converter(
        lambda value: first(ordered, "dump", value),
        load,
        expected,
        frozenset().union(*(member.kinds for member in members)),
        plain=all(member.plain for member in members),
    )


def optional(member: Converter) -> Converter:
    inner_dump, inner_load = member.dump, member.load
    return dataclasses.replace(
        member,
        dump=lambda value: None if value is None else inner_dump(value),
        load=lambda data: None if data is None else inner_load(data),
        expected=f"{member.expected} or None",
        kinds=member.kinds | NULL,
        choices=None,
        shape=None,
        load_text=None,
    )

"""What a declared type is compiled into: a pair of functions, and what is known of the JSON they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from queuert.codec.text import CodecError


@dataclasses.dataclass(frozen=True)
class Shape:
    """What an object type is recognised by, to tell the members of a union apart."""

    required: AbstractSet[str]
    allowed: AbstractSet[str]
    takes_unknown: bool = False
    tags: Mapping[str, AbstractSet[Any]] = dataclasses.field(default_factory=dict)

    def excludes(self, other: Shape) -> bool:
        """Whether nothing fits both."""
        if not other.takes_unknown and self.required - other.allowed:
            return True
        if not self.takes_unknown and other.required - self.allowed:
            return True
        return any(not values & other.tags[key] for key, values in self.tags.items() if key in other.tags)


@dataclasses.dataclass(frozen=True)
class Converter:
    """How the values of one type become JSON data, and how they come back."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    expected: str
    kinds: AbstractSet[str]  # of its JSON form
    plain: bool = False  # the JSON form equals the value
    choices: AbstractSet[Any] | None = None  # the only JSON forms there are
    shape: Shape | None = None
    load_text: Callable[[str], Any] | None = None

    def confusable_with(self, other: Converter) -> bool:
        if not self.kinds & other.kinds or (self.plain and other.plain):
            return False
        if self.choices is not None and other.choices is not None:
            return bool(self.choices & other.choices)
        if self.shape is not None and other.shape is not None:
            return not self.shape.excludes(other.shape)
        return True


KINDS: Final[dict[Any, str]] = {
    type(None): "null", bool: "bool", int: "int", float: "float", str: "string", list: "array", dict: "object"
}  # fmt: skip
NULL, BOOL, INT, STRING, ARRAY, OBJECT = (frozenset({kind}) for kind in ("null", "bool", "int", "string", "array", "object"))
NUMBER = frozenset({"int", "float"})


def as_it_is(data: Any) -> Any:
    """How JSON data is loaded that may be anything."""
    return data


def mismatch(expected: str, value: object) -> CodecError:
    return CodecError(f"expected {expected}, got {type(value).__name__}")


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""The codec of a declared type: its converter with the JSON text around it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuert.codec.compiler import Compiler
from queuert.codec.converter import Converter
from queuert.codec.text import TOO_DEEP, CodecError, dump_json, load_json, write


class Codec(ABC):
    """Converts the values of one declared type."""

    @abstractmethod
    def encode(self, value: object) -> str:
        """Compact JSON text, or CodecError."""

    @abstractmethod
    def decode(self, text: str) -> Any:
        """The typed value, or CodecError."""


class _UntypedCodec(Codec):
    def encode(self, value: object) -> str:
        return dump_json(value)

    def decode(self, text: str) -> Any:
        return load_json(text)


class _TypedCodec(Codec):
    """`given` converts what a caller gives, and refuses what it does not know; `stored` what another version of the program may
    have stored, and leaves out fields that this one does not know."""

    def __init__(self, given: Converter, stored: Converter) -> None:
        self._dump = given.dump
        self._load = stored.load
        self._load_text = stored.load_text

    def encode(self, value: object) -> str:
        try:
            return write(self._dump(value))
        except RecursionError:
            raise CodecError(TOO_DEEP) from None

    def decode(self, text: str) -> Any:
        try:
            if self._load_text is not None:
                return self._load_text(text)
            return self._load(load_json(text))
        except RecursionError:
            raise CodecError(TOO_DEEP) from None


UNTYPED: Final[Codec] = _UntypedCodec()


def codec_for(annotation: Any, *, where: str = "type", localns: Mapping[str, Any] | None = None) -> Codec:
    """The codec of a type. `where` opens the messages about a type that has none; `localns` helps to resolve names."""
    if annotation in (Any, object, inspect.Parameter.empty):
        return UNTYPED
    given, stored = Compiler(localns), Compiler(localns, drops_unknown=True)
    return _TypedCodec(given.compile(annotation, where), stored.compile(annotation, where))


def codec_for_arguments(
    hints: Mapping[str, Any], required: Iterable[str], *, what: str, localns: Mapping[str, Any] | None = None
) -> Codec:
    """The codec of the arguments of a function: a dict by parameter name. `what` names them in messages."""
    given, stored = Compiler(localns), Compiler(localns, drops_unknown=True)
    return _TypedCodec(given.arguments(hints, required, what), stored.arguments(hints, required, what))

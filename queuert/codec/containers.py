"""Lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queuert.codec.converter import ARRAY, OBJECT, STRING, Converter, as_it_is, mismatch
from queuert.codec.text import CodecError


def list_of(item: Converter) -> Converter:
    dump_item, load_item = item.dump, item.load

    def dump(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise mismatch("a list", value)
        result: list[Any] = []
        try:
            for element in value:
                result.append(dump_item(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    def load(data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise mismatch("a list", data)
        result: list[Any] = []
        try:
            for element in data:
                result.append(load_item(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    return Converter(dump, load, "a list", ARRAY, plain=item.plain)


def tuple_of(items: Sequence[Converter]) -> Converter:
    expected = f"a tuple of {len(items)}"

    def convert(value: Any, step: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise mismatch(expected, value)
        if len(value) != len(items):
            raise CodecError(f"expected {expected}, got {len(value)}")
        result: list[Any] = []
        try:
            for item, element in zip(items, value, strict=True):
                result.append(getattr(item, step)(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    return Converter(lambda value: convert(value, "dump"), lambda data: tuple(convert(data, "load")), expected, ARRAY)


def dict_of(key: Converter, item: Converter) -> Converter:
    def converter(convert_key: Callable[[Any], Any], convert_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def convert(value: Any) -> dict[Any, Any]:
            if not isinstance(value, dict):
                raise mismatch("a dict", value)
            result = {}
            for name, element in value.items():
                try:
                    result[convert_key(name)] = convert_item(element)
                except CodecError as error:
                    raise error.within(str(name)) from None
            return result

        return convert

    def load_as_is(data: Any) -> dict[Any, Any]:
        if not isinstance(data, dict):
            raise mismatch("a dict", data)
        return data

    # JSON's keys are text already.
    as_is = item.load is as_it_is and key.kinds == STRING and key.plain and key.choices is None
    return Converter(
        converter(key.dump, item.dump),
        load_as_is if as_is else converter(key.load, item.load),
        "a dict",
        OBJECT,
        plain=key.plain and item.plain,
    )

"""Types that are a JSON object: dataclasses, TypedDict and pydantic models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, get_args

from queuert.codec.converter import KINDS, OBJECT, Converter, Shape, mismatch
from queuert.codec.hints import is_literal
from queuert.codec.text import CodecError, article, load_json, write
from queuert.suggestions import did_you_mean


def _check_keys(shape: Shape, keys: AbstractSet[Any], *, drops_unknown: bool = False) -> None:
    """Say which key is missing or unknown, if one is."""
    missing = shape.required - keys
    if missing:
        meant = "".join(_meant(key, missing) for key in sorted(map(str, keys - shape.allowed)))
        raise CodecError(f"missing {', '.join(map(repr, sorted(missing)))}{meant}")
    unknown = sorted(repr(key) for key in keys - shape.allowed)
    if unknown and not drops_unknown:
        meant = "".join(_meant(key, shape.allowed - keys) for key in sorted(map(str, keys - shape.allowed)))
        raise CodecError(f"unknown {', '.join(unknown)}{meant}")


def _meant(key: str, known: AbstractSet[str]) -> str:
    """What an unknown key was probably meant to be, for the middle of a message."""
    found = did_you_mean(key, sorted(known)).strip().rstrip("?")
    return f" ({key!r}: d{found[1:]}?)" if found else ""


def dataclass_of(cls: type[Any], fields: Mapping[str, Converter], shape: Shape, *, drops_unknown: bool = False) -> Converter:
    expected = article(cls.__name__)
    dumps = [(name, converter.dump) for name, converter in fields.items()]
    loads = [(name, converter.load) for name, converter in fields.items()]
    required = shape.required

    def coerce(value: Any) -> Any:
        """A dict that decodes to the dataclass will do; a subclass must not lose fields of its own."""
        if isinstance(value, dict):
            return load(value)
        if not isinstance(value, cls):
            raise mismatch(expected, value)
        extra = {field.name for field in dataclasses.fields(value) if field.init} - shape.allowed
        if extra:
            names = ", ".join(sorted(extra))
            raise CodecError(f"expected {expected}, got {article(type(value).__name__)}, which would lose {names}")
        return value

    def dump(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            value = coerce(value)
        result = {}
        name = ""
        try:
            for name, dump_field in dumps:
                result[name] = dump_field(getattr(value, name))
        except CodecError as error:
            raise error.within(name) from None
        except AttributeError:
            raise CodecError("missing").within(name) from None
        return result

    def load(data: Any) -> Any:
        if not isinstance(data, dict):
            raise mismatch(expected, data)
        values = {}
        name = ""
        try:
            for name, load_field in loads:
                if name in data:
                    values[name] = load_field(data[name])
        except CodecError as error:
            raise error.within(name) from None
        if len(values) != len(data) or not required <= values.keys():
            _check_keys(shape, data.keys(), drops_unknown=drops_unknown)
        try:
            return cls(**values)
        except Exception as error:
            raise CodecError(f"expected {expected}, but it refuses the values: {error}") from error

    return Converter(dump, load, expected, OBJECT, shape=shape)


def typed_dict_of(expected: str, fields: Mapping[str, Converter], shape: Shape, *, drops_unknown: bool = False) -> Converter:
    """A dict with known keys."""

    def converter(convert_fields: Mapping[str, Callable[[Any], Any]], drops_unknown: bool) -> Callable[[Any], Any]:
        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise mismatch(expected, value)
            if value.keys() != shape.allowed:
                _check_keys(shape, value.keys(), drops_unknown=drops_unknown)
            result = {}
            for name, item in value.items():
                if name not in convert_fields:
                    continue
                try:
                    result[name] = convert_fields[name](item)
                except CodecError as error:
                    raise error.within(name) from None
            return result

        return convert

    return Converter(
        converter({name: field.dump for name, field in fields.items()}, False),
        converter({name: field.load for name, field in fields.items()}, drops_unknown),
        expected,
        OBJECT,
        plain=all(field.plain for field in fields.values()),
        shape=shape,
    )


def pydantic_of(cls: Any, *, drops_unknown: bool = False) -> Converter:
    """A pydantic model: recognised by its methods, so that pydantic is never imported from here."""
    expected = article(cls.__name__)
    fields: Mapping[str, Any] = cls.model_fields
    is_root = bool(getattr(cls, "__pydantic_root_model__", False))

    def guarded(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except RecursionError:
            raise
        except Exception as error:
            list_errors = getattr(error, "errors", None)
            details: Any = list_errors() if callable(list_errors) else None
            if details:
                raise CodecError(str(details[0]["msg"]), details[0]["loc"]) from None
            raise CodecError(f"expected {expected}, but it refuses the values: {error}") from error

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            if not isinstance(value, dict):
                raise mismatch(expected, value)
            value = guarded(cls.model_validate, value)
        extra = set() if type(value) is cls else set(type(value).model_fields) - set(fields)
        if extra:
            names = ", ".join(sorted(extra))
            raise CodecError(f"expected {expected}, got {article(type(value).__name__)}, which would lose {names}")
        data = guarded(lambda: value.model_dump(mode="json", by_alias=True, warnings=False))
        _check_numbers(guarded(lambda: value.model_dump(by_alias=True, warnings=False)), data)
        load(data)  # a model can be changed after it was validated
        return data

    def load(data: Any) -> Any:
        # As JSON, not as Python values: strict models take a date as text only from JSON.
        return load_text(write(data))

    def load_text(text: str) -> Any:
        return guarded(lambda: _without_unknown(cls, text) if drops_unknown else cls.model_validate_json(text))

    def key(name: str) -> str:
        return str(getattr(fields[name], "alias", None) or name)

    shape = None
    if not is_root:
        tags = {key(name): set(get_args(f.annotation)) for name, f in fields.items() if is_literal(f.annotation)}
        shape = Shape(
            required={key(name) for name, field in fields.items() if field.is_required()},
            allowed={key(name) for name in fields},
            takes_unknown=cls.model_config.get("extra", "ignore") != "forbid",
            tags=tags,
        )
    kinds = frozenset(KINDS.values()) if is_root else OBJECT
    return Converter(dump, load, expected, kinds, shape=shape, load_text=load_text)


def _check_numbers(value: Any, data: Any) -> None:
    """Refuse a NaN or an infinity that pydantic has made null of: where a field may be anything, it does."""
    if isinstance(value, float) and data is None:
        raise CodecError(f"{value} is not JSON")
    if isinstance(value, dict) and isinstance(data, dict) and len(value) == len(data):
        pairs: Any = zip(data, value.values(), data.values(), strict=True)
    elif isinstance(value, (list, tuple)) and isinstance(data, list) and len(value) == len(data):
        pairs = zip(range(len(data)), value, data, strict=True)
    else:
        return
    for place, each, dumped in pairs:
        try:
            _check_numbers(each, dumped)
        except CodecError as error:
            raise error.within(place) from None


def _without_unknown(cls: Any, text: str) -> Any:
    """A model of stored JSON, without the fields that a model with `extra="forbid"` does not know."""
    try:
        return cls.model_validate_json(text)
    except Exception as error:
        list_errors = getattr(error, "errors", None)
        problems: Any = list_errors() if callable(list_errors) else ()
        unknown = [problem["loc"] for problem in problems if problem.get("type") == "extra_forbidden"]
        if not unknown or len(unknown) < len(problems):
            raise
        data = load_json(text)
        try:
            for *path, name in unknown:
                holder = data
                for step in path:
                    holder = holder[step]
                del holder[name]
        except (KeyError, IndexError, TypeError):  # the path goes through a union, and is not that of the data
            raise error from None
        return cls.model_validate_json(write(data))

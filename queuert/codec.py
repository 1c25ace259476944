"""Values to JSON text and back, checked against a declared type in both directions.

A type is compiled once, when its job type is registered, into two closures: `dump` (value to plain JSON data) and
`load` (plain JSON data to value). What has no unambiguous JSON form is refused there and then, with a TypeError that
says where; what does not fit at run time is a CodecError with the path of the offending part.

The standard library's `json` is reached through `_write` and `load_json` only. Its leniency is turned off: no NaN, no
keys that become strings on the way, no text that a database could not store as UTF-8.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from typing import Any, Final, ForwardRef, Literal, NoReturn, TypeVar, Union, get_args, get_origin
from uuid import UUID

MAX_DEPTH: Final = 500  # SQLite's JSON functions stop at 1,000 levels, Python's decoder somewhere below that

_TOO_DEEP: Final = "nested too deep, or contains itself"


class CodecError(ValueError):
    """A value that does not fit its declared type, or is not JSON."""

    def __init__(self, problem: str, path: Iterable[str | int] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self._reversed_path = list(path)[::-1]

    @property
    def path(self) -> tuple[str | int, ...]:
        return tuple(self._reversed_path[::-1])

    def within(self, step: str | int) -> CodecError:
        """The same error, seen from one level further out."""
        self._reversed_path.append(step)
        return self

    def __str__(self) -> str:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"{path.removeprefix('.')}: {self.problem}" if path else self.problem


def _make_encoder() -> Callable[[Any], str]:
    """The C encoder without the wrapper that builds a new one for each call: 1.4 µs for a small dict instead of 2.5."""
    portable = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    quote = getattr(json.encoder, "encode_basestring", None)
    if make is None or quote is None:
        return portable.encode
    chunks = make(None, portable.default, quote, None, ":", ",", False, False, False)
    return lambda data: "".join(chunks(data, 0))


_encode = _make_encoder()
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _refuse_constant(name: str) -> NoReturn:
    raise CodecError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_scan: Callable[[str, int], tuple[Any, int]] = getattr(_DECODER, "scan_once")  # noqa: B009  (typeshed hides it)


def dump_json(value: object) -> str:
    """Compact JSON text of plain data; anything that JSON would lose or change is a CodecError."""
    try:
        return _write(_plain(value))
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None


def load_json(text: str) -> Any:
    """The data of a JSON text."""
    try:
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            value, end = None, -1
        # With white space around it, or not JSON at all, the slower way knows better.
        return value if end == len(text) else _DECODER.decode(text)
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None
    except CodecError:
        raise
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from None


def has_nul(text: str) -> bool:
    """Whether a JSON text holds a NUL character, which PostgreSQL cannot store."""
    return "\\u0000" in text and _ESCAPED_NUL.search(text) is not None


def _write(data: Any) -> str:
    try:
        text = _encode(data)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise CodecError("text with a lone surrogate cannot be stored as UTF-8") from None
    except (ValueError, TypeError) as error:
        raise CodecError(str(error)) from None
    return text


_LEAVES: Final = frozenset({str, int, bool, type(None)})


def _plain(value: Any, depth: int = 0) -> Any:
    """The value itself, if it is plain JSON data all the way down."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth > MAX_DEPTH:
        raise CodecError(_TOO_DEEP)
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CodecError(f"a JSON object has text keys, not {key!r}")
            if type(item) not in _LEAVES:
                try:
                    _plain(item, depth + 1)
                except CodecError as error:
                    raise error.within(key) from None
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if type(item) not in _LEAVES:
                try:
                    _plain(item, depth + 1)
                except CodecError as error:
                    raise error.within(index) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise CodecError(f"{value} is not JSON")
    elif not isinstance(value, (str, int)):
        raise CodecError(f"{_article(kind.__name__)} is not JSON; declare its type, or convert it")
    return value


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
    def __init__(self, converter: _Converter) -> None:
        self._dump = converter.dump
        self._load = converter.load
        self._load_text = converter.load_text

    def encode(self, value: object) -> str:
        try:
            return _write(self._dump(value))
        except RecursionError:
            raise CodecError(_TOO_DEEP) from None

    def decode(self, text: str) -> Any:
        try:
            if self._load_text is not None:
                return self._load_text(text)
            return self._load(load_json(text))
        except RecursionError:
            raise CodecError(_TOO_DEEP) from None


UNTYPED: Final[Codec] = _UntypedCodec()


def codec_for(annotation: Any, *, where: str = "type", localns: Mapping[str, Any] | None = None) -> Codec:
    """The codec of a type. `where` opens the messages about a type that has none; `localns` helps to resolve names."""
    if annotation in (Any, object, inspect.Parameter.empty):
        return UNTYPED
    return _TypedCodec(_Compiler(localns).compile(annotation, where))


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What an object type is recognised by, to tell the members of a union apart."""

    required: AbstractSet[str]
    allowed: AbstractSet[str]
    takes_unknown: bool = False
    tags: Mapping[str, AbstractSet[Any]] = dataclasses.field(default_factory=dict)

    def excludes(self, other: _Shape) -> bool:
        """Whether nothing fits both."""
        if not other.takes_unknown and self.required - other.allowed:
            return True
        if not self.takes_unknown and other.required - self.allowed:
            return True
        return any(not values & other.tags[key] for key, values in self.tags.items() if key in other.tags)


@dataclasses.dataclass(frozen=True)
class _Converter:
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    expected: str
    kinds: AbstractSet[str]  # of its JSON form
    plain: bool = False  # the JSON form equals the value
    choices: AbstractSet[Any] | None = None  # the only JSON forms there are
    shape: _Shape | None = None
    load_text: Callable[[str], Any] | None = None

    def confusable_with(self, other: _Converter) -> bool:
        if not self.kinds & other.kinds or (self.plain and other.plain):
            return False
        if self.choices is not None and other.choices is not None:
            return bool(self.choices & other.choices)
        if self.shape is not None and other.shape is not None:
            return not self.shape.excludes(other.shape)
        return True


_KINDS: Final = {
    type(None): "null", bool: "bool", int: "int", float: "float", str: "string", list: "array", dict: "object"
}  # fmt: skip
_NULL, _BOOL, _INT, _STRING, _ARRAY, _OBJECT = (
    frozenset({kind}) for kind in ("null", "bool", "int", "string", "array", "object")
)
_NUMBER = frozenset({"int", "float"})


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _mismatch(expected: str, value: object) -> CodecError:
    return CodecError(f"expected {expected}, got {type(value).__name__}")


def _checked(test: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if test(value):
            return value
        raise _mismatch(expected, value)

    return check


def _scalar(test: Callable[[Any], bool], expected: str, kinds: AbstractSet[str]) -> _Converter:
    check = _checked(test, expected)
    return _Converter(check, check, expected, kinds, plain=True)


def _str(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise _mismatch("text", value)


def _int(value: Any) -> Any:
    if type(value) is int or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _mismatch("a whole number", value)


def _float(value: Any) -> float:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise _mismatch("a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise CodecError("expected a number, got one that is too large") from None
    if not math.isfinite(number):
        raise CodecError(f"expected a number, got {number}")
    return number


def _text_form(
    expected: str, test: Callable[[Any], bool], dump: Callable[[Any], str], load: Callable[[str], Any]
) -> _Converter:
    """A type that is written as text."""

    def dump_text(value: Any) -> str:
        if test(value):
            return dump(value)
        raise _mismatch(expected, value)

    def load_text(data: Any) -> Any:
        if not isinstance(data, str):
            raise _mismatch(f"{expected} as text", data)
        try:
            return load(data)
        except (ValueError, InvalidOperation, OverflowError):
            raise CodecError(f"expected {expected}, got {_shorten(data)}") from None

    return _Converter(dump_text, load_text, expected, _STRING)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
        raise _mismatch("a timedelta", value)
    if not value.microseconds:
        return value.days * 86_400 + value.seconds
    if abs(value.days) > 100_000:  # 2^53 microseconds: beyond it a float cannot tell them apart
        raise CodecError("expected a timedelta, got one too long to keep its microseconds")
    return value.total_seconds()


def _load_timedelta(data: Any) -> timedelta:
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise _mismatch("a number of seconds", data)
    try:
        return timedelta(seconds=data)
    except (OverflowError, ValueError):
        raise CodecError(f"expected a number of seconds, got {_shorten(data)}") from None


_ANY = _Converter(_plain, lambda data: data, "JSON", frozenset(_KINDS.values()), plain=True)
_NONE = _scalar(lambda value: value is None, "None", _NULL)

_SCALARS: Final[dict[Any, _Converter]] = {
    Any: _ANY,
    object: _ANY,
    inspect.Parameter.empty: _ANY,
    None: _NONE,
    type(None): _NONE,
    bool: _scalar(lambda value: isinstance(value, bool), "a bool", _BOOL),
    int: _Converter(_int, _int, "a whole number", _INT, plain=True),
    float: _Converter(_float, _float, "a number", _NUMBER, plain=True),
    str: _Converter(_str, _str, "text", _STRING, plain=True),
    datetime: _text_form("a datetime", lambda v: isinstance(v, datetime), datetime.isoformat, _parse_datetime),
    date: _text_form(
        "a date", lambda v: isinstance(v, date) and not isinstance(v, datetime), date.isoformat, date.fromisoformat
    ),
    time: _text_form("a time", lambda v: isinstance(v, time), time.isoformat, _parse_time),
    timedelta: _Converter(_dump_timedelta, _load_timedelta, "a timedelta", _NUMBER),
    UUID: _text_form("a UUID", lambda v: isinstance(v, UUID), str, UUID),
    Decimal: _text_form("a Decimal", lambda v: isinstance(v, Decimal), _dump_decimal, _parse_decimal),
}

_HINTS: Final = {
    set: "declare a list", frozenset: "declare a list", bytes: "encode it as text", bytearray: "encode it as text",
    memoryview: "encode it as text", complex: "declare a tuple of two floats",
}  # fmt: skip


def _list_of(item: _Converter) -> _Converter:
    dump_item, load_item = item.dump, item.load

    def dump(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _mismatch("a list", value)
        result: list[Any] = []
        try:
            for element in value:
                result.append(dump_item(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    def load(data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise _mismatch("a list", data)
        result: list[Any] = []
        try:
            for element in data:
                result.append(load_item(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    return _Converter(dump, load, "a list", _ARRAY, plain=item.plain)


def _tuple_of(items: Sequence[_Converter]) -> _Converter:
    expected = f"a tuple of {len(items)}"

    def convert(value: Any, step: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _mismatch(expected, value)
        if len(value) != len(items):
            raise CodecError(f"expected {expected}, got {len(value)}")
        result: list[Any] = []
        try:
            for item, element in zip(items, value, strict=True):
                result.append(getattr(item, step)(element))
        except CodecError as error:
            raise error.within(len(result)) from None
        return result

    return _Converter(lambda value: convert(value, "dump"), lambda data: tuple(convert(data, "load")), expected, _ARRAY)


def _dict_of(key: _Converter, item: _Converter) -> _Converter:
    def converter(convert_key: Callable[[Any], Any], convert_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def convert(value: Any) -> dict[Any, Any]:
            if not isinstance(value, dict):
                raise _mismatch("a dict", value)
            result = {}
            for name, element in value.items():
                try:
                    result[convert_key(name)] = convert_item(element)
                except CodecError as error:
                    raise error.within(str(name)) from None
            return result

        return convert

    return _Converter(
        converter(key.dump, item.dump),
        converter(key.load, item.load),
        "a dict",
        _OBJECT,
        plain=key.plain and item.plain,
    )


def _tagged(value: Any) -> tuple[type, Any]:
    # 1 == True == 1.0 as keys of a dict, but not in JSON.
    return type(value), value


def _literal(values: Sequence[Any], where: str) -> _Converter:
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
                raise CodecError(f"expected {expected}, got {_shorten(value)}") from None

        return convert

    return _Converter(
        converter(to_json),
        converter(from_json),
        expected,
        frozenset(_KINDS[kind] for kind, _ in from_json),
        plain=not any(isinstance(value, Enum) for value in values),
        choices=frozenset(from_json),
    )


def _enum(cls: type[Enum], where: str) -> _Converter:
    members = {_tagged(member.value): member for member in cls}
    if any(kind not in (str, int, float, bool, type(None)) for kind, _ in members):
        raise TypeError(f"{where}: the values of the enum {cls.__name__} must be text, numbers or None.")
    expected = _article(cls.__name__)

    def dump(value: Any) -> Any:
        if isinstance(value, cls):
            return value.value
        raise _mismatch(expected, value)

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
        raise CodecError(f"expected {expected}, got {_shorten(data)}")

    open_ended = issubclass(cls, Flag)
    kinds = frozenset(_KINDS[kind] for kind, _ in members) or _INT
    return _Converter(dump, load, expected, kinds, choices=None if open_ended else frozenset(members))


def _union(members: Sequence[_Converter], where: str) -> _Converter:
    for index, member in enumerate(members):
        for other in members[index + 1 :]:
            if member.confusable_with(other):
                raise TypeError(
                    f"{where}: {member.expected} and {other.expected} cannot be told apart in JSON; use one of them, "
                    "or dataclasses that each have a field of another Literal."
                )
    # A float takes whole numbers too: an int beside it goes first, so that ints stay ints.
    ordered = sorted(members, key=lambda member: len(member.kinds))
    by_kind = {kind: tuple(member for member in ordered if name in member.kinds) for kind, name in _KINDS.items()}
    expected = " or ".join(member.expected for member in members)

    def first(candidates: Sequence[_Converter], step: str, value: Any) -> Any:
        inner: list[CodecError] = []
        for member in candidates:
            try:
                return getattr(member, step)(value)
            except CodecError as error:
                if error.path:
                    inner.append(error)
        if len(inner) == 1:
            raise inner[0]
        raise _mismatch(expected, value)

    def load(data: Any) -> Any:
        return first(by_kind.get(type(data), ()), "load", data)

    return _Converter(
        lambda value: first(ordered, "dump", value),
        load,
        expected,
        frozenset().union(*(member.kinds for member in members)),
        plain=all(member.plain for member in members),
    )


def _optional(member: _Converter) -> _Converter:
    inner_dump, inner_load = member.dump, member.load
    return dataclasses.replace(
        member,
        dump=lambda value: None if value is None else inner_dump(value),
        load=lambda data: None if data is None else inner_load(data),
        expected=f"{member.expected} or None",
        kinds=member.kinds | _NULL,
        choices=None,
        shape=None,
        load_text=None,
    )


def _check_keys(shape: _Shape, keys: AbstractSet[Any]) -> None:
    """Say which key is missing or unknown, if one is."""
    missing = shape.required - keys
    if missing:
        raise CodecError(f"missing {', '.join(map(repr, sorted(missing)))}")
    unknown = sorted(repr(key) for key in keys - shape.allowed)
    if unknown:
        raise CodecError(f"unknown {', '.join(unknown)}")


def _dataclass(cls: type[Any], fields: Mapping[str, _Converter], shape: _Shape) -> _Converter:
    expected = _article(cls.__name__)
    dumps = [(name, converter.dump) for name, converter in fields.items()]
    loads = [(name, converter.load) for name, converter in fields.items()]
    required = shape.required

    def coerce(value: Any) -> Any:
        """A dict that decodes to the dataclass will do; a subclass must not lose fields of its own."""
        if isinstance(value, dict):
            return load(value)
        if not isinstance(value, cls):
            raise _mismatch(expected, value)
        extra = {field.name for field in dataclasses.fields(value) if field.init} - shape.allowed
        if extra:
            names = ", ".join(sorted(extra))
            raise CodecError(f"expected {expected}, got {_article(type(value).__name__)}, which would lose {names}")
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
            raise _mismatch(expected, data)
        values = {}
        name = ""
        try:
            for name, load_field in loads:
                if name in data:
                    values[name] = load_field(data[name])
        except CodecError as error:
            raise error.within(name) from None
        if len(values) != len(data) or not required <= values.keys():
            _check_keys(shape, data.keys())
        try:
            return cls(**values)
        except Exception as error:
            raise CodecError(f"expected {expected}, but it refuses the values: {error}") from error

    return _Converter(dump, load, expected, _OBJECT, shape=shape)


def _typed_dict(cls: type[Any], fields: Mapping[str, _Converter], shape: _Shape) -> _Converter:
    expected = _article(cls.__name__)

    def converter(convert_fields: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise _mismatch(expected, value)
            if value.keys() != shape.allowed:
                _check_keys(shape, value.keys())
            result = {}
            for name, item in value.items():
                try:
                    result[name] = convert_fields[name](item)
                except CodecError as error:
                    raise error.within(name) from None
            return result

        return convert

    return _Converter(
        converter({name: field.dump for name, field in fields.items()}),
        converter({name: field.load for name, field in fields.items()}),
        expected,
        _OBJECT,
        plain=all(field.plain for field in fields.values()),
        shape=shape,
    )


def _pydantic(cls: Any) -> _Converter:
    """A pydantic model: recognised by its methods, so that pydantic is never imported from here."""
    expected = _article(cls.__name__)
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
                raise _mismatch(expected, value)
            value = guarded(cls.model_validate, value)
        extra = set() if type(value) is cls else set(type(value).model_fields) - set(fields)
        if extra:
            names = ", ".join(sorted(extra))
            raise CodecError(f"expected {expected}, got {_article(type(value).__name__)}, which would lose {names}")
        data = guarded(lambda: value.model_dump(mode="json", by_alias=True, warnings=False))
        load(data)  # a model can be changed after it was validated
        return data

    def load(data: Any) -> Any:
        # As JSON, not as Python values: strict models take a date as text only from JSON.
        return guarded(cls.model_validate_json, _write(data))

    def load_text(text: str) -> Any:
        return guarded(cls.model_validate_json, text)

    def key(name: str) -> str:
        return str(getattr(fields[name], "alias", None) or name)

    shape = None
    if not is_root:
        tags = {key(name): set(get_args(f.annotation)) for name, f in fields.items() if _is_literal(f.annotation)}
        shape = _Shape(
            required={key(name) for name, field in fields.items() if field.is_required()},
            allowed={key(name) for name in fields},
            takes_unknown=cls.model_config.get("extra", "ignore") != "forbid",
            tags=tags,
        )
    kinds = frozenset(_KINDS.values()) if is_root else _OBJECT
    return _Converter(dump, load, expected, kinds, shape=shape, load_text=load_text)


_Env = Mapping[Any, Any]  # what stands for the type variables of a generic class

_LISTS: Final = frozenset(
    {list, Sequence, Iterable, typing.Collection, typing.MutableSequence}
    | {get_origin(generic) for generic in (typing.Collection, typing.MutableSequence)}
)
_DICTS: Final = frozenset({dict, Mapping, get_origin(typing.MutableMapping)})


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


def _special_name(form: Any) -> str | None:
    """The name of a special form of typing or typing_extensions, which are different objects on older Pythons."""
    if type(form).__module__ in ("typing", "typing_extensions") or getattr(form, "__module__", "") == "typing":
        name = getattr(form, "_name", None)
        return name if isinstance(name, str) else None
    return None


def _is_dataclass(origin: Any) -> bool:
    return isinstance(origin, type) and dataclasses.is_dataclass(origin)


def _is_typed_dict(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, dict) and hasattr(origin, "__required_keys__")


def resolve_hints(
    owner: Any, where: str, *, globalns: dict[str, Any] | None = None, localns: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The annotations of a class or function, with the names in them looked up."""
    try:
        return typing.get_type_hints(owner, globalns=globalns, localns=dict(localns) if localns else None, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{where}: the name {error.name!r} in its annotations is not known at run time; define it before, at "
            "module level and not under TYPE_CHECKING, or give the types with input= and output=."
        ) from None
    except Exception as error:
        raise TypeError(f"{where}: its annotations cannot be read: {error}") from error


class _Compiler:
    """Builds the converter of one annotation; classes that contain themselves are tied through `_known`."""

    def __init__(self, localns: Mapping[str, Any] | None) -> None:
        self._localns = localns
        self._known: dict[Any, _Converter | None] = {}

    def compile(self, annotation: Any, where: str, env: _Env | None = None) -> _Converter:
        env = env or {}
        try:
            if annotation in _SCALARS:
                return _SCALARS[annotation]
        except TypeError:
            raise TypeError(f"{where}: {annotation!r} is not a type.") from None
        if isinstance(annotation, TypeVar):
            return self._type_variable(annotation, where, env)
        if isinstance(annotation, ForwardRef):
            return self._forward_reference(annotation, where, env)
        if type(annotation).__name__ == "TypeAliasType":
            return self._once(annotation, _ANY, lambda: self.compile(annotation.__value__, where, env))
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is None:
            return self._plain_type(annotation, where, env)
        return self._parametrised(annotation, origin, args, where, env)

    def _plain_type(self, annotation: Any, where: str, env: _Env) -> _Converter:
        if hasattr(annotation, "__supertype__"):
            return self.compile(annotation.__supertype__, where, env)
        name = _special_name(annotation)
        if name == "Self" and "Self" in env:
            return self.compile(env["Self"], where, env)
        if name == "LiteralString":
            return _SCALARS[str]
        if annotation in _LISTS or name in ("List", "Sequence", "Iterable", "Collection"):
            return _list_of(_ANY)
        if annotation in _DICTS or name in ("Dict", "Mapping", "MutableMapping"):
            return _dict_of(_SCALARS[str], _ANY)
        if annotation is tuple or name == "Tuple":
            return self._many(_ANY)
        if isinstance(annotation, type):
            return self._class(annotation, (), where, env)
        raise TypeError(f"{where}: {annotation!r} has no JSON form.")

    def _parametrised(self, annotation: Any, origin: Any, args: tuple[Any, ...], where: str, env: _Env) -> _Converter:
        if origin is Union or origin is types.UnionType:
            return self._members(args, where, env)
        if origin is Literal:
            return _literal(args, where)
        if _special_name(origin) in ("Annotated", "Required", "NotRequired", "ReadOnly", "Final"):
            return self.compile(args[0], where, env)
        if origin is typing.Annotated:
            return self.compile(args[0], where, env)
        if type(origin).__name__ == "TypeAliasType":
            values = [_substitute(arg, env) for arg in args]
            inner = {**env, **dict(zip(origin.__type_params__, values, strict=False))}
            return self._once(annotation, _ANY, lambda: self.compile(origin.__value__, where, inner))
        if origin in _LISTS:
            return _list_of(self.compile(args[0], where, env))
        if origin in _DICTS:
            return self._dict(args, where, env)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return self._many(self.compile(args[0], where, env))
            return _tuple_of([self.compile(arg, where, env) for arg in args if arg != ()])
        if isinstance(origin, type):
            return self._class(origin, tuple(_substitute(arg, env) for arg in args), where, env)
        raise TypeError(f"{where}: {annotation!r} has no JSON form.")

    def _class(self, cls: type[Any], args: tuple[Any, ...], where: str, env: _Env) -> _Converter:
        if issubclass(cls, Enum):
            return _enum(cls, where)
        if hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump"):
            return _pydantic(cls)
        if _is_dataclass(cls) or _is_typed_dict(cls):
            parameters = getattr(cls, "__parameters__", ())
            inner = {**_inherited_variables(cls), **dict(zip(parameters, args, strict=False)), "Self": cls}
            build = self._typed_dict if _is_typed_dict(cls) else self._dataclass
            return build(cls, args, inner)
        for refused, hint in _HINTS.items():
            if issubclass(cls, refused):
                raise TypeError(f"{where}: {_article(cls.__name__)} has no JSON form; {hint}.")
        raise TypeError(
            f"{where}: the class {cls.__name__} has no JSON form; declare a dataclass, a TypedDict or a pydantic model."
        )

    def _dataclass(self, cls: type[Any], args: tuple[Any, ...], env: _Env) -> _Converter:
        fields = [field for field in dataclasses.fields(cls) if field.init]
        for parameter in inspect.signature(cls).parameters.values():
            if parameter.default is parameter.empty and parameter.name not in {field.name for field in fields}:
                raise TypeError(f"{cls.__name__}.{parameter.name}: what no field keeps cannot be restored from JSON.")
        hints = self._hints(cls)
        missing = dataclasses.MISSING
        shape = _Shape(
            required={f.name for f in fields if f.default is missing and f.default_factory is missing},
            allowed={f.name for f in fields},
            tags=_tags(hints),
        )

        def build() -> _Converter:
            converters = {f.name: self.compile(hints[f.name], f"{cls.__name__}.{f.name}", env) for f in fields}
            return _dataclass(cls, converters, shape)

        sketch = dataclasses.replace(_ANY, expected=_article(cls.__name__), kinds=_OBJECT, plain=False, shape=shape)
        return self._once((cls, args), sketch, build)

    def _hints(self, cls: type[Any]) -> dict[str, Any]:
        # Local names are for local classes: in another module the same name is something else.
        localns = self._localns if "<locals>" in cls.__qualname__ else None
        return resolve_hints(cls, cls.__name__, localns=localns)

    def _typed_dict(self, cls: Any, args: tuple[Any, ...], env: _Env) -> _Converter:
        hints = self._hints(cls)
        required = set(cls.__required_keys__)
        for name, hint in hints.items():
            # As text (from __future__ import annotations) these were not seen when the class was made.
            marker = _special_name(get_origin(hint))
            if marker == "NotRequired":
                required.discard(name)
            elif marker == "Required":
                required.add(name)
        shape = _Shape(required=required, allowed=set(hints), tags=_tags(hints))

        def build() -> _Converter:
            converters = {name: self.compile(hint, f"{cls.__name__}.{name}", env) for name, hint in hints.items()}
            return _typed_dict(cls, converters, shape)

        sketch = dataclasses.replace(_ANY, expected=_article(cls.__name__), kinds=_OBJECT, plain=False, shape=shape)
        return self._once((cls, args), sketch, build)

    def _members(self, args: Sequence[Any], where: str, env: _Env) -> _Converter:
        members = [self.compile(arg, where, env) for arg in args if arg is not type(None)]
        if len(members) == len(args):
            return _union(members, where)
        return _optional(members[0] if len(members) == 1 else _union(members, where))

    def _dict(self, args: Sequence[Any], where: str, env: _Env) -> _Converter:
        key = self.compile(args[0], where, env)
        if key is _ANY:
            key = _SCALARS[str]
        if key.kinds != _STRING:
            raise TypeError(f"{where}: the keys of a JSON object are text, so {args[0]!r} cannot be one.")
        return _dict_of(key, self.compile(args[1], where, env))

    def _many(self, item: _Converter) -> _Converter:
        as_list = _list_of(item)
        load = as_list.load
        return dataclasses.replace(as_list, load=lambda data: tuple(load(data)), expected="a tuple", plain=False)

    def _type_variable(self, variable: TypeVar, where: str, env: _Env) -> _Converter:
        if variable in env:
            return self.compile(env[variable], where, {k: v for k, v in env.items() if k is not variable})
        if variable.__constraints__:
            return self._members(variable.__constraints__, where, env)
        return _ANY if variable.__bound__ is None else self.compile(variable.__bound__, where, env)

    def _forward_reference(self, reference: ForwardRef, where: str, env: _Env) -> _Converter:
        name = reference.__forward_arg__
        if reference.__forward_evaluated__:
            target = reference.__forward_value__
        elif self._localns and name in self._localns:
            target = self._localns[name]
        else:
            raise TypeError(f"{where}: the name {name!r} in it is not known at run time.")
        return self._once(reference, _ANY, lambda: self.compile(target, where, env))

    def _once(self, key: Any, sketch: _Converter, build: Callable[[], _Converter]) -> _Converter:
        """Build the converter, or, inside itself, a sketch that calls the finished one."""
        known = self._known
        if key not in known:
            known[key] = None
            try:
                known[key] = build()
            finally:
                if known[key] is None:
                    del known[key]
        finished = known[key]
        if finished is not None:
            return finished
        return dataclasses.replace(
            sketch,
            dump=lambda value: typing.cast(_Converter, known[key]).dump(value),
            load=lambda data: typing.cast(_Converter, known[key]).load(data),
        )


def _tags(hints: Mapping[str, Any]) -> dict[str, set[Any]]:
    return {name: set(get_args(hint)) for name, hint in hints.items() if _is_literal(hint)}


def _substitute(annotation: Any, env: _Env) -> Any:
    """The annotation with the type variables in it replaced."""
    if isinstance(annotation, TypeVar):
        return env.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if get_origin(annotation) is None or not parameters:
        return annotation
    return annotation[tuple(env.get(parameter, parameter) for parameter in parameters)]


def _inherited_variables(cls: type[Any]) -> dict[Any, Any]:
    """What a class like `IntBox(Box[int])` puts for the variables of its bases."""
    found: dict[Any, Any] = {}
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            parameters = getattr(get_origin(generic), "__parameters__", ())
            for parameter, arg in zip(parameters, get_args(generic), strict=False):
                if parameter is not arg:
                    found.setdefault(parameter, arg)
    return found

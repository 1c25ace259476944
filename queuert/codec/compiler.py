"""From an annotation to its converter."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from queuert.codec.choices import enum_of, literal_of, optional, union_of
from queuert.codec.containers import dict_of, list_of, tuple_of
from queuert.codec.converter import OBJECT, STRING, Converter, Shape
from queuert.codec.hints import (
    Env,
    inherited_variables,
    is_dataclass,
    is_typed_dict,
    literal_tags,
    resolve_hints,
    special_name,
    substitute,
)
from queuert.codec.objects import dataclass_of, pydantic_of, typed_dict_of
from queuert.codec.scalars import ANY, INSTEAD, SCALARS
from queuert.codec.text import article

_LISTS: Final = frozenset(
    {list, Sequence, Iterable, typing.Collection, typing.MutableSequence}
    | {get_origin(generic) for generic in (typing.Collection, typing.MutableSequence)}
)
_DICTS: Final = frozenset({dict, Mapping, get_origin(typing.MutableMapping)})


class Compiler:
    """Builds the converter of one annotation; classes that contain themselves are tied through `_known`.

    With `drops_unknown` the converter's `load` leaves out the fields that an object type does not know.
    """

    def __init__(self, localns: Mapping[str, Any] | None, *, drops_unknown: bool = False) -> None:
        self._localns = localns
        self._drops_unknown = drops_unknown
        self._known: dict[Any, Converter | None] = {}

    def compile(self, annotation: Any, where: str, env: Env | None = None) -> Converter:
        env = env or {}
        try:
            if annotation in SCALARS:
                return SCALARS[annotation]
        except TypeError:
            raise TypeError(f"{where}: {annotation!r} is not a type.") from None
        if isinstance(annotation, TypeVar):
            return self._type_variable(annotation, where, env)
        if isinstance(annotation, ForwardRef):
            return self._forward_reference(annotation, where, env)
        if type(annotation).__name__ == "TypeAliasType":
            return self._once(annotation, ANY, lambda: self.compile(annotation.__value__, where, env))
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is None:
            return self._plain_type(annotation, where, env)
        return self._parametrised(annotation, origin, args, where, env)

    def _plain_type(self, annotation: Any, where: str, env: Env) -> Converter:
        if hasattr(annotation, "__supertype__"):
            return self.compile(annotation.__supertype__, where, env)
        name = special_name(annotation)
        if name == "Self" and "Self" in env:
            return self.compile(env["Self"], where, env)
        if name == "LiteralString":
            return SCALARS[str]
        if annotation in _LISTS or name in ("List", "Sequence", "Iterable", "Collection"):
            return list_of(ANY)
        if annotation in _DICTS or name in ("Dict", "Mapping", "MutableMapping"):
            return dict_of(SCALARS[str], ANY)
        if annotation is tuple or name == "Tuple":
            return self._many(ANY)
        if isinstance(annotation, type):
            return self._class(annotation, (), where, env)
        raise TypeError(f"{where}: {annotation!r} has no JSON form.")

    def _parametrised(self, annotation: Any, origin: Any, args: tuple[Any, ...], where: str, env: Env) -> Converter:
        if origin is Union or origin is types.UnionType:
            return self._members(args, where, env)
        if origin is Literal:
            return literal_of(args, where)
        if special_name(origin) in ("Annotated", "Required", "NotRequired", "ReadOnly", "Final"):
            return self.compile(args[0], where, env)
        if origin is typing.Annotated:
            return self.compile(args[0], where, env)
        if type(origin).__name__ == "TypeAliasType":
            values = [substitute(arg, env) for arg in args]
            inner = {**env, **dict(zip(origin.__type_params__, values, strict=False))}
            return self._once(annotation, ANY, lambda: self.compile(origin.__value__, where, inner))
        if origin in _LISTS:
            return list_of(self.compile(args[0], where, env))
        if origin in _DICTS:
            return self._dict(args, where, env)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return self._many(self.compile(args[0], where, env))
            return tuple_of([self.compile(arg, where, env) for arg in args if arg != ()])
        if isinstance(origin, type):
            return self._class(origin, tuple(substitute(arg, env) for arg in args), where, env)
        raise TypeError(f"{where}: {annotation!r} has no JSON form.")

    def _class(self, cls: type[Any], args: tuple[Any, ...], where: str, env: Env) -> Converter:
        if issubclass(cls, Enum):
            return enum_of(cls, where)
        if hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump"):
            return pydantic_of(cls, drops_unknown=self._drops_unknown)
        if is_dataclass(cls) or is_typed_dict(cls):
            parameters = getattr(cls, "__parameters__", ())
            inner = {**inherited_variables(cls), **dict(zip(parameters, args, strict=False)), "Self": cls}
            build = self._typed_dict if is_typed_dict(cls) else self._dataclass
            return build(cls, args, inner)
        for refused, hint in INSTEAD.items():
            if issubclass(cls, refused):
                raise TypeError(f"{where}: {article(cls.__name__)} has no JSON form; {hint}.")
        raise TypeError(
            f"{where}: the class {cls.__name__} has no JSON form; declare a dataclass, a TypedDict or a pydantic model."
        )

    def _dataclass(self, cls: type[Any], args: tuple[Any, ...], env: Env) -> Converter:
        fields = [field for field in dataclasses.fields(cls) if field.init]
        for parameter in inspect.signature(cls).parameters.values():
            if parameter.default is parameter.empty and parameter.name not in {field.name for field in fields}:
                raise TypeError(f"{cls.__name__}.{parameter.name}: what no field keeps cannot be restored from JSON.")
        hints = self._hints(cls)
        missing = dataclasses.MISSING
        shape = Shape(
            required={f.name for f in fields if f.default is missing and f.default_factory is missing},
            allowed={f.name for f in fields},
            tags=literal_tags(hints),
        )

        def build() -> Converter:
            converters = {f.name: self.compile(hints[f.name], f"{cls.__name__}.{f.name}", env) for f in fields}
            return dataclass_of(cls, converters, shape, drops_unknown=self._drops_unknown)

        sketch = dataclasses.replace(ANY, expected=article(cls.__name__), kinds=OBJECT, plain=False, shape=shape)
        return self._once((cls, args), sketch, build)

    def _hints(self, cls: type[Any]) -> dict[str, Any]:
        # Local names are for local classes: in another module the same name is something else.
        localns = self._localns if "<locals>" in cls.__qualname__ else None
        return resolve_hints(cls, cls.__name__, localns=localns)

    def _typed_dict(self, cls: Any, args: tuple[Any, ...], env: Env) -> Converter:
        hints = self._hints(cls)
        required = set(cls.__required_keys__)
        for name, hint in hints.items():
            # As text (from __future__ import annotations) these were not seen when the class was made.
            marker = special_name(get_origin(hint))
            if marker == "NotRequired":
                required.discard(name)
            elif marker == "Required":
                required.add(name)
        shape = Shape(required=required, allowed=set(hints), tags=literal_tags(hints))

        def build() -> Converter:
            converters = {name: self.compile(hint, f"{cls.__name__}.{name}", env) for name, hint in hints.items()}
            return typed_dict_of(article(cls.__name__), converters, shape, drops_unknown=self._drops_unknown)

        sketch = dataclasses.replace(ANY, expected=article(cls.__name__), kinds=OBJECT, plain=False, shape=shape)
        return self._once((cls, args), sketch, build)

    def arguments(self, hints: Mapping[str, Any], required: Iterable[str], what: str) -> Converter:
        """The converter of a function's arguments, by name."""
        converters = {name: self.compile(hint, f"{name!r} of {what}", {}) for name, hint in hints.items()}
        shape = Shape(required=set(required), allowed=set(hints))
        return typed_dict_of(what, converters, shape, drops_unknown=self._drops_unknown)

    def _members(self, args: Sequence[Any], where: str, env: Env) -> Converter:
        wanted = [arg for arg in args if arg is not type(None)]
        members = [self.compile(arg, where, env) for arg in wanted]
        if len(members) == 1:
            return optional(members[0]) if len(args) > 1 else members[0]
        exact = None
        if self._drops_unknown:
            strict = Compiler(self._localns)
            exact = [strict.compile(arg, where, env) for arg in wanted]
        union = union_of(members, where, exact)
        return union if len(members) == len(args) else optional(union)

    def _dict(self, args: Sequence[Any], where: str, env: Env) -> Converter:
        key = self.compile(args[0], where, env)
        if key is ANY:
            key = SCALARS[str]
        if key.kinds != STRING:
            raise TypeError(f"{where}: the keys of a JSON object are text, so {args[0]!r} cannot be one.")
        return dict_of(key, self.compile(args[1], where, env))

    def _many(self, item: Converter) -> Converter:
        as_list = list_of(item)
        load = as_list.load
        return dataclasses.replace(as_list, load=lambda data: tuple(load(data)), expected="a tuple", plain=False)

    def _type_variable(self, variable: TypeVar, where: str, env: Env) -> Converter:
        if variable in env:
            return self.compile(env[variable], where, {k: v for k, v in env.items() if k is not variable})
        if variable.__constraints__:
            return self._members(variable.__constraints__, where, env)
        return ANY if variable.__bound__ is None else self.compile(variable.__bound__, where, env)

    def _forward_reference(self, reference: ForwardRef, where: str, env: Env) -> Converter:
        name = reference.__forward_arg__
        if reference.__forward_evaluated__:
            target = reference.__forward_value__
        elif self._localns and name in self._localns:
            target = self._localns[name]
        else:
            raise TypeError(f"{where}: the name {name!r} in it is not known at run time.")
        return self._once(reference, ANY, lambda: self.compile(target, where, env))

    def _once(self, key: Any, sketch: Converter, build: Callable[[], Converter]) -> Converter:
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
            dump=lambda value: typing.cast(Converter, known[key]).dump(value),
            load=lambda data: typing.cast(Converter, known[key]).load(data),
        )

"""Reading annotations: special forms, names that stand for types, type variables."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

Env = Mapping[Any, Any]  # what stands for the type variables of a generic class


def is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


def special_name(form: Any) -> str | None:
    """The name of a special form of typing or typing_extensions, which are different objects on older Pythons."""
    if type(form).__module__ in ("typing", "typing_extensions") or getattr(form, "__module__", "") == "typing":
        name = getattr(form, "_name", None)
        return name if isinstance(name, str) else None
    return None


def is_dataclass(origin: Any) -> bool:
    return isinstance(origin, type) and dataclasses.is_dataclass(origin)


def is_typed_dict(origin: Any) -> bool:
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


def literal_tags(hints: Mapping[str, Any]) -> dict[str, set[Any]]:
    return {name: set(get_args(hint)) for name, hint in hints.items() if is_literal(hint)}


def substitute(annotation: Any, env: Env) -> Any:
    """The annotation with the type variables in it replaced."""
    if isinstance(annotation, TypeVar):
        return env.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if get_origin(annotation) is None or not parameters:
        return annotation
    return annotation[tuple(env.get(parameter, parameter) for parameter in parameters)]


def inherited_variables(cls: type[Any]) -> dict[Any, Any]:
    """What a class like `IntBox(Box[int])` puts for the variables of its bases."""
    found: dict[Any, Any] = {}
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            parameters = getattr(get_origin(generic), "__parameters__", ())
            for parameter, arg in zip(parameters, get_args(generic), strict=False):
                if parameter is not arg:
                    found.setdefault(parameter, arg)
    return found

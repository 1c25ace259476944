"""Handlers: which functions can be one, and the types that their annotations name."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from queuert.codec import resolve_hints
from queuert.codec.text import article


def handler_name(handler: Callable[..., Any]) -> str:
    """The name that a function gives to its job type."""
    name = getattr(handler, "__name__", None)
    if name is None or name == "<lambda>":
        raise ValueError(f"{handler!r} has no name of its own: give the job type one, as in @app.job('name').")
    return str(name)


def check_handler(handler: object) -> None:
    """A function that can be the handler of `@app.job`."""
    signature = _checked_signature(handler)
    if signature is None:
        return  # written in C, without a signature to look at
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"A handler takes one argument, the job; {_called(handler)} takes {signature}. "
            "A function with parameters of its own is a task: use @app.task."
        ) from None


def check_task(function: object) -> None:
    """A function that can be a task: each of its parameters can be given by name."""
    signature = _checked_signature(function)
    if signature is None:
        raise TypeError(f"A task needs a function that tells its parameters, and {_called(function)} does not.")
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            only = parameter.kind is parameter.POSITIONAL_ONLY
            raise TypeError(
                f"The input of a task is its parameters by name, but {str(parameter).split(':')[0]} of {_called(function)} "
                f"{'can be given by position only' if only else 'takes any arguments'}: give it parameters with names."
            )


def _checked_signature(handler: object) -> inspect.Signature | None:
    if not callable(handler) or isinstance(handler, type):
        raise TypeError(f"A handler must be a function, not {handler!r}.")
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004  (the method, not whether)
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(f"Handlers are synchronous, but {_called(handler)} is async: define it without async.")
        if inspect.isgeneratorfunction(candidate):
            raise TypeError(f"A handler returns its output, but {_called(handler)} is a generator: use return, not yield.")
    try:
        return inspect.signature(handler)
    except ValueError:
        return None


def _called(handler: object) -> str:
    return str(getattr(handler, "__qualname__", None) or repr(handler))


def handler_types(handler: Callable[..., Any] | None, input_type: Any, output_type: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The types of input and output, given or from the annotations, and the local names that may occur in them."""
    empty = inspect.Parameter.empty
    if handler is None:
        return empty if input_type is None else input_type, empty if output_type is None else output_type, {}
    resolve, local_names = _resolver(handler)
    try:
        signature = inspect.signature(handler)
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("job", inspect.Parameter.POSITIONAL_ONLY)])
    if input_type is None:
        annotation = next(iter(signature.parameters.values())).annotation
        input_type = empty if annotation is empty else _input_of(resolve(annotation), handler)
    if output_type is None:
        annotation = signature.return_annotation
        output_type = empty if annotation is empty else _output_of(resolve(annotation))
    return input_type, output_type, local_names


def task_types(function: Callable[..., Any], output_type: Any) -> tuple[dict[str, Any], frozenset[str], Any, dict[str, Any]]:
    """The types of a task's parameters by name, those that have no default, the type of its output, and local names."""
    from queuert.running_job import RunningJob

    empty = inspect.Parameter.empty
    resolve, local_names = _resolver(function)
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        hints[name] = Any if parameter.annotation is empty else resolve(parameter.annotation)
        if (get_origin(hints[name]) or hints[name]) is RunningJob:
            raise TypeError(
                f"{_called(function)} takes a RunningJob, so it is a handler for @app.job; in a task, queuert.current_job() "
                "is the running job."
            )
    required = frozenset(each.name for each in signature.parameters.values() if each.default is empty)
    if output_type is None:
        annotation = signature.return_annotation
        output_type = empty if annotation is empty else _output_of(resolve(annotation))
    return hints, required, output_type, local_names


def _resolver(handler: Callable[..., Any]) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """What looks up the names in the annotations of a function, and the local names that may occur in them."""
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = getattr(function, "__func__", type(function).__call__)  # of a method, or of a callable object
    module_names: dict[str, Any] = getattr(function, "__globals__", {})
    local_names = _local_names(function, module_names)

    def resolve(annotation: Any) -> Any:
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        where = f"The handler {_called(handler)}"
        return resolve_hints(holder, where, globalns=module_names, localns=local_names)["it"]

    return resolve, local_names


def _local_names(function: Any, module_names: dict[str, Any]) -> dict[str, Any]:
    """Names that annotations may use besides the module's: those of the functions around the handler, so that types may
    be defined beside it, and our own two, which are often imported for the type checker only."""
    from queuert.running_job import Continuation, RunningJob

    around = set(getattr(function, "__qualname__", "").split(".")[:-1])
    found: dict[str, Any] = {}
    frame = sys._getframe().f_back if around else None
    while frame is not None:
        if frame.f_globals is module_names and frame.f_code.co_name in around:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    for name, value in (("RunningJob", RunningJob), ("Continuation", Continuation)):
        if name not in module_names:
            found.setdefault(name, value)
    return found


def _input_of(annotation: Any, handler: object) -> Any:
    """`Order` of `RunningJob[Order]`; what is a running job of anything is not checked."""
    from queuert.running_job import RunningJob

    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin, args = get_origin(annotation), get_args(annotation)
    kind = annotation if origin is None else origin
    if isinstance(kind, type) and issubclass(kind, RunningJob) and len(args) == 1:
        return args[0]
    if not any(_takes_a_job(each) for each in (args if origin in (Union, types.UnionType) else (kind,))):
        name = getattr(annotation, "__name__", str(annotation)) if origin is None else str(annotation)
        raise TypeError(
            f"A handler takes the job, but {_called(handler)} takes {article(name)}: annotate it as RunningJob[{name}], or use "
            "@app.task, whose parameters are the input."
        )
    return inspect.Parameter.empty


def _takes_a_job(annotation: Any) -> bool:
    """Whether a running job fits, as far as can be told."""
    from queuert.running_job import RunningJob

    kind = get_origin(annotation) or annotation
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return issubclass(kind, RunningJob) or issubclass(RunningJob, kind)


def _output_of(annotation: Any) -> Any:
    """What is left of a return annotation without the ways to return no output."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if not _is_no_output(member)]
        return Union[tuple(members)] if members else inspect.Parameter.empty
    return inspect.Parameter.empty if _is_no_output(annotation) else annotation


def _is_no_output(annotation: Any) -> bool:
    if getattr(annotation, "__queuert_continuation__", False):
        return True
    return annotation is NoReturn or getattr(annotation, "_name", None) == "Never"

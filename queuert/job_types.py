"""Job types: what a job is called, what goes in and out, what may follow it, and who runs it.

A `JobType` belongs to the registry it was defined in. Registries include each other like blueprints, and stay live:
what is defined later in an included one is known to all that include it. Each keeps a flat table of all it knows, so
that looking a name up is one step however registries are nested.

What a type sets wins over its own registry, the registry over the worker, the worker over the defaults. An option that
was left out is therefore kept as UNSET until somebody asks.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from queuert.codec import Codec, CodecError, codec_for, resolve_hints
from queuert.errors import (
    DuplicateJobTypeError,
    JobTypeMismatchError,
    JobTypeValidationError,
    UnknownJobTypeError,
    ValidationCode,
)
from queuert.options import (
    DEFAULT_MAX_ATTEMPTS,
    UNSET,
    Backoff,
    BackoffFunction,
    Duration,
    Lease,
    _Unset,
    check_max_attempts,
    check_priority,
    seconds,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.handler import RunningJob

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT_co = TypeVar("OutputT_co", covariant=True)


class _Never:
    """Nobody has one of these."""


# What may be passed as the input of a JobType[InputT, ...]. The second half is for mypy, which infers an argument whose
# type mentions a callable last: by then it knows InputT from the job type, and reads a literal as what is expected.
InputOf = Union[InputT, Callable[[InputT, _Never], _Never]]

BackoffOption = Union[Backoff, BackoffFunction]
JobTypeOrName = Union[str, "JobType[Any, Any]"]

MAX_NAME_LENGTH: Final = 200
DEFAULT_BACKOFF: Final = Backoff()
DEFAULT_LEASE: Final = Lease()
MIDDLEWARE_METHODS: Final = ("around_attempt", "around_prepare", "around_complete")


class JobOptions(TypedDict, total=False):
    """The keyword options of `job` and `declare`, besides the input."""

    entry: bool
    continues_with: Iterable[JobTypeOrName] | None
    blockers: Iterable[JobTypeOrName] | None
    output: object
    max_attempts: int | _Unset | None
    backoff: BackoffOption | _Unset | None
    lease: Lease | _Unset | None
    timeout: Duration | _Unset | None
    priority: int | _Unset
    middleware: Sequence[object]


@dataclass(frozen=True)
class TypeOptions:
    """The options of a type or a registry as they were given; UNSET where they were left out."""

    max_attempts: int | _Unset | None = UNSET
    backoff: BackoffOption | _Unset | None = UNSET
    lease: Lease | _Unset | None = UNSET
    timeout: Duration | _Unset | None = UNSET
    priority: int | _Unset = UNSET
    middleware: Sequence[object] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, _Unset):
            check_max_attempts(self.max_attempts)
        if not isinstance(self.priority, _Unset):
            check_priority(self.priority)
        if not isinstance(self.timeout, _Unset) and self.timeout is not None:
            object.__setattr__(self, "timeout", seconds(self.timeout, "timeout", positive=True))
        if self.backoff is None or self.lease is None:  # as for a worker: left out
            object.__setattr__(self, "backoff", UNSET if self.backoff is None else self.backoff)
            object.__setattr__(self, "lease", UNSET if self.lease is None else self.lease)
        if not isinstance(self.backoff, _Unset) and (isinstance(self.backoff, type) or not callable(self.backoff)):
            raise TypeError(f"backoff must be a Backoff or a function from attempts used to seconds, not {self.backoff!r}.")
        if not isinstance(self.lease, (Lease, _Unset)):
            raise TypeError(f"lease must be a Lease, not {self.lease!r}.")
        object.__setattr__(self, "middleware", check_middleware(self.middleware))


def check_middleware(middleware: Sequence[object]) -> tuple[object, ...]:
    """Middleware as a tuple, each one with something to call."""
    if isinstance(middleware, (str, bytes)) or not isinstance(middleware, Iterable):
        raise TypeError(f"middleware must be a list of objects, not {middleware!r}.")
    result = tuple(middleware)
    for item in result:
        if isinstance(item, type) or not any(callable(getattr(item, method, None)) for method in MIDDLEWARE_METHODS):
            raise TypeError(f"{item!r} is not middleware: it must be an object with {' or '.join(MIDDLEWARE_METHODS)}.")
    return result


def check_name(name: object) -> str:
    """The name of a job type, if it may be one."""
    if not isinstance(name, str):
        raise TypeError(f"The name of a job type must be a string, not {name!r}.")
    if not name or len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"The name of a job type must have from 1 to {MAX_NAME_LENGTH} characters, not {len(name)}.")
    if name.startswith(":"):
        raise ValueError(f"The name of a job type must not start with a colon: {name!r}.")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ValueError(f"The name of a job type must not contain control characters or surrogates: {name!r}.")
    return name


class JobType(Generic[InputT_contra, OutputT_co]):
    """A kind of job. It can still be called like the function it was made from."""

    def __init__(
        self,
        name: str,
        handler: Callable[[RunningJob[InputT_contra]], OutputT_co] | None = None,
        *,
        entry: bool = True,
        continues_with: Iterable[JobTypeOrName] | None = None,
        blockers: Iterable[JobTypeOrName] | None = None,
        input: Any = None,
        output: Any = None,
        options: TypeOptions | None = None,
        registry_options: TypeOptions | None = None,
    ) -> None:
        if not isinstance(entry, bool):
            raise TypeError(f"entry must be True or False, not {entry!r}.")
        own, inherited = options or TypeOptions(), registry_options or TypeOptions()
        self.name: Final[str] = check_name(name)
        self.handler: Final = handler
        self.entry: Final[bool] = entry
        self.continues_with: Final[tuple[str, ...] | None] = _names(continues_with, "continues_with")
        self.blockers: Final[tuple[str, ...] | None] = _names(blockers, "blockers")
        self.options: Final[TypeOptions] = own

        self.max_attempts: Final[int | None] = _first_set(
            own.max_attempts, inherited.max_attempts, default=DEFAULT_MAX_ATTEMPTS
        )
        self.priority: Final[int] = _first_set(own.priority, inherited.priority, default=0)
        self.timeout: Final[float | None] = _first_set(own.timeout, inherited.timeout, default=None)
        self.middleware: Final[tuple[object, ...]] = (*inherited.middleware, *own.middleware)
        self._backoff: BackoffOption | None = _first_set(own.backoff, inherited.backoff, default=None)
        self._lease: Lease | None = _first_set(own.lease, inherited.lease, default=None)

        input_type, output_type, names = _handler_types(handler, input, output)
        self._input: Codec = codec_for(input_type, where=f"The input type of {name!r}", localns=names)
        self._output: Codec = codec_for(output_type, where=f"The output type of {name!r}", localns=names)
        if handler is not None:
            self.__doc__ = handler.__doc__
            self.__wrapped__ = handler  # for inspect.signature and help()

    def __call__(self, job: RunningJob[InputT_contra]) -> OutputT_co:
        if self.handler is None:
            raise TypeError(f"The job type {self.name!r} was declared without a handler, so it cannot be called.")
        return self.handler(job)

    def __repr__(self) -> str:
        return f"<JobType {self.name!r}>"

    def resolve_backoff(self, worker_backoff: BackoffOption | None = None) -> BackoffOption:
        """How retries of this type back off on a worker with this option."""
        return next((each for each in (self._backoff, worker_backoff) if each is not None), DEFAULT_BACKOFF)

    def resolve_lease(self, worker_lease: Lease | None = None) -> Lease:
        """The lease of this type on a worker with this option."""
        return self._lease or worker_lease or DEFAULT_LEASE

    def encode_input(self, value: object) -> str:
        try:
            return self._input.encode(value)
        except CodecError as error:
            raise self._misfit("invalid_input", error) from error

    def decode_input(self, text: str) -> Any:
        try:
            return self._input.decode(text)
        except CodecError as error:
            raise self._misfit("invalid_input", error) from error

    def encode_output(self, value: object) -> str:
        try:
            return self._output.encode(value)
        except CodecError as error:
            raise self._misfit("invalid_output", error) from error

    def decode_output(self, text: str) -> Any:
        try:
            return self._output.decode(text)
        except CodecError as error:
            raise self._misfit("invalid_output", error) from error

    def _misfit(self, code: ValidationCode, error: CodecError) -> JobTypeValidationError:
        what = code.removeprefix("invalid_")
        return JobTypeValidationError(
            code, f"This {what} does not fit the job type {self.name!r}: {error}.", type_name=self.name
        )


def check_type(record_id: str, expected: JobTypeOrName | None, actual: str) -> None:
    """A record has the type that was asked for, if one was."""
    name = expected.name if isinstance(expected, JobType) else expected
    if name is not None and name != actual:
        raise JobTypeMismatchError(record_id, name, actual)


def check_entry(job_type: JobType[Any, Any]) -> None:
    """A chain may start with this type."""
    if not job_type.entry:
        raise JobTypeValidationError(
            "not_entry_point",
            f"A chain cannot start with {job_type.name!r}, which is only a continuation (entry=False).",
            type_name=job_type.name,
        )


def check_continuation(from_type: JobType[Any, Any], to_name: str) -> None:
    """A job of the first type may be continued with one of the second."""
    declared = from_type.continues_with
    if declared is not None and to_name not in declared:
        allowed = f"only with {_listed(declared)}" if declared else "with nothing"
        raise JobTypeValidationError(
            "invalid_continuation",
            f"{from_type.name!r} continues {allowed}, not with {to_name!r}: add it to continues_with.",
            type_name=from_type.name,
        )


def check_blockers(job_type: JobType[Any, Any], blocker_type_names: Sequence[str]) -> None:
    """The blockers' types are those declared: each at least once, and no other."""
    declared = job_type.blockers
    if declared is None:
        return
    given = set(blocker_type_names)
    missing = [name for name in declared if name not in given]
    if missing:
        raise JobTypeValidationError(
            "invalid_blockers",
            f"{job_type.name!r} needs blockers of the types {_listed(declared)}; {_listed(missing)} is missing.",
            type_name=job_type.name,
        )
    others = sorted(given.difference(declared))
    if others:
        expected = f"blockers of the types {_listed(declared)} only" if declared else "no blockers"
        raise JobTypeValidationError(
            "invalid_blockers",
            f"{job_type.name!r} takes {expected}; {_listed(others)} is not one of them.",
            type_name=job_type.name,
        )


class JobDecorator(Protocol):
    """What `job(...)` with arguments returns: the type of the input comes from the handler's annotation."""

    def __call__(self, handler: Callable[[RunningJob[InputT]], OutputT], /) -> JobType[InputT, OutputT]: ...


class DefinesJobTypes:
    """The ways to define job types, for a registry and for an app that has one."""

    @property
    def _job_types(self) -> JobTypes:
        raise NotImplementedError

    @overload
    def job(self, handler: Callable[[RunningJob[InputT]], OutputT], /) -> JobType[InputT, OutputT]: ...

    @overload
    def job(  # type: ignore[overload-overlap]  # a class is an object too: the first that fits is meant
        self,
        name: str | None = None,
        *,
        input: type[InputT],
        **options: Unpack[JobOptions],
    ) -> Callable[[Callable[[RunningJob[InputT]], OutputT]], JobType[InputT, OutputT]]: ...

    @overload
    def job(
        self,
        name: str | None = None,
        *,
        input: object = None,
        **options: Unpack[JobOptions],
    ) -> JobDecorator: ...

    def job(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        input: object = None,
        entry: bool = True,
        continues_with: Iterable[JobTypeOrName] | None = None,
        blockers: Iterable[JobTypeOrName] | None = None,
        output: object = None,
        max_attempts: int | _Unset | None = UNSET,
        backoff: BackoffOption | _Unset | None = UNSET,
        lease: Lease | _Unset | None = UNSET,
        timeout: Duration | _Unset | None = UNSET,
        priority: int | _Unset = UNSET,
        middleware: Sequence[object] = (),
    ) -> Any:
        """Make a function the handler of a job type: `@app.job`, or `@app.job("name", ...)`.

        The name defaults to the function's, the types of input and output to its annotations. `continues_with` and
        `blockers` name what may follow and what must come before; None does not check.
        """
        options = TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware)

        def decorate(handler: Callable[..., Any]) -> JobType[Any, Any]:
            _check_handler(handler)
            return self._job_types._add(
                handler_name(handler) if name is None or callable(name) else name,
                handler,
                entry=entry,
                continues_with=continues_with,
                blockers=blockers,
                input=input,
                output=output,
                options=options,
            )

        if callable(name):
            return decorate(name)
        if name is not None:
            check_name(name)
        return decorate

    @overload
    def declare(
        self,
        name: str,
        *,
        input: type[InputT],
        **options: Unpack[JobOptions],
    ) -> JobType[InputT, Any]: ...

    @overload
    def declare(
        self,
        name: str,
        *,
        input: object = None,
        **options: Unpack[JobOptions],
    ) -> JobType[Any, Any]: ...

    def declare(
        self,
        name: str,
        *,
        input: object = None,
        entry: bool = True,
        continues_with: Iterable[JobTypeOrName] | None = None,
        blockers: Iterable[JobTypeOrName] | None = None,
        output: object = None,
        max_attempts: int | _Unset | None = UNSET,
        backoff: BackoffOption | _Unset | None = UNSET,
        lease: Lease | _Unset | None = UNSET,
        timeout: Duration | _Unset | None = UNSET,
        priority: int | _Unset = UNSET,
        middleware: Sequence[object] = (),
    ) -> JobType[Any, Any]:
        """Make a job type without a handler, for a process that only enqueues. The options are those of `job`."""
        return self._job_types._add(
            name,
            None,
            entry=entry,
            continues_with=continues_with,
            blockers=blockers,
            input=input,
            output=output,
            options=TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware),
        )

    def include(self, other: JobTypes) -> None:
        """Know all the types of another registry too, also those that are still to be defined in it."""
        self._job_types._include(other)


class JobTypes(DefinesJobTypes):
    """A registry of job types, with options for all that are defined in it.

    Its options are for its own types: those of a registry that it includes keep theirs.
    """

    def __init__(
        self,
        *,
        max_attempts: int | _Unset | None = UNSET,
        backoff: BackoffOption | _Unset | None = UNSET,
        lease: Lease | _Unset | None = UNSET,
        timeout: Duration | _Unset | None = UNSET,
        priority: int | _Unset = UNSET,
        middleware: Sequence[object] = (),
    ) -> None:
        self.options: Final[TypeOptions] = TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware)
        self._all: dict[str, JobType[Any, Any]] = {}  # its own types, and those of all it includes
        self._included_by: weakref.WeakSet[JobTypes] = weakref.WeakSet()

    @property
    def _job_types(self) -> JobTypes:
        return self

    def get(self, name_or_type: JobTypeOrName) -> JobType[Any, Any]:
        """The type of this name, as this registry knows it."""
        name = name_or_type.name if isinstance(name_or_type, JobType) else name_or_type
        found = self._all.get(name) if isinstance(name, str) else None
        if found is not None:
            return found
        if not isinstance(name, str):
            raise TypeError(f"Expected a job type or its name, not {name!r}.")
        raise UnknownJobTypeError(name)

    def find(self, name: str) -> JobType[Any, Any] | None:
        """The type of this name, or None if it is not known here."""
        return self._all.get(name)

    def names_with_handlers(self) -> tuple[str, ...]:
        """What a worker with these types can run."""
        return tuple(job_type.name for job_type in self if job_type.handler is not None)

    def __iter__(self) -> Iterator[JobType[Any, Any]]:
        return iter(tuple(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return True  # an empty registry is still one

    def __contains__(self, name_or_type: object) -> bool:
        if isinstance(name_or_type, JobType):
            return self._all.get(name_or_type.name) is name_or_type
        return name_or_type in self._all

    def _add(
        self, name: str, handler: Callable[..., Any] | None, *, options: TypeOptions, **definition: Any
    ) -> JobType[Any, Any]:
        job_type: JobType[Any, Any] = JobType(name, handler, options=options, registry_options=self.options, **definition)
        with _registration:
            _publish([job_type], self._and_includers())
        return job_type

    def _include(self, other: JobTypes) -> None:
        if not isinstance(other, JobTypes):
            raise TypeError(f"Only a JobTypes registry can be included, not {other!r}.")
        with _registration:
            registries = self._and_includers()
            if other in registries:
                raise ValueError("A registry cannot include itself.")
            _publish(list(other._all.values()), registries)
            other._included_by.add(self)

    def _and_includers(self) -> list[JobTypes]:
        """This registry and all that include it, directly or not."""
        found: list[JobTypes] = [self]
        for registry in found:
            found.extend(outer for outer in registry._included_by if outer not in found)
        return found


_registration: Final = threading.Lock()


def _publish(job_types: Sequence[JobType[Any, Any]], registries: Sequence[JobTypes]) -> None:
    """Put types into the tables of registries: all, or none if a name is owned by another type already."""
    for registry in registries:
        for job_type in job_types:
            if registry._all.get(job_type.name, job_type) is not job_type:
                raise DuplicateJobTypeError(job_type.name)
    for registry in registries:
        registry._all.update((job_type.name, job_type) for job_type in job_types)


def _first_set(*values: Any, default: Any) -> Any:
    return next((value for value in values if value is not UNSET), default)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _names(entries: Iterable[JobTypeOrName] | None, option: str) -> tuple[str, ...] | None:
    if entries is None:
        return None
    if isinstance(entries, (str, JobType)) or not isinstance(entries, Iterable):
        raise TypeError(f"{option} must be a list of job types or names, not {entries!r}.")
    names = (entry.name if isinstance(entry, JobType) else check_name(entry) for entry in entries)
    return tuple(dict.fromkeys(names))


def handler_name(handler: Callable[..., Any]) -> str:
    """The name that a function gives to its job type."""
    name = getattr(handler, "__name__", None)
    if name is None or name == "<lambda>":
        raise ValueError(f"{handler!r} has no name of its own: give the job type one, as in @app.job('name').")
    return str(name)


def _check_handler(handler: object) -> None:
    if not callable(handler) or isinstance(handler, (type, JobType)):
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
        signature = inspect.signature(handler)
    except ValueError:
        return  # written in C, without a signature to look at
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(f"A handler takes one argument, the job; {_called(handler)} takes {signature}.") from None


def _called(handler: object) -> str:
    return str(getattr(handler, "__qualname__", None) or repr(handler))


def _handler_types(handler: Callable[..., Any] | None, input_type: Any, output_type: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The types of input and output, given or from the annotations, and the local names that may occur in them."""
    empty = inspect.Parameter.empty
    if handler is None:
        return empty if input_type is None else input_type, empty if output_type is None else output_type, {}
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

    try:
        signature = inspect.signature(handler)
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("job", inspect.Parameter.POSITIONAL_ONLY)])
    if input_type is None:
        annotation = next(iter(signature.parameters.values())).annotation
        input_type = empty if annotation is empty else _input_of(resolve(annotation))
    if output_type is None:
        annotation = signature.return_annotation
        output_type = empty if annotation is empty else _output_of(resolve(annotation))
    return input_type, output_type, local_names


def _local_names(function: Any, module_names: dict[str, Any]) -> dict[str, Any]:
    """Names that annotations may use besides the module's: those of the functions around the handler, so that types may
    be defined beside it, and our own two, which are often imported for the type checker only."""
    from queuert.handler import Continuation, RunningJob

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


def _input_of(annotation: Any) -> Any:
    """`Order` of `RunningJob[Order]`; what is not annotated as a running job is not checked."""
    from queuert.handler import RunningJob

    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, RunningJob) and len(args) == 1:
        return args[0]
    return inspect.Parameter.empty


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

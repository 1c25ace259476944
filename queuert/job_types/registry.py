"""Registries of job types, which include each other like blueprints and stay live.

What is defined later in an included one is known to all that include it. Each keeps a flat table of all it knows, so that
looking a name up is one step however registries are nested.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from queuert.errors import DuplicateJobTypeError, UnknownJobTypeError
from queuert.job_types.handlers import check_handler, check_task, handler_name
from queuert.job_types.job_type import JobType, check_name
from queuert.job_types.options import BackoffOption, JobOptions, JobTypeOrName, TypeOptions
from queuert.job_types.schedules import Missed, Periodic, periodic_of
from queuert.job_types.starting import AppOf
from queuert.job_types.task import Task
from queuert.limit import Limit
from queuert.options import UNSET, Duration, Lease, _Unset

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.running_job import RunningJob

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
JobTypeT = TypeVar("JobTypeT", bound=JobType[Any, Any])
P = ParamSpec("P")


class JobDecorator(Protocol):
    """What `job(...)` with arguments returns: the type of the input comes from the handler's annotation."""

    def __call__(self, handler: Callable[[RunningJob[InputT]], OutputT], /) -> JobType[InputT, OutputT]: ...


class TaskDecorator(Protocol):
    """What `task(...)` with arguments returns."""

    def __call__(self, function: Callable[P, OutputT], /) -> Task[P, OutputT]: ...


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
        on_failed: JobTypeOrName | None = None,
        limit: Limit | None = None,
    ) -> Any:
        """Make a function the handler of a job type: `@app.job`, or `@app.job("name", ...)`.

        The name defaults to the function's, the types of input and output to its annotations. `continues_with` and
        `blockers` name what may follow and what must come before; None does not check. A chain of the type `on_failed` is
        started with a `Failure` when a job of this type fails for good.
        """
        definition = {
            "entry": entry,
            "continues_with": continues_with,
            "blockers": blockers,
            "input": input,
            "output": output,
            "on_failed": on_failed,
            "limit": limit,
            "options": TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware),
        }
        return self._decorator(name, check_handler, JobType, definition)

    @overload
    def task(self, function: Callable[P, OutputT], /) -> Task[P, OutputT]: ...

    @overload
    def task(self, name: str | None = None, **options: Unpack[JobOptions]) -> TaskDecorator: ...

    def task(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
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
        on_failed: JobTypeOrName | None = None,
        limit: Limit | None = None,
    ) -> Any:
        """Make a plain function a job: `@app.task`, or `@app.task("name", ...)` with the options of `job`.

        Its parameters are the input, by name, checked by their annotations; its return value is the output.
        `resize.start("a.png", width=400)` starts a chain, `resize("a.png", width=400)` calls the function. Inside,
        `queuert.current_job()` is the running job.
        """
        definition = {
            "entry": entry,
            "continues_with": continues_with,
            "blockers": blockers,
            "output": output,
            "on_failed": on_failed,
            "limit": limit,
            "options": TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware),
        }
        return self._decorator(name, check_task, Task, definition)

    def _decorator(
        self,
        name: str | Callable[..., Any] | None,
        check: Callable[[object], None],
        kind: type[JobType[Any, Any]],
        definition: dict[str, Any],
    ) -> Any:
        """The job type of a function, or, where only options were given, what makes one of it."""

        def decorate(function: Callable[..., Any]) -> JobType[Any, Any]:
            if isinstance(function, JobType):
                raise TypeError(f"A handler must be a function, not {function!r}.")
            check(function)
            named = handler_name(function) if name is None or callable(name) else name
            return self._job_types._add(named, function, kind=kind, **definition)

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
        on_failed: JobTypeOrName | None = None,
        limit: Limit | None = None,
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
            on_failed=on_failed,
            limit=limit,
            options=TypeOptions(max_attempts, backoff, lease, timeout, priority, middleware),
        )

    def periodic(
        self,
        schedule: str | Duration,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        input: object = None,
        missed: Missed = "once",
    ) -> Callable[[JobTypeT], JobTypeT]:
        """Start a chain of a job type at every tick of a schedule: put it above `@app.job` or `@app.task`.

        `schedule` is a cron expression, read in the time zone `tz`, or a number of seconds. However many workers run, there
        is one chain a tick. `missed` says what becomes of the ticks that nobody was there for: `once` makes up for them
        with one chain, `all` with one each, `skip` with none.
        """

        def decorate(job_type: JobTypeT) -> JobTypeT:
            if not isinstance(job_type, JobType):
                raise TypeError("periodic goes above @app.job or @app.task: it takes a job type.")
            self._job_types._add_periodic(job_type, schedule, tz=tz, name=name, input=input, missed=missed)
            return job_type

        return decorate

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
        # What recurs, by name: its own, and that of all it includes.
        self.periodics: dict[str, Periodic] = {}
        # The app whose own registry it is.
        self.belongs_to: AppOf | None = None

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
        raise UnknownJobTypeError(name, self._all)

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
        self,
        name: str,
        handler: Callable[..., Any] | None,
        *,
        kind: type[JobType[Any, Any]] = JobType,
        **definition: Any,
    ) -> JobType[Any, Any]:
        job_type = kind(name, handler, registry=self, **definition)
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
            _check_schedules(other.periodics.values(), registries)
            _publish(list(other._all.values()), registries)
            for registry in registries:
                registry.periodics.update(other.periodics)
            other._included_by.add(self)

    def _add_periodic(self, job_type: JobType[Any, Any], schedule: str | Duration, **options: Any) -> None:
        periodic = periodic_of(self.get(job_type), schedule, **options)
        with _registration:
            registries = self._and_includers()
            _check_schedules([periodic], registries)
            for registry in registries:
                registry.periodics[periodic.name] = periodic

    def included_by(self) -> list[JobTypes]:
        """The registries that include this one directly."""
        return list(self._included_by)

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
            _check_limit(job_type, registry)
    for registry in registries:
        registry._all.update((job_type.name, job_type) for job_type in job_types)


def _check_schedules(periodics: Iterable[Periodic], registries: Sequence[JobTypes]) -> None:
    for periodic in periodics:
        if any(registry.periodics.get(periodic.name, periodic) is not periodic for registry in registries):
            raise ValueError(f"There is a schedule {periodic.name!r} already: give this one another name=.")


def _check_limit(job_type: JobType[Any, Any], registry: JobTypes) -> None:
    """Types that share the name of a limit have the same limit."""
    if job_type.limit is None:
        return
    for other in registry._all.values():
        if other.limit is None or other is job_type or other.limit_name != job_type.limit_name:
            continue
        if not job_type.limit.same_numbers(other.limit):
            raise ValueError(
                f"The limit {job_type.limit_name!r} of {job_type.name!r} differs from that of {other.name!r}: "
                "one name stands for one limit."
            )

"""The options of job types and registries as they were given; one that was left out is UNSET until somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, Union

from queuert.limit import Limit
from queuert.options import (
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
    from queuert.job_types.job_type import JobType

BackoffOption = Union[Backoff, BackoffFunction]
DEFAULT_BACKOFF: Final = Backoff()
DEFAULT_LEASE: Final = Lease()
MIDDLEWARE_METHODS: Final = ("around_attempt", "around_prepare", "around_complete")
JobTypeOrName = Union[str, "JobType[Any, Any]"]


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
    on_failed: JobTypeOrName | None
    limit: Limit | None


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


def first_set(*values: Any, default: Any) -> Any:
    return next((value for value in values if value is not UNSET), default)

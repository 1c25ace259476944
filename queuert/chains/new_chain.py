"""What is said of a chain that is to be started, and of a job that is to continue one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Union, overload

from queuert.ids import Id, Ids
from queuert.job_types import InputOf, JobType
from queuert.model import Chain
from queuert.options import UNSET, BlockersUntil, Dedup, Duration, _Unset, instant, seconds
from queuert.storage.records import iso

if TYPE_CHECKING:
    from typing_extensions import Unpack

InputT = TypeVar("InputT")
ChainRef = Union[Chain, Id]
"""A chain, or its id."""


class NextOptions(TypedDict, total=False):
    """The keyword options of a continuation."""

    id: Id | None
    at: datetime | None
    after: Duration | None
    priority: int | None
    max_attempts: int | _Unset | None
    blockers: Sequence[ChainRef] | None
    blockers_until: BlockersUntil
    limit_key: object


class ChainOptions(NextOptions, total=False):
    """The keyword options of a new chain."""

    dedup: Dedup | None


@dataclass(frozen=True)
class NewChain:
    """A chain to be started, for `start_chains`."""

    job_type: JobType[Any, Any] | str
    input: object = None
    id: Id | None = field(default=None, kw_only=True)
    at: datetime | None = field(default=None, kw_only=True)
    after: Duration | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    max_attempts: int | _Unset | None = field(default=UNSET, kw_only=True)
    dedup: Dedup | None = field(default=None, kw_only=True)
    blockers: Sequence[ChainRef] | None = field(default=None, kw_only=True)
    blockers_until: BlockersUntil = field(default="completed", kw_only=True)
    limit_key: object = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # The generated one could not relate the input to the job type.
        @overload
        def __init__(self, job_type: JobType[InputT, Any], input: InputOf[InputT], **options: Unpack[ChainOptions]) -> None: ...

        @overload
        def __init__(self, job_type: JobType[None, Any], input: None = None, **options: Unpack[ChainOptions]) -> None: ...

        @overload
        def __init__(self, job_type: str, input: object = None, **options: Unpack[ChainOptions]) -> None: ...

        def __init__(self, job_type: JobType[Any, Any] | str, input: object = None, **options: Any) -> None: ...


def chain_id(ref: object) -> object:
    """The id of a chain or an id."""
    return ref.id if isinstance(ref, Chain) else ref


def ids_of(ids: Ids, refs: Iterable[object]) -> list[str]:
    """The checked ids of chains or ids."""
    return [ids.check(chain_id(ref)) for ref in refs]


def schedule(at: datetime | None, after: Duration | None) -> tuple[str | None, float | None]:
    """When a job may start, as the queries take it: a time, or seconds from the database's now."""
    if at is not None and after is not None:
        raise ValueError("Give `at` or `after`, not both.")
    if after is not None:
        return None, seconds(after, "after")
    return (None if at is None else iso(instant(at, "at"))), None

"""The declared graph: what may start a chain, what may follow, what must come before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.errors import JobTypeMismatchError, JobTypeValidationError
from queuert.job_types.job_type import JobType
from queuert.job_types.options import JobTypeOrName


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
        allowed = f"only with {listed(declared)}" if declared else "with nothing"
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
            f"{job_type.name!r} needs blockers of the types {listed(declared)}; {listed(missing)} is missing.",
            type_name=job_type.name,
        )
    others = sorted(given.difference(declared))
    if others:
        expected = f"blockers of the types {listed(declared)} only" if declared else "no blockers"
        raise JobTypeValidationError(
            "invalid_blockers",
            f"{job_type.name!r} takes {expected}; {listed(others)} is not one of them.",
            type_name=job_type.name,
        )


def listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)

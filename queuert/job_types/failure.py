"""What must be true of a type that another one names as `on_failed`: a chain of it can be started with a `Failure`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuert.codec import CodecError, dump_json
from queuert.model import Failure

if TYPE_CHECKING:
    from queuert.job_types.job_type import JobType
    from queuert.job_types.registry import JobTypes


def check_failure_types(types: JobTypes) -> None:
    """Every type that is named as `on_failed` is known, and fits."""
    for job_type in types:
        if job_type.on_failed is not None:
            check_failure_type(job_type.name, types.get(job_type.on_failed))


def check_failure_type(owner: str, target: JobType[Any, Any]) -> None:
    text = f"{owner!r} cannot have on_failed={target.name!r}: "
    if not target.entry:
        raise ValueError(f"{text}a chain cannot start with that type (entry=False).")
    if target.blockers:
        raise ValueError(f"{text}that type needs blockers, and there are none.")
    sample = Failure("id", "type", "id", "type", None, "CODE:DETAIL", "detail", 1)
    try:
        target.decode_input(dump_json(dict(sample.__dict__)))
    except Exception as error:
        cause = error.__cause__
        # What the failed job's own input looks like, only its type knows.
        if isinstance(cause, CodecError) and cause.path[:1] == ("input",):
            return
        raise ValueError(f"{text}its input must be a queuert.Failure. {error}") from error

"""Decodes the stored inputs of open jobs with this version's types: what would fail if this version ran them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from queuert.context import Context
from queuert.errors import JobTypeValidationError
from queuert.model import OPEN, Job
from queuert.storage.records import iso

BATCH: Final = 500
EXAMPLES: Final = 3


@dataclass
class TypeCheck:
    """What was found of one type. `known` is False where this app does not define it."""

    type_name: str
    known: bool
    open: int = 0
    misfits: int = 0
    # What does not fit, and the first jobs of which it was said.
    problem: str | None = None
    job_ids: tuple[str, ...] = ()


def check_inputs(context: Context) -> list[TypeCheck]:
    """What becomes of the stored inputs of all open jobs, by type."""
    found: dict[str, TypeCheck] = {}
    for job in _open_jobs(context):
        known = context.types.find(job.type_name)
        check = found.setdefault(job.type_name, TypeCheck(job.type_name, known is not None))
        check.open += 1
        if known is None:
            continue
        try:
            known.decode_input(job.input)
        except JobTypeValidationError as error:
            check.misfits += 1
            check.problem = check.problem or str(error)
            if len(check.job_ids) < EXAMPLES:
                check.job_ids = (*check.job_ids, job.id)
    return [found[name] for name in sorted(found)]


def _open_jobs(context: Context) -> Iterator[Job]:
    """All open jobs, a batch at a time: no transaction stays open while they are looked at."""
    statuses = sorted(status.value for status in OPEN)
    nothing = {"chain_types": None, "error_codes": None, "since": None, "until": None}
    with context.explained(), context.database.read() as session:
        types = context.repository.job_types(session)
    at: str | None = None
    last: str | None = None
    while types:
        with context.explained(), context.database.read() as session:
            jobs = context.repository.list_jobs(
                session, "asc", **nothing, at=at, id=last, limit=BATCH, types=types, statuses=statuses
            )
        yield from jobs
        if len(jobs) < BATCH:
            return
        at, last = iso(jobs[-1].created_at), jobs[-1].id

"""Finds the job that is meant by an id, whole or shortened."""

from __future__ import annotations

from queuert import AmbiguousIdError, Job, JobNotFoundError, Queuert
from queuert.cli.exits import CommandError


def find_job(app: Queuert, identity: str) -> Job:
    """The job of that id, or of the only one that begins or ends so; the first job of a chain has the chain's."""
    try:
        job = app.get_job(app.find_id(identity))
    except AmbiguousIdError as error:
        raise CommandError(str(error), "AmbiguousIdError") from None
    except JobNotFoundError:
        job = None
    if job is None:
        missing = f"There is no job or chain {identity}: it was never committed, or it was deleted."
        raise CommandError(missing, "JobNotFoundError")
    return job

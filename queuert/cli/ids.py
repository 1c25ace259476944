"""Finds the job that is meant by an id, whole or shortened."""

from __future__ import annotations

from queuert import Job, Queuert
from queuert.cli.exits import CommandError


def find_job(app: Queuert, identity: str) -> Job:
    """The job of that id; the first job of a chain has the chain's."""
    job = app.get_job(identity)
    if job is None:
        missing = f"There is no job or chain {identity}: it was never committed, or it was deleted."
        raise CommandError(missing, "JobNotFoundError")
    return job

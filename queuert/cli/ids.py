"""Finds the job that is meant by an id, whole or shortened."""

from __future__ import annotations

import re
from typing import Final

from queuert import InvalidJobIdError, Job, Queuert
from queuert.app import context_of
from queuert.cli.exits import CommandError

LEAST: Final = 6  # characters of a shortened id
SHOWN: Final = 5

_PART_OF_UUID = re.compile(r"[0-9a-f-]+", re.IGNORECASE)


def find_job(app: Queuert, identity: str) -> Job:
    """The job of that id, or of the only one that begins or ends so; the first job of a chain has the chain's."""
    refused: InvalidJobIdError | None = None
    try:
        job = app.get_job(identity)
    except InvalidJobIdError as error:
        job, refused = None, error
    if job is None:
        job = _by_part(app, identity, refused)
    if job is None:
        missing = f"There is no job or chain {identity}: it was never committed, or it was deleted."
        raise CommandError(missing, "JobNotFoundError")
    return job


def _by_part(app: Queuert, part: str, refused: InvalidJobIdError | None) -> Job | None:
    context = context_of(app)
    uuids = (context.names.id_type or "uuid").lower() == "uuid"
    if len(part) < LEAST or (uuids and not _PART_OF_UUID.fullmatch(part)):
        if refused is not None:
            raise refused
        return None
    wanted = part.lower() if uuids else part
    found = context.read(None, lambda session: context.repository.find_ids(session, wanted, SHOWN + 1))
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:SHOWN]) + (", ..." if len(found) > SHOWN else "")
        raise CommandError(f"{part} could be any of {shown}: write more of it.", "AmbiguousIdError")
    return app.get_job(found[0]) if found else None

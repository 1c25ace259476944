"""Finds the one job that is meant by a part of its id.

A beginning is looked up in the index. No index knows ends (it would cost every start of a chain), though it is the end that
tells ids of one time apart: so these are looked for among the newest jobs, in an index alone.
"""

from __future__ import annotations

import re
from typing import Final

from queuert.context import Context
from queuert.errors import AmbiguousIdError, InvalidJobIdError, JobNotFoundError
from queuert.storage.protocol import Session

LEAST: Final = 6
"""Characters of a shortened id."""
FURTHEST: Final = 1_000_000
"""Jobs among which an end is looked for."""
SHOWN: Final = 5

_PART_OF_UUID: Final = re.compile(r"[0-9a-f-]{1,36}")


def find_id(context: Context, text: object, conn: object | None) -> str:
    """The id that is meant: whole, or any beginning or end of it that only one job has."""
    if not isinstance(text, str):
        return _existing(context, context.ids.check(text), conn)
    part = text.strip()
    whole: str | None = None
    refused: InvalidJobIdError | None = None
    try:
        whole = context.ids.check(part)
    except InvalidJobIdError as error:
        refused = error
    end, between = _spelt(part) if context.ids.are_uuids else (part, None)
    if len(part) < LEAST or end is None:
        if whole is None:
            raise refused or InvalidJobIdError(text)
        return _existing(context, whole, conn)

    def work(session: Session) -> list[str]:
        if whole is not None and context.repository.get_jobs(session, [whole]):
            return [whole]
        return context.repository.find_ids(session, end, between, furthest=FURTHEST, limit=SHOWN + 1)

    found = context.read(conn, work)
    if not found:
        raise JobNotFoundError(part)
    if len(found) > 1:
        raise AmbiguousIdError(part, found[:SHOWN], more=len(found) > SHOWN)
    return found[0]


def _existing(context: Context, identity: str, conn: object | None) -> str:
    if not context.read(conn, lambda session: context.repository.get_jobs(session, [identity])):
        raise JobNotFoundError(identity)
    return identity


def _spelt(text: str) -> tuple[str | None, tuple[str, str] | None]:
    """An end of a UUID with its dashes, and between which two ids those are that begin so; None if it is part of none."""
    part = text.lower()
    digits = part.replace("-", "")
    if not _PART_OF_UUID.fullmatch(part) or not 1 <= len(digits) <= 32:
        return None, None
    between = _dashed(digits.ljust(32, "0")), _dashed(digits.ljust(32, "f"))
    return part if "-" in part else _dashed(digits.rjust(32, "?")).lstrip("?-"), between


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

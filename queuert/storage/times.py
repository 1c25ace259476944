"""Times as they are stored: as text in ISO 8601, and those that Python cannot tell."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any, Final

_READS_Z: Final = sys.version_info >= (3, 11)


class UnreadableTime(datetime):
    """Stands for a stored time that is no `datetime`: the first or the last there is, with what was stored.

    Whoever only shows rows can go on with it; a job whose row has one is not run.
    """

    stored: object = None

    @classmethod
    def first(cls, stored: object) -> UnreadableTime:
        return cls._at(datetime.min, stored)

    @classmethod
    def last(cls, stored: object) -> UnreadableTime:
        return cls._at(datetime.max, stored)

    @classmethod
    def _at(cls, moment: datetime, stored: object) -> UnreadableTime:
        made = cls.combine(moment.date(), moment.time(), timezone.utc)
        made.stored = stored
        return made


def iso(value: datetime | None) -> str | None:
    """A time as every database takes it: UTC, microseconds, fixed width."""
    if value is None:
        return None
    return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_iso(text: Any) -> datetime | None:
    """A time that is stored as text; whoever wrote it by hand may have stored anything."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text if _READS_Z else text[:-1] + "+00:00")
        return read if read.tzinfo is timezone.utc else read.astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):
        return UnreadableTime.first(text)

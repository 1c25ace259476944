"""The times that PostgreSQL sends as text."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache

import psycopg

from queuert.storage.times import UnreadableTime


@lru_cache(maxsize=1024)  # the times of a job are often the same, and so are those of jobs that were claimed together
def load_timestamp(text: str) -> datetime:
    """timestamptz as an aware datetime in UTC, whatever the connection's time zone. Some times Python does not have."""
    try:
        return _parse(text).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        if text == "-infinity" or text.endswith(" BC") or text.startswith("0001-"):
            return UnreadableTime.first(text)
        if text == "infinity" or re.match(r"\d{5,}-|9999-", text):
            return UnreadableTime.last(text)
        raise psycopg.DataError(f"The time {text!r} cannot be read: leave the DateStyle of connections at ISO.") from None


def _parse(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # Python 3.10 wants the fraction and the offset written out
        match = re.fullmatch(r"(\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?([+-]\d\d)(:\d\d)?(:\d\d)?", text)
        if match is None:
            raise
        moment, fraction, hours, minutes, rest = match.groups()
        return datetime.fromisoformat(f"{moment}.{(fraction or '').ljust(6, '0')}{hours}{minutes or ':00'}{rest or ''}")

"""Pages of a listing: what a caller asks for, checked, and the cursor to the next page.

A cursor names the last row of a page by time and id, so pages stay stable while rows come and go, also where times are equal.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from queuert.context import Context
from queuert.errors import InvalidCursorError
from queuert.job_types import JobType
from queuert.model import Chain, Job, Page, Status
from queuert.options import instant, storable
from queuert.storage.records import iso

T = TypeVar("T", Job, Chain)

MAX_LIMIT: Final = 1_000
ALL_STATUSES: Final = tuple(status.value for status in Status)
UNCOMPLETED: Final = tuple(status.value for status in Status if status is not Status.COMPLETED)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


class PageRequest:
    """The limits of one page, and the cursor to the next."""

    def __init__(self, listing: str, order: str, cursor: str | None, limit: int, context: Context) -> None:
        if order not in ("asc", "desc"):
            raise ValueError(f"order must be 'asc' or 'desc', not {order!r}.")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be a whole number, not {limit!r}.")
        if not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit must be from 1 to {MAX_LIMIT}, not {limit}.")
        self.limit = limit
        self._listing = f"{listing}-{order}"
        self._position = None if cursor is None else self._read(cursor, context)

    def params(self) -> dict[str, object]:
        at, identity = self._position or (None, None)
        if self._position is not None and not (isinstance(at, str) and _TIME.fullmatch(at)):
            raise InvalidCursorError()
        return {"at": at, "id": identity, "limit": self.limit + 1}

    def index(self) -> int | None:
        if self._position is None:
            return None
        index = self._position[0]
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31:
            raise InvalidCursorError()
        return index

    def of(self, records: Sequence[T], position: Any) -> Page[T]:
        """The page, of one record more than it shows if there is a next one."""
        shown = list(records[: self.limit])
        if len(records) <= self.limit:
            return Page(shown, None)
        return Page(shown, self.cursor(*position(shown[-1])))

    def cursor(self, at: object, identity: str) -> str:
        """The cursor to what comes after this."""
        value = [self._listing, iso(at) if isinstance(at, datetime) else at, identity]
        text = json.dumps(value, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _read(self, cursor: object, context: Context) -> tuple[Any, str]:
        if not isinstance(cursor, str):
            raise TypeError(f"cursor must be a string, not {type(cursor).__name__}.")
        try:
            text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            listing, at, identity = json.loads(text)
            if listing != self._listing:
                raise InvalidCursorError("The cursor belongs to another listing or order: start that one again without it.")
            if isinstance(at, str):
                datetime.fromisoformat(at[:-1])
            return at, context.ids.check(identity)
        except InvalidCursorError:
            raise
        except (ValueError, TypeError, binascii.Error, RecursionError) as error:
            raise InvalidCursorError() from error
        except Exception as error:  # a malformed id in it
            raise InvalidCursorError() from error


def listed(values: Iterable[object], name: str) -> list[object]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}.")
    return list(values)  # once: it may be a generator


def checked_names(types: Iterable[object] | None, name: str) -> list[str] | None:
    if types is None:
        return None
    found = [t.name if isinstance(t, JobType) else t for t in listed(types, name)]
    for entry in found:
        if not isinstance(entry, str):
            raise TypeError(f"{name} must hold job types or their names, not {entry!r}.")
    return sorted({storable(str(entry), name) for entry in found})


def checked_statuses(statuses: Iterable[object] | None) -> list[str] | None:
    if statuses is None:
        return None
    try:
        return sorted({Status(status).value for status in listed(statuses, "statuses")})
    except ValueError as error:
        raise ValueError(f"{error}; a status is one of {', '.join(ALL_STATUSES)}.") from None


def checked_codes(codes: Iterable[str] | None) -> list[str] | None:
    if codes is None:
        return None
    given = listed(codes, "error_codes")
    for code in given:
        if not isinstance(code, str):
            raise TypeError(
                f"error_codes must hold codes such as 'TIMEOUT:GATEWAY', or 'TIMEOUT:' for all of them, not {code!r}."
            )
    return sorted({storable(str(code), "error_codes") for code in given})


def checked_time(value: datetime | None, name: str) -> str | None:
    return None if value is None else iso(instant(value, name))

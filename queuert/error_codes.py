"""From an exception to what is stored of it: a code to aggregate on, a summary, and the traceback.

A code is `CATEGORY:SUBCATEGORY`. The exception's own `error_code` comes first, then the app's mapping, then the one here. Where
none of them knows an exception of SQLAlchemy's or Django's, the driver's inside it decides.
"""

from __future__ import annotations

import logging
import sqlite3
import traceback
from collections.abc import Callable, Mapping
from typing import Final, Union

from queuert.storage.unwrap import driver_error

logger = logging.getLogger("queuert.worker")

ErrorCodes = Union[Mapping[type[BaseException], str], Callable[[BaseException], Union[str, None]]]

WORKER_LOST: Final = "WORKER:LOST"
DB_LOCKED: Final = "DEPENDENCY:DB_LOCKED"
MAX_CODE: Final = 200
MAX_DETAIL: Final = 500
MAX_ERROR: Final = 10_000


def error_code(error: BaseException, extra: ErrorCodes | None = None) -> str:
    """The code of an exception."""
    driver = driver_error(error)
    for each in (error,) if driver is error else (error, driver):
        found = _own(each) or (_mapped(each, extra) if extra is not None else None) or _known(each)
        if found:
            return clean(found, MAX_CODE)
    return f"INTERNAL:{_name(error)}"


def _known(error: BaseException) -> str | None:
    if isinstance(error, TimeoutError):
        return f"TIMEOUT:{_name(error)}"
    if _is_locked(error):
        return DB_LOCKED
    if isinstance(error, MemoryError):
        return "RESOURCE:OUT_OF_MEMORY"
    if isinstance(error, AssertionError):
        return "INTERNAL:ASSERTION_FAILED"
    if isinstance(error, ConnectionError):
        return f"DEPENDENCY:{_name(error)}"
    return None


def _is_locked(error: BaseException) -> bool:
    """SQLite's file, or a row or table of PostgreSQL that was not to be waited for, or not longer (lock_not_available)."""
    if isinstance(error, sqlite3.OperationalError):
        return "locked" in str(error)
    return getattr(error, "sqlstate", None) == "55P03"


def _name(error: BaseException) -> str:
    return clean(type(error).__name__, MAX_CODE - 20)


def error_detail(error: BaseException) -> str:
    """One line that says what happened."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    name = type(error).__name__
    return clean(f"{name}: {text}" if text else name, MAX_DETAIL)


def error_text(error: BaseException) -> str:
    """The traceback; of a long one the end, where it happened."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        text = error_detail(error)
    return clean(text[-MAX_ERROR:], MAX_ERROR)


def clean(text: str, limit: int) -> str:
    """A text that every database can store."""
    text = text.replace("\x00", "").encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def checked(codes: ErrorCodes | None) -> ErrorCodes | None:
    """What an app was given as `error_codes`, or a clear error."""
    if isinstance(codes, Mapping):
        for cls, code in codes.items():
            if not (isinstance(cls, type) and issubclass(cls, BaseException)):
                raise TypeError(f"The keys of error_codes must be exception classes, not {cls!r}.")
            if not isinstance(code, str) or not code.strip():
                raise ValueError(f"error_codes must map {cls.__name__} to a code such as 'PAYMENT:DECLINED', not {code!r}.")
    elif codes is not None and not callable(codes):
        raise TypeError(f"error_codes must be a mapping from exception classes, or a function, not {type(codes).__name__}.")
    return codes


def _own(error: BaseException) -> str | None:
    try:
        own = getattr(error, "error_code", None)
    except Exception:
        return None
    return own if isinstance(own, str) else None


def _mapped(error: BaseException, codes: ErrorCodes) -> str | None:
    if isinstance(codes, Mapping):
        return next((codes[cls] for cls in type(error).__mro__ if cls in codes), None)
    try:
        found = codes(error)
    except Exception:
        logger.exception("error_codes raised for a %s; the default code is used.", type(error).__name__)
        return None
    return found if isinstance(found, str) else None

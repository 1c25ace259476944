"""The log of attempts that failed: a WARNING for each one that is tried again, an ERROR for each that was the last.

Thousands of jobs can fail at once for one reason. Of one type and code a few warnings a minute are written; the others are
counted, and the count is a line of its own when the minute is over. Final failures are all written, with the traceback of what
the handler raised. Payloads are never part of a line; what an exception says of itself is in its traceback.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from queuert.errors import JobTypeValidationError
from queuert.model import Job

logger = logging.getLogger("queuert.jobs")

LINES: Final = 10
WINDOW: Final = 60.0  # seconds
MANY: Final = 1_000  # pairs of type and code that are watched at a time


class _Window:
    """What was said of one type and code since a time."""

    __slots__ = ("began", "left_out", "lines")

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines = 0
        self.left_out = 0


class FailureLog:
    """Tells of failed attempts; used from many threads. Its lock is held while it counts, not while it writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], _Window] = {}

    def retried(self, job: Job, code: str | None, after: float | None, about: dict[str, Any]) -> None:
        """An attempt failed, and another one comes."""
        if not logger.isEnabledFor(logging.WARNING):
            return
        self.flush()
        if not self._may_say(job.type_name, code or "no code"):
            return
        when = f"again in {after:.3g} s" if after else "again at once"
        logger.warning(
            "%s %s failed in attempt %d of %s with %s; it is tried %s.",
            job.type_name,
            job.id,
            job.attempts_used,
            "any number" if job.max_attempts is None else job.max_attempts,
            code,
            when,
            extra={"event": "retry_scheduled", **about, "error_code": code, "retry_after": after},
        )

    def failed(self, job: Job, code: str | None, error: BaseException | None, about: dict[str, Any]) -> None:
        """An attempt failed, and was the last."""
        logger.error(
            "%s %s failed for good in attempt %d with %s. See `queuert show %s`; `queuert retry %s` runs it again.",
            job.type_name,
            job.id,
            job.attempts_used,
            code,
            job.id,
            job.chain_id,
            exc_info=error if error is not None and not _quotes_payload(error) else None,
            extra={"event": "failed", **about, "error_code": code},
        )

    def flush(self, *, everything: bool = False) -> None:
        """Tell how many lines were left out, of what has not been told of for a while."""
        if not self._windows:
            return
        with self._lock:
            earliest = time.monotonic() - WINDOW
            over = [key for key, window in self._windows.items() if everything or window.began <= earliest]
            if len(self._windows) - len(over) > MANY:
                over = list(self._windows)
            ended = [(key, self._windows.pop(key).left_out) for key in over]
        for (type_name, code), left_out in ended:
            if left_out:
                about = {"event": "failures_left_out", "type_name": type_name, "error_code": code, "left_out": left_out}
                logger.warning(
                    "%d more attempts of %s failed with %s, and are tried again.", left_out, type_name, code, extra=about
                )

    def _may_say(self, type_name: str, code: str) -> bool:
        with self._lock:
            window = self._windows.setdefault((type_name, code), _Window(time.monotonic()))
            if window.lines < LINES:
                window.lines += 1
                return True
            window.left_out += 1
            return False


def _quotes_payload(error: BaseException) -> bool:
    """Whether it is an error of ours that says which part of a payload does not fit."""
    return isinstance(error, JobTypeValidationError) and error.code in ("invalid_input", "invalid_output")

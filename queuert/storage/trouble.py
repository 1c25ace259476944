"""What an error of a database means to whoever meets it. Each database has one table that says so: `errors.py` in its
package."""

from __future__ import annotations

from enum import Enum


class Trouble(Enum):
    """Whose fault an error is, and so what becomes of the work in hand."""

    # It passes: a full disk, a restart, a timeout, a lock. The work is held, and tried again until it goes through.
    OUTAGE = "outage"
    # What a job, or its chain, brings along cannot be stored: that job alone has failed.
    JOB = "job"
    # A table, a privilege or a function is missing. Waiting does not help, and no job is to blame: a worker stops loudly.
    SET_UP = "set-up"

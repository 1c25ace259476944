"""Filters that no index serves: by worker, by key, by a field of the input.

Such a listing looks at a limited number of jobs that the other filters choose, and says how far it looked; its next page goes
on from there.
"""

from __future__ import annotations

import json
from typing import Any, Final

from queuert.cli.values import as_json
from queuert.dashboard.failures import BadInput
from queuert.dashboard.filters import Filters
from queuert.dashboard.visit import Visit
from queuert.model import Job, Page

LOOKED_AT: Final = 2_000  # jobs for one page
MISSING: Final = object()


def scan_jobs(visit: Visit, filters: Filters) -> tuple[Page[Job], int]:
    """A page of the jobs that match, and how many were looked at for it."""
    field, value = _wanted_field(visit, filters)
    found: list[Job] = []
    looked, options = 0, filters.for_jobs()
    while True:
        page = visit.app.list_jobs(**options)
        looked += len(page.items)
        found.extend(job for job in page.items if _matches(visit, job, filters, field, value))
        if page.next_cursor is None or len(found) >= filters.limit or looked >= LOOKED_AT:
            return Page(found, page.next_cursor), looked
        options["cursor"] = page.next_cursor


def _wanted_field(visit: Visit, filters: Filters) -> tuple[list[str], str]:
    if not filters.input:
        return [], ""
    name, separator, value = filters.input.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not separator or not all(path):
        raise BadInput("input must be FIELD=VALUE, such as order_id=7 or customer.name=Ann.")
    shape: Any = value
    for part in reversed(path):
        shape = {part: shape}
    # Whoever may not see a value must not be able to guess it either.
    if visit.settings.redact("input", next(iter(filters.type), ""), shape) != shape:
        raise BadInput(f"{name.strip()} is not shown here, so it cannot be searched for.")
    return path, value.strip()


def _matches(visit: Visit, job: Job, filters: Filters, field: list[str], value: str) -> bool:
    if filters.worker and not any((who or "").startswith(filters.worker) for who in (job.leased_by, job.completed_by)):
        return False
    if filters.key and job.deduplication_key != filters.key:
        return False
    if not field:
        return True
    found: Any = as_json(visit.app, job)["input"]
    for part in field:
        found = found.get(part, MISSING) if isinstance(found, dict) else MISSING
    return found is not MISSING and value in (str(found), json.dumps(found, ensure_ascii=False))

"""Records as they may be shown: plain JSON values, redacted, and no longer than a page can bear."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import Any, Final

from queuert.cli.values import as_json, iso
from queuert.dashboard.rendering import shortened
from queuert.dashboard.visit import Visit
from queuert.model import Attempt, Chain, Job, TimelineEntry

IN_LIST: Final = 4 * 1024  # characters of one payload among others
ALONE: Final = 256 * 1024  # characters of one payload on its own


def shown_job(visit: Visit, job: Job, *, most: int = IN_LIST) -> dict[str, Any]:
    """A job as JSON."""
    shown: dict[str, Any] = as_json(visit.app, job)
    _payloads(visit, shown, job.type_name, job.type_name, most)
    shown["last_attempt_error"] = error_text(visit, job.type_name, job.last_attempt_error)
    return shown


def shown_chain(visit: Visit, chain: Chain, *, most: int = IN_LIST) -> dict[str, Any]:
    """A chain as JSON."""
    shown: dict[str, Any] = as_json(visit.app, chain)
    _payloads(visit, shown, chain.type_name, chain.tail_type_name, most)
    return shown


def shown_attempt(visit: Visit, type_name: str, attempt: Attempt) -> dict[str, Any]:
    shown: dict[str, Any] = as_json(visit.app, attempt)
    shown["error_detail"] = error_text(visit, type_name, attempt.error_detail)
    return shown


def shown_entry(visit: Visit, type_name: str, entry: TimelineEntry) -> dict[str, Any]:
    shown: dict[str, Any] = as_json(visit.app, entry)
    shown["detail"] = {name: error_text(visit, type_name, value) for name, value in shown["detail"].items()}
    return shown


def error_text(visit: Visit, type_name: str, text: Any) -> Any:
    """The text of an error; other values as they are."""
    if not isinstance(text, str):
        return text
    redacted = visit.settings.redact("error", type_name, text)
    return shortened(redacted) if isinstance(redacted, str) else redacted


def _payloads(visit: Visit, shown: dict[str, Any], input_type: str, output_type: str, most: int) -> None:
    redact = visit.settings.redact
    shown["input"] = _bounded(redact("input", input_type, shown["input"]), most)
    if shown["output"] is not None:
        shown["output"] = _bounded(redact("output", output_type, shown["output"]), most)


def _bounded(value: Any, most: int) -> Any:
    """The value, or the beginning of its text where it is too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= most:
        return json.loads(text)
    return {"truncated": True, "characters": len(text), "beginning": text[: most // 4]}


def jsonable(value: Any) -> Any:
    """A record or value of ours, other than a payload, as JSON has it."""
    if isinstance(value, datetime):
        return iso(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return jsonable(value._asdict())
    if isinstance(value, dict):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(jsonable(entry) for entry in value)
    return str(value) if isinstance(value, str) else value

"""The description of the JSON routes, as OpenAPI has it."""

from __future__ import annotations

from typing import Any, Final

from queuert.dashboard.filters import CHAIN_NAMES, JOB_NAMES, LISTS, LONGEST, MOST_NAMED, MOST_ROWS, ROWS
from queuert.dashboard.settings import Settings
from queuert.model import Status

DESCRIPTIONS: Final = {
    "status": "Only these states; may be repeated.",
    "type": "Only these types; may be repeated.",
    "chain_type": "Only jobs of chains of these types; may be repeated.",
    "error_code": "Only those that carry this error, or `TIMEOUT:` for a category; may be repeated.",
    "id": "Only these ids; may be repeated.",
    "chain": "Only jobs of these chains; may be repeated.",
    "worker": "Only jobs that this worker runs or completed: its id or how that begins. Looks at 2,000 jobs a page.",
    "key": "Only jobs with this deduplication key. Looks at 2,000 jobs a page.",
    "input": "Only jobs whose input has this value, as FIELD=VALUE. Looks at 2,000 jobs a page.",
    "since": "Created then or later: 2026-01-31T09:30Z, or how long ago, such as 2h.",
    "until": "Created before.",
    "order": "By creation: the newest first, or the oldest.",
    "cursor": "The next_cursor of the page before.",
    "limit": "How many.",
}
ANY: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
PAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": ANY}, "next_cursor": {"type": ["string", "null"]}},
}
PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error", "status"],
    "properties": {"error": {"type": "string"}, "status": {"type": "integer"}},
}


def describe(root: str, settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of a dashboard that is mounted at `root`."""
    single = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    cursor = _parameter("cursor")
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"{settings.title} dashboard", "version": "1"},
        "servers": [{"url": root or "/"}],
        "paths": {
            "/api/overview": _route("How things stand.", ANY),
            "/api/chains": _route("A page of chains.", PAGE, [_parameter(name) for name in CHAIN_NAMES]),
            "/api/chains/{id}": _route("A chain with its jobs.", ANY, [single, cursor], missing=True),
            "/api/jobs": _route("A page of jobs.", PAGE, [_parameter(name) for name in JOB_NAMES]),
            "/api/jobs/{id}": _route("A job with its attempts.", ANY, [single], missing=True),
            "/api/types": _route("The types of jobs.", PAGE),
            "/api/workers": _route("Who is there.", PAGE),
            "/api/schedules": _route("What recurs.", PAGE),
            "/api/pauses": _route("What must not be begun.", PAGE),
            "/api/limits": _route("The limits that are in use.", PAGE),
        },
    }
    if settings.token is not None:
        described["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        described["security"] = [{"token": []}]
    return described


def _parameter(name: str) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string", "maxLength": LONGEST}
    if name == "status":
        text = {"type": "string", "enum": [status.value for status in Status]}
    schema: dict[str, Any] = {"type": "array", "items": text, "maxItems": MOST_NAMED} if name in LISTS else text
    if name == "limit":
        schema = {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": ROWS}
    elif name == "order":
        schema = {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": DESCRIPTIONS[name]}


def _route(
    summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]] | None = None, *, missing: bool = False
) -> dict[str, Any]:
    problems = {
        "400": "A parameter cannot be meant.",
        "401": "The token is wrong or missing.",
        "403": "Not allowed.",
        "404": "There is no such record.",
        "503": "The database does not answer.",
    }
    answers = {code: _answer(text, PROBLEM) for code, text in problems.items() if missing or code != "404"}
    return {
        "get": {
            "summary": summary,
            "parameters": parameters or [],
            "responses": {"200": _answer("Found.", schema), **answers},
        }
    }


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}

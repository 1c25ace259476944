"""How records look outside of Python: as JSON, and as short text; and how times are read from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from queuert import Chain, Job, Queuert
from queuert.cli.output import Output, one_line
from queuert.codec import dump_json

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def as_json(app: Queuert, record: Any) -> Any:
    """A record as plain JSON values. Payloads are what is stored, also where this app knows their types."""
    if isinstance(record, Job):
        return {**_fields(record, leave_out=("lease_token",)), **_payloads(app, record, record.type_name)}
    if isinstance(record, Chain):
        shown = _fields(record, leave_out=("deduplicated",))
        return {**shown, **_payloads(app, record, record.tail_type_name)}
    return _fields(record)


def _fields(record: Any, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    if dataclasses.is_dataclass(record):
        values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    else:
        values = dict(record._asdict())
    return {name: plain(value) for name, value in values.items() if name not in {*leave_out, "input", "output"}}


def plain(value: Any) -> Any:
    """A value of ours, other than a payload, as JSON has it."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(entry) for entry in value)
    return str(value) if isinstance(value, str) else value


def _payloads(app: Queuert, record: Job | Chain, output_type: str) -> dict[str, Any]:
    first, last = app.types.find(record.type_name), app.types.find(output_type)
    return {
        "input": stored(first.encode_input if first else None, record.input),
        "output": None if record.output is None else stored(last.encode_output if last else None, record.output),
    }


def stored(encode: Callable[[object], str] | None, value: Any) -> Any:
    """A payload as the JSON it was read from."""
    for write in (encode, dump_json):
        if write is not None:
            try:
                return json.loads(write(value))
            except Exception:  # it did not decode when it was read, so it is JSON already
                continue
    return repr(value)


def payload_text(value: Any, longest: int = 2_000) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), longest)


def iso(value: datetime) -> str:
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def when(value: datetime | None) -> str:
    """A time for people: UTC, whole seconds."""
    return "" if value is None else value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def brief(out: Output, value: datetime | None) -> str:
    """A time in a table: as short as it can be told apart, where there is little room."""
    if value is None or out.width is None:
        return when(value)
    at, now = value.astimezone(timezone.utc), datetime.now(timezone.utc)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def lasting(seconds: float | None) -> str:
    """A duration for people: the two largest units."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} m"
    return f"{hours // 24} d {hours % 24:02d} h"


def size_text(number: int | None) -> str:
    """Bytes for people."""
    if number is None:
        return "?"
    size, unit = float(number), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def duration(text: str) -> float:
    """Seconds, or a number with s, m, h, d or w behind it."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*([smhdw]?)", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 90, 90s, 15m, 2h, 30d or 4w")
    return float(match[1]) * _UNITS[match[2] or "s"]


def moment(text: str) -> datetime:
    """A time in ISO 8601 (UTC if it names no zone), or how long ago: 15m, 2h, 3d."""
    try:
        if not re.fullmatch(r"[\d.]+\s*[smhdwSMHDW]", text.strip()):
            # Python 3.10 reads no Z.
            read = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
            return read if read.tzinfo is not None else read.replace(tzinfo=timezone.utc)
        return datetime.now(timezone.utc) - timedelta(seconds=duration(text))
    except (ValueError, OverflowError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-01-31, 2026-01-31T09:30Z, or how long ago (15m, 2h, 3d)"
        ) from None


def rate(text: str) -> float:
    """So many in a time, as a number a second: 10/s, 600/m, 100/10s; a bare number is a second's."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*(?:/\s*(\d{0,9})\s*([smh]))?", text.strip().lower())
    number = float(match[1]) if match else 0.0
    per = float(match[2] or 1) * _UNITS[match[3] or "s"] if match else 0.0
    if not number or not per:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: write 10/s, 600/m or 100/10s")
    return number / per

"""How values look in the pages. Everything that comes from a job is escaped by the templates."""

from __future__ import annotations

import functools
import hashlib
import json
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from queuert.cli.values import iso, lasting

MOST_SHOWN: Final = 64 * 1024  # characters of one payload or error on a page
ID_END: Final = 8  # characters of an id that tell it from others


@functools.cache
def environment() -> Environment:
    """The templates; made once."""
    made = Environment(
        loader=PackageLoader("queuert.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(time=time_tag, lasting=_lasting, short=short_id, pretty=pretty, count=count, percent=percent)
    made.tests["allowed"] = lambda act, may: may(act)
    made.globals["version"] = static_version()
    return made


@functools.cache
def static_version() -> str:
    """Changes with the static files, so that browsers may keep them."""
    folder = files("queuert.dashboard").joinpath("static")
    digest = hashlib.sha256()
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        digest.update(entry.read_bytes())
    return digest.hexdigest()[:12]


def time_tag(value: datetime | None, missing: str = "–") -> Markup | str:
    """A time: exact in UTC here, in the viewer's zone where scripts run."""
    if value is None:
        return missing
    exact = value.astimezone(timezone.utc)
    text = exact.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(iso(exact), exact.isoformat(" ")[:-6], text)


def _lasting(seconds: float | None) -> str:
    return "–" if seconds is None else lasting(max(0.0, seconds))


def short_id(value: str) -> str:
    """The end of an id: time-ordered ids begin alike."""
    return value if len(value) <= ID_END + 2 else f"…{value[-ID_END:]}"


def pretty(value: Any) -> str:
    """JSON for reading, cut where it is too long to show."""
    return shortened(json.dumps(value, ensure_ascii=False, indent=2))


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n… and {len(text) - most:,} characters more"


def count(number: int, capped: bool = False) -> str:
    """A number; one that was not counted to its end says so."""
    return f"{number:,}{'+' if capped else ''}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{share * 100:.0f} %" if share in (0.0, 1.0) or 0.01 <= share <= 0.99 else f"{share * 100:.2f} %"

"""The limits that are in use, and the numbers that operators set over the code's."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Response

from queuert.chains.limits import LimitStatus
from queuert.dashboard.done import done_text
from queuert.dashboard.failures import BadInput
from queuert.dashboard.visit import Visit


def read_limits(visit: Visit) -> list[LimitStatus]:
    return visit.shared("limits", visit.app.limits)


def show(visit: Visit) -> Response:
    return visit.page("limits.html", limits=read_limits(visit), here=visit.url("limits"), done=done_text(visit.request.args))


def change(visit: Visit, name: str, act: str) -> Response:
    """Set numbers of a limit, or give back the code's."""
    numbers = _numbers(visit) if act == "set" else {}
    try:
        if act == "set":
            visit.app.set_limit(name, actor=visit.visitor.name, **numbers)
        else:
            visit.app.reset_limit(name)
    except (TypeError, ValueError) as error:
        raise BadInput(str(error)) from error
    return visit.back(visit.url("limits"), done="limit" if act == "set" else act)


def _numbers(visit: Visit) -> dict[str, Any]:
    """The numbers of the form; what is empty is left to the code."""
    found: dict[str, Any] = {}
    for name, kind in (("concurrency", int), ("rate", float), ("per", float), ("burst", int)):
        text = visit.request.form.get(name, "").strip()
        if not text:
            continue
        try:
            found[name] = kind(text)
        except ValueError as error:
            raise BadInput(f"{name} must be a {'whole ' if kind is int else ''}number, not {text[:50]!r}.") from error
    if not found:
        raise BadInput("Which number? Say a concurrency, a rate, its seconds or a burst.")
    return found

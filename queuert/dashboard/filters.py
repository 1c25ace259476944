"""The filters of a listing: read from an address, and written into one.

Pages, the JSON and acts on many take the same ones, so that what was looked at is what is acted on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final, Literal

from werkzeug.datastructures import MultiDict

from queuert.cli.values import moment
from queuert.dashboard.failures import BadInput
from queuert.model import Status

MOST_ROWS: Final = 200  # of a page
ROWS: Final = 50
MOST_NAMED: Final = 50  # values of one filter
LONGEST: Final = 500  # characters of one value

LISTS: Final = ("status", "type", "chain_type", "error_code", "id", "chain")
SCANNED: Final = ("worker", "key", "input")  # no index serves these
SINGLE: Final = (*SCANNED, "since", "until", "order", "cursor", "limit")
JOB_NAMES: Final = (*LISTS, *SINGLE)
CHAIN_NAMES: Final = tuple(name for name in JOB_NAMES if name not in ("chain_type", "chain", *SCANNED))


@dataclass(frozen=True)
class Filters:
    """What a listing is asked for."""

    status: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    chain_type: tuple[str, ...] = ()
    error_code: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    worker: str = ""
    key: str = ""
    input: str = ""
    since: str = ""
    until: str = ""
    order: Literal["asc", "desc"] = "desc"
    cursor: str = ""
    limit: int = ROWS
    # The times that `since` and `until` name now: "2h" stays "2h" in the address.
    times: Mapping[str, datetime] = field(default_factory=dict, compare=False)

    @property
    def query(self) -> dict[str, Any]:
        """As an address has them, from the first page on."""
        query: dict[str, Any] = {name: list(getattr(self, name)) for name in LISTS}
        query.update({name: getattr(self, name) for name in (*SCANNED, "since", "until")})
        query["order"] = "" if self.order == "desc" else self.order
        query["limit"] = "" if self.limit == ROWS else self.limit
        return {name: value for name, value in query.items() if value}

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells this listing from another."""
        names = (*LISTS, *SCANNED, "since", "until", "order", "cursor", "limit")
        return tuple(getattr(self, name) for name in names)

    @property
    def narrow(self) -> bool:
        """Whether anything is left out."""
        return any(getattr(self, name) for name in (*LISTS, *SCANNED, "since", "until"))

    @property
    def scans(self) -> bool:
        """Whether jobs must be looked at one by one."""
        return any(getattr(self, name) for name in SCANNED)

    def but(self, **changes: Any) -> Filters:
        return replace(self, **changes)

    def for_chains(self) -> dict[str, Any]:
        """As `list_chains` takes them."""
        return {**self._common(), "types": self.type or None, "chain_ids": self.id or None}

    def for_jobs(self) -> dict[str, Any]:
        """As `list_jobs` takes them."""
        named = {"job_ids": self.id or None, "chain_ids": self.chain or None}
        return {**self._common(), **named, "types": self.type or None, "chain_types": self.chain_type or None}

    def _common(self) -> dict[str, Any]:
        return {
            "statuses": self.status or None,
            "error_codes": self.error_code or None,
            "since": self.times.get("since"),
            "until": self.times.get("until"),
            "order": self.order,
            "cursor": self.cursor or None,
            "limit": self.limit,
        }


def read_filters(given: MultiDict[str, str], allowed: Iterable[str], *, strict: bool = False) -> Filters:
    """The filters that an address names; `strict` refuses what is no filter at all."""
    known = tuple(allowed)
    if strict and (unknown := sorted(set(given) - set(known))):
        raise BadInput(f"{unknown[0][:50]!r} is no parameter here: it takes {', '.join(known)}.")
    for name in known:
        for value in given.getlist(name):
            if "\0" in value or (len(value) > LONGEST and name != "cursor"):
                raise BadInput(f"{name} has a value that no job can have.")
    found: dict[str, Any] = {name: _listed(given, name) for name in LISTS if name in known}
    if wrong := [status for status in found.get("status", ()) if status not in {each.value for each in Status}]:
        raise BadInput(f"{wrong[0]!r} is no status: it is one of {', '.join(status.value for status in Status)}.")
    found.update({name: given.get(name, "").strip() for name in SCANNED if name in known})
    found["order"] = _one_of(given, "order", ("desc", "asc"))
    found["cursor"] = given.get("cursor", "")
    found["limit"] = _limit(given.get("limit", ""))
    found["since"], found["until"] = given.get("since", "").strip(), given.get("until", "").strip()
    found["times"] = {name: _time(name, found[name]) for name in ("since", "until") if found[name]}
    return Filters(**found)


def _listed(given: MultiDict[str, str], name: str) -> tuple[str, ...]:
    values = [part.strip() for value in given.getlist(name) for part in value.split(",")]
    named = tuple(dict.fromkeys(part for part in values if part))
    if len(named) > MOST_NAMED:
        raise BadInput(f"{name} names {len(named)} values: at most {MOST_NAMED} at once.")
    return named


def _one_of(given: MultiDict[str, str], name: str, values: tuple[str, ...]) -> str:
    found = given.get(name, "") or values[0]
    if found not in values:
        raise BadInput(f"{name} must be {' or '.join(values)}, not {found[:50]!r}.")
    return found


def _limit(text: str) -> int:
    if not text:
        return ROWS
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:10]) <= MOST_ROWS:
        raise BadInput(f"limit must be a whole number from 1 to {MOST_ROWS}, not {text[:50]!r}.")
    return int(text)


def _time(name: str, text: str) -> datetime:
    try:
        return moment(text).astimezone(timezone.utc)
    except (argparse.ArgumentTypeError, OverflowError) as error:
        raise BadInput(
            f"{name}: {error}" if isinstance(error, argparse.ArgumentTypeError) else f"{name} is too far away."
        ) from error

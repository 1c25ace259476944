"""Pauses: what must not be claimed, and which schedules must not tick.

A pause is a row that the claim itself reads. So once it is committed no worker claims what it names; what runs goes on, and
what was claimed ahead runs or goes back. When one is changed or lifted, workers are told; its end is part of what they wait for
anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from queuert.chains.operate import checked_actor, checked_reason
from queuert.context import Context
from queuert.job_types import JobType, JobTypeOrName, check_name
from queuert.model import Pause
from queuert.options import instant
from queuert.storage.protocol import Session

EVERYTHING: Final = ""
FORGET_AFTER: Final = 86_400.0
"""Seconds after its end that a pause is removed: until then a schedule knows which ticks it missed."""


class Pauses:
    """Pauses and resumes the types of one app."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    def pause(
        self,
        types: Sequence[JobTypeOrName],
        conn: object | None,
        *,
        until: datetime | None,
        reason: str | None,
        actor: str | None,
    ) -> None:
        self._pause("type", _names(types) or [EVERYTHING], conn, until, reason, actor)

    def pause_schedule(
        self, name: str, conn: object | None, *, until: datetime | None, reason: str | None, actor: str | None
    ) -> None:
        self._pause("schedule", [name], conn, until, reason, actor)

    def _pause(
        self,
        kind: str,
        names: Sequence[str],
        conn: object | None,
        until: datetime | None,
        reason: str | None,
        actor: str | None,
    ) -> None:
        end = None if until is None else instant(until, "until")
        facts = {"until": end, "reason": checked_reason(reason), "actor": checked_actor(actor)}

        def work(session: Session) -> None:
            if not self._repository.pause(session, kind, names, **facts):
                raise ValueError(f"until must be in the future, not {end}.")
            if kind == "type":
                # An end that comes sooner than the one before is something to wake up for.
                self._context.announce(session, ready=names)

        self._context.write(conn, work)

    def resume(self, types: Sequence[JobTypeOrName], conn: object | None) -> None:
        names = _names(types) or None

        def work(session: Session) -> None:
            self._context.announce(session, ready=self._repository.resume_types(session, names))

        self._context.write(conn, work)

    def resume_schedule(self, name: str, conn: object | None) -> None:
        self._context.write(conn, lambda session: self._repository.resume_schedule(session, name))

    def list(self, conn: object | None) -> list[Pause]:
        found = self._context.read(conn, lambda session: self._repository.list_pauses(session, "type"))
        return [Pause(p.name or None, p.since, p.until, p.reason, p.actor) for p in found if p.lasts]


def _names(types: Sequence[JobTypeOrName]) -> list[str]:
    """Names of types; this app need not know them."""
    return list(dict.fromkeys(each.name if isinstance(each, JobType) else check_name(each) for each in types))

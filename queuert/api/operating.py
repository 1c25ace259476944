"""What an operator does to chains, types and schedules. `actor` says who and `reason` why, for the timeline and the log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from queuert.chains.limits import Limits
from queuert.chains.new_chain import ChainRef, ids_of
from queuert.chains.operate import Operator, checked_actor, checked_reason
from queuert.chains.pauses import Pauses
from queuert.chains.periodic import Ticker
from queuert.context import Context
from queuert.job_types import JobTypeOrName
from queuert.model import Chain, Job, Pause
from queuert.options import Duration


class Operates:
    """Cancel, retry, trigger, delete; pause and resume."""

    _context: Context
    _operator: Operator
    _limits: Limits
    _pauses: Pauses
    _ticker: Ticker

    def cancel_chain(
        self,
        chain_id: ChainRef,
        *,
        conn: Any = None,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Chain:
        """Cancel an open chain; with `cascade` also what waits for it. A running handler is signalled."""
        return self.cancel_chains([chain_id], conn=conn, cascade=cascade, actor=actor, reason=reason)[0]

    def cancel_chains(
        self,
        chain_ids: Iterable[ChainRef],
        *,
        conn: Any = None,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> list[Chain]:
        """Cancel many chains; all or none."""
        ids, by, why = ids_of(self._context.ids, chain_ids), checked_actor(actor), checked_reason(reason)
        return self._operator.cancel(ids, conn, cascade=cascade, actor=by, reason=why) if ids else []

    def retry_chain(
        self, chain_id: ChainRef, *, conn: Any = None, actor: str | None = None, reason: str | None = None
    ) -> Chain:
        """Give a failed or cancelled chain fresh attempts."""
        return self.retry_chains([chain_id], conn=conn, actor=actor, reason=reason)[0]

    def retry_chains(
        self, chain_ids: Iterable[ChainRef], *, conn: Any = None, actor: str | None = None, reason: str | None = None
    ) -> list[Chain]:
        """Retry many chains; all or none."""
        ids, by, why = ids_of(self._context.ids, chain_ids), checked_actor(actor), checked_reason(reason)
        return self._operator.retry(ids, conn, actor=by, reason=why) if ids else []

    def trigger_job(self, job_id: ChainRef, *, conn: Any = None, actor: str | None = None, reason: str | None = None) -> Job:
        """Run a scheduled job now."""
        return self.trigger_jobs([job_id], conn=conn, actor=actor, reason=reason)[0]

    def trigger_jobs(
        self, job_ids: Iterable[ChainRef], *, conn: Any = None, actor: str | None = None, reason: str | None = None
    ) -> list[Job]:
        """Run many scheduled jobs now; all or none."""
        ids, by, why = ids_of(self._context.ids, job_ids), checked_actor(actor), checked_reason(reason)
        return self._operator.trigger(ids, conn, actor=by, reason=why) if ids else []

    def delete_chain(
        self,
        chain_id: ChainRef,
        *,
        conn: Any = None,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Chain | None:
        """Delete a chain, with `cascade` also those it waited for; the deleted chain, or None if there is none."""
        ids, by, why = ids_of(self._context.ids, [chain_id]), checked_actor(actor), checked_reason(reason)
        return next(
            (c for c in self._operator.delete(ids, conn, cascade=cascade, actor=by, reason=why) if c.id == ids[0]), None
        )

    def delete_chains(
        self,
        chain_ids: Iterable[ChainRef],
        *,
        conn: Any = None,
        cascade: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> list[Chain]:
        """Delete many chains; all or none. What was deleted."""
        ids, by, why = ids_of(self._context.ids, chain_ids), checked_actor(actor), checked_reason(reason)
        return self._operator.delete(ids, conn, cascade=cascade, actor=by, reason=why) if ids else []

    # Pauses

    def pause(
        self,
        *types: JobTypeOrName,
        until: datetime | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        """Have no worker claim jobs of these types, or of any if none is named, from the commit on until a time or `resume`.

        What runs goes on. A type that is paused already gets the new end, reason and actor.
        """
        self._pauses.pause(types, conn, until=until, reason=reason, actor=actor)

    def resume(self, *types: JobTypeOrName, actor: str | None = None, conn: Any = None) -> None:
        """Let workers claim these types again; without any, lift every pause. Workers are woken."""
        checked_actor(actor)
        self._pauses.resume(types, conn)

    def pauses(self, *, conn: Any = None) -> list[Pause]:
        """What is paused now: everything, where `type_name` is None, or a type."""
        return self._pauses.list(conn)

    def pause_periodic(
        self,
        name: str,
        *,
        until: datetime | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        """Have a schedule start no chains from the commit on, until a time or `resume_periodic`. `periodics()` shows it."""
        self._ticker.require(name, conn)
        self._pauses.pause_schedule(name, conn, until=until, reason=reason, actor=actor)

    def resume_periodic(self, name: str, *, actor: str | None = None, conn: Any = None) -> None:
        """Let a schedule tick again. The ticks that it missed follow its `missed`."""
        checked_actor(actor)
        self._ticker.require(name, conn)
        self._pauses.resume_schedule(name, conn)
        self._ticker.look_soon()

    def set_limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        per: Duration | None = None,
        burst: int | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        """Set numbers of a limit over the code's, in every worker, at once; what is left out stays the code's.

        A limit without a name has that of its type.
        """
        numbers = {"concurrency": concurrency, "rate": rate, "per": per, "burst": burst}
        self._limits.set(name, conn, actor=checked_actor(actor), **numbers)  # type: ignore[arg-type]  # checked there

    def reset_limit(self, name: str, *, conn: Any = None) -> None:
        """Let the code's numbers count again."""
        self._limits.reset(name, conn)

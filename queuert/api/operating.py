"""What an operator does to chains. `actor` says who and `reason` why, for the timeline and the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuert.chains.new_chain import ChainRef, ids_of
from queuert.chains.operate import Operator, checked_actor, checked_reason
from queuert.context import Context
from queuert.model import Chain, Job


class Operates:
    """Cancel, retry, trigger, delete."""

    _context: Context
    _operator: Operator

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

"""Ending attempts that did not complete their job: failed, rescheduled, lost, or given back unstarted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.context import Context
from queuert.model import Status
from queuert.storage.protocol import Session


def end_attempts(context: Context, session: Session, items: Sequence[dict[str, Any]]) -> set[str]:
    """Fail, reschedule or reap; the ids that were still held by the lease each item names."""
    ended = context.repository.end_attempts(session, items)
    context.announce(
        session,
        ready=[each.type_name for each in ended if each.status is Status.PENDING],
        closed=[each.chain_id for each in ended if each.status is Status.FAILED],
        lost=[item["id"] for item in items if item["outcome"] == "lost"],
    )
    return {each.id for each in ended}


def release_claims(context: Context, session: Session, worker: str, items: Sequence[dict[str, Any]]) -> set[str]:
    """Give back jobs that were claimed and not started; the ids that were still held."""
    freed = context.repository.release_claims(session, worker, items)
    context.announce(session, ready=[job.type_name for job in freed])
    return {job.id for job in freed}

"""Chains that close, and those who wait for that: what a transaction must see of them before it may close one or open it again.

A counter on the job says how many of its blockers are open. A job that waits until its blockers have completed is counted down
by completions alone. One that waits until they have closed is counted down by whatever closes them, and up again when one of
them is retried; before it is freed its blockers are counted anew, under the lock of its row.
"""

from __future__ import annotations

from collections.abc import Sequence

from queuert.context import Context
from queuert.errors import StaleSnapshotError
from queuert.storage.protocol import ABOVE_READ_COMMITTED, Session


def release_closed(context: Context, session: Session, chain_ids: Sequence[str]) -> list[str]:
    """Chains have failed or were cancelled, and their first jobs are locked: free who waited until they have closed.

    The types of what was freed.
    """
    released = context.repository.release_closed(session, chain_ids)
    if released.fixed_snapshot:
        check_snapshot(context, session, chain_ids)
    return [job.type_name for job in released.freed]


def reopen(context: Context, session: Session, chain_ids: Sequence[str]) -> None:
    """Closed chains are about to open again, and their first jobs are locked: who waits until they have closed waits again."""
    if context.repository.reopen_blockers(session, chain_ids):
        check_snapshot(context, session, chain_ids)


def check_snapshot(context: Context, session: Session, chain_ids: Sequence[str]) -> None:
    """Above READ COMMITTED a transaction may be older than a job that waits for these chains, and would strand it.

    Their first jobs are locked by now, so what another connection sees is all there is.
    """
    if not chain_ids:
        return
    repository, database = context.repository, context.database
    if database.in_block:  # ours begin READ COMMITTED: somebody has raised it, and no other connection may be used
        raise StaleSnapshotError(ABOVE_READ_COMMITTED)
    with database.inside_users_block(False), database.read() as other:
        waiting = repository.waiting_jobs(other, chain_ids)
    unseen = waiting - repository.waiting_jobs(session, chain_ids)
    if unseen:
        raise StaleSnapshotError(
            f"Job {min(unseen)} was made to wait for this chain after this transaction began, which cannot see it: "
            "roll back and try again, or complete chains under READ COMMITTED."
        )

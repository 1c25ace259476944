"""How far a chain is: by what it waits for, and by what its handler tells."""

from __future__ import annotations

from queuert.chains.new_chain import chain_id
from queuert.context import Context
from queuert.errors import ChainNotFoundError
from queuert.model import Job, Progress, Status
from queuert.storage.protocol import Session


def progress(context: Context, ref: object, conn: object | None) -> Progress:
    """How far a chain is."""
    identity = context.ids.check(chain_id(ref))

    def work(session: Session) -> Progress:
        tail = context.repository.get_tails(session, [identity]).get(identity)
        if tail is None:
            raise ChainNotFoundError(identity)
        return _of(tail, context.repository.count_blockers(session, tail.id) if tail.blocker_count else {})

    return context.read(conn, work)


def _of(tail: Job, blockers: dict[str, int]) -> Progress:
    done, total = blockers.get(Status.COMPLETED.value, 0), sum(blockers.values())
    failed = blockers.get(Status.FAILED.value, 0) + blockers.get(Status.CANCELLED.value, 0)
    if tail.status is Status.COMPLETED:  # what its handler told last is history then, and maybe not the last it said
        return Progress(done, total, failed, 1.0, None)
    if tail.status is not Status.BLOCKED and tail.progress_fraction is not None:
        return Progress(done, total, failed, tail.progress_fraction, tail.progress_message)
    return Progress(done, total, failed, done / total if total else 0.0, None)

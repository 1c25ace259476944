"""Completing jobs: their chains go on or close, and what waited for a chain that closes is freed.

Locks, on PostgreSQL. Whoever changes the shape of a chain locks its first job before anything else of it: with FOR UPDATE
when the chain closes, so that nobody can name it as a blocker at that moment (naming one takes a key-share lock through
the foreign key), and FOR NO KEY UPDATE when it goes on. The statement after that sees every dependant that was committed
before. Several rows are locked in id order. A claim, a renewal and the reaper lock only the job itself and skip what is locked,
so they never wait. Where two of our transactions meet in opposite order all the same, the database picks a victim and it is run
again.

On SQLite there is one writer, and each of these calls starts with a write.

The fence is in the SQL: a job is completed, failed or given back only where `(leased_by, lease_token)` is still the pair that
the caller was given with the claim. What comes back from the statement is what happened; notices and counts follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from queuert import observing
from queuert.chains.blockers import blocker_types, connect, waits_for_itself
from queuert.chains.closing import check_snapshot
from queuert.chains.continuing import NextJob
from queuert.chains.limits import types_of
from queuert.context import Context
from queuert.errors import DuplicateJobIdError, StaleSnapshotError
from queuert.job_types import check_blockers
from queuert.model import Job, Status
from queuert.storage.protocol import ABOVE_READ_COMMITTED, Block, Commit, Session
from queuert.storage.records import Completed


class Completion:
    """A job that is to be completed: with its lease's token by a worker, without by somebody from outside."""

    __slots__ = ("job", "next", "output", "token", "waited")

    def __init__(
        self, job: Job, output: str | None, token: int | None, next: NextJob | None = None, waited: float | None = None
    ) -> None:
        self.job = job
        self.output = output
        self.token = token
        self.next = next
        # Seconds between the claim and the handler's start.
        self.waited = waited

    @property
    def size(self) -> int:
        """Characters of the payload that it brings."""
        if self.next is not None:
            return len(self.next.columns["next_input"] or "")
        return len(self.output) if self.output is not None else 0

    @property
    def is_simple(self) -> bool:
        """Whether it is one act: there is nothing to check under the lock before, nor to write after."""
        return self.next is None or self.next.is_simple


class CompletionBatch(NamedTuple):
    """Completions with what can be made ready before the transaction begins."""

    completions: Sequence[Completion]
    items: list[dict[str, Any]]
    encoded: Any


def batch(context: Context, worker: str | None, completions: Sequence[Completion]) -> CompletionBatch:
    items = [_item(context, completion) for completion in completions]
    encoded = context.repository.encode_completions(worker, items) if len(items) > 1 else None
    return CompletionBatch(completions, items, encoded)


def _item(context: Context, c: Completion) -> dict[str, Any]:
    item = {"id": c.job.id, "chain_id": c.job.chain_id, "token": c.token, "output": c.output, "waited": c.waited}
    if c.token is not None:
        item["outcome"] = "succeeded" if context.settings.history == "all" else None
    elif c.job.leased_by:
        item["outcome"], item["holder"] = "cancelled", c.job.leased_by
    return item if c.next is None else item | c.next.columns


def complete(
    context: Context, session: Session, worker: str | None, completions: Sequence[Completion], *, wait: bool = True
) -> Completed:
    """Complete jobs; see `complete_batch`."""
    return complete_batch(context, session, worker, batch(context, worker, completions), wait=wait)


def complete_batch(
    context: Context, session: Session, worker: str | None, batch_: CompletionBatch, *, wait: bool = True
) -> Completed:
    """Complete jobs, insert their continuations, release what waited for their chains.

    A job whose lease was lost is left out of the result's `ids`, and nothing is written for it. With `wait=False` rows
    that others have locked are left for later instead of waited for.
    """
    locked: frozenset[str] = frozenset()
    if not all(completion.is_simple for completion in batch_.completions):
        # What is checked here must still hold when it is written.
        locked = frozenset(context.repository.lock_completions(session, batch_.items, wait=wait))
        if locked:
            batch_ = batch(context, worker, [c for c in batch_.completions if c.job.id not in locked])
        _check_next_ids(context, session, batch_.completions)
        _check_next_blockers(context, session, batch_.completions)
        wait = True
    if not batch_.completions:
        return Completed(set(), (), locked)
    complete_jobs = partial(context.repository.complete_jobs, session, worker, batch_.items, wait=wait, encoded=batch_.encoded)
    completed = complete_jobs()
    if completed.fixed_snapshot:
        if not context.database.in_users_block:  # ours begin READ COMMITTED: somebody has raised it
            raise StaleSnapshotError(ABOVE_READ_COMMITTED)
        check_snapshot(context, session, [c.job.chain_id for c in batch_.completions if c.next is None])
        completed = complete_jobs(snapshot_checked=True)
    _follow_up(context, session, batch_.completions, completed)
    return completed._replace(locked=completed.locked | locked)


def complete_and_commit(context: Context, block: Block, worker: str, completion: Completion) -> tuple[Completed, Commit | None]:
    """Complete a job in the transaction of a block, and COMMIT it; no commit if the job's lease was lost."""
    if completion.is_simple:
        sent = context.repository.complete_and_commit(block, worker, _item(context, completion))
        if sent is not None:
            completed, commit = sent
            _follow_up(context, block.session, [completion], completed)  # effects wait for `commit.wait()`
            return completed, commit
    completed = complete(context, block.session, worker, [completion])
    return completed, block.commit() if completed.ids else None


def _follow_up(context: Context, session: Session, completions: Sequence[Completion], completed: Completed) -> None:
    """Connect the continuations that have blockers, and tell what happened."""
    done = [c for c in completions if c.job.id in completed.ids]
    freed = list(completed.freed)
    waiting = {c.next.id: c.next.blockers for c in done if c.next is not None and c.next.blockers}
    if waiting:
        traces = {c.next.id: c.next.columns["next_trace"] for c in done if c.next is not None}
        freed += connect(context, session, waiting, traces)
    _announce(context, session, done, [job.type_name for job in freed if job.status is Status.PENDING])
    outside = [c for c in done if c.token is None]
    if outside:
        observing.completed_outside(
            context, session, [(c.job, c.next.produced if c.next else None, c.next.id if c.next else None) for c in outside]
        )


def _announce(context: Context, session: Session, done: Sequence[Completion], freed: Sequence[str]) -> None:
    limits = {c.job.limit_name for c in done if c.job.limit_name is not None}
    places = types_of(context.types, limits) if limits else []
    context.announce(
        session,
        ready=[*freed, *places, *(c.next.job_type.name for c in done if c.next is not None and not c.next.blockers)],
        closed=[c.job.chain_id for c in done if c.next is None],
        lost=[c.job.id for c in done if c.token is None and c.job.leased_by],
    )


def _check_next_ids(context: Context, session: Session, completions: Sequence[Completion]) -> None:
    named = [c.next.id for c in completions if c.next is not None and c.next.explicit_id]
    for taken in context.repository.get_jobs(session, named) if named else ():
        raise DuplicateJobIdError(taken)


def _check_next_blockers(context: Context, session: Session, completions: Sequence[Completion]) -> None:
    for completion in completions:
        following = completion.next
        if following is None or not following.blockers:
            continue
        types = blocker_types(context, session, following.blockers)
        check_blockers(following.job_type, [types[blocker] for blocker in following.blockers])
        if completion.job.chain_id in context.repository.waits_for(session, following.blockers):
            raise waits_for_itself(completion.job.chain_id, following.job_type.name)

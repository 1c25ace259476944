"""The next job of a chain, checked; nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queuert import observing
from queuert.chains.blockers import check_blocker_ids
from queuert.chains.limits import limit_columns
from queuert.chains.new_chain import ChainRef, schedule
from queuert.context import Context
from queuert.errors import JobTypeValidationError
from queuert.job_types import JobType, check_blockers, check_continuation
from queuert.model import Job
from queuert.options import UNSET, BlockersUntil, Duration, _Unset, check_blockers_until, check_max_attempts, check_priority


@dataclass(frozen=True)
class NextJob:
    """A checked continuation: the columns of its row, and its blockers."""

    job_type: JobType[Any, Any]
    columns: dict[str, Any]
    blockers: tuple[str, ...] = ()
    explicit_id: bool = False
    produced: observing.Produced | None = None

    @property
    def id(self) -> str:
        return str(self.columns["next_id"])

    @property
    def is_simple(self) -> bool:
        """Whether it is written with the completion: there is nothing to check under the lock before, nor to write after."""
        return not (self.explicit_id or self.blockers)


def next_job(
    context: Context,
    current: Job,
    job_type: JobType[Any, Any] | str,
    input: object = None,
    *,
    id: object = None,
    at: datetime | None = None,
    after: Duration | None = None,
    priority: int | None = None,
    max_attempts: int | _Unset | None = UNSET,
    blockers: Sequence[ChainRef] | None = None,
    blockers_until: BlockersUntil = "completed",
    limit_key: object = None,
    learns_of_commit: bool = True,
) -> NextJob:
    """Check a continuation of `current`. `learns_of_commit` says whether we are told when it is committed."""
    target = context.types.get(job_type)
    known = context.types.find(current.type_name)
    if known is not None:
        check_continuation(known, target.name)
    due_at, due_after = schedule(at, after)
    named = check_blocker_ids(context, blockers, target.name)
    if not named:
        check_blockers(target, [])
    if current.chain_id in named:
        raise JobTypeValidationError(
            "invalid_blockers", f"A job of chain {current.chain_id} cannot wait for its own chain.", type_name=target.name
        )
    text = context.payloads.encode_input(target, input)
    produced = observing.producing(context, "continue", [target.name], learns_of_commit=learns_of_commit)
    tries = target.max_attempts if isinstance(max_attempts, _Unset) else max_attempts
    return NextJob(
        job_type=target,
        columns={
            "next_id": context.ids.new() if id is None else context.ids.check(id),
            "next_type": target.name,
            "next_input": text,
            "next_priority": None if priority is None else check_priority(priority),
            "next_at": due_at,
            "next_after": due_after,
            "next_max_attempts": check_max_attempts(tries),
            "next_blockers": len(named),
            "next_trace": produced.trace if produced is not None else None,
            "next_until": check_blockers_until(blockers_until),
            "next_on_failed": target.on_failed,
            **_limit(target, text, limit_key),
        },
        blockers=named,
        explicit_id=id is not None,
        produced=produced,
    )


def _limit(target: JobType[Any, Any], text: str, limit_key: object) -> dict[str, Any]:
    found = limit_columns(target, text, limit_key) if target.limit is not None or limit_key is not None else {}
    return {f"next_{name}": found.get(name) for name in ("limit_name", "limit_key", "limit_strict")}

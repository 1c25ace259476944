"""Ending attempts that did not complete their job: failed, rescheduled, lost, or given back unstarted.

A job that fails for good closes its chain. So its row and that of the chain's first job are locked as for a completion, before
anything is written: whoever is naming the chain as a blocker at this moment is waited for, and seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from queuert.chains.closing import release_closed
from queuert.chains.failing import failure_of, new_chain_id, start_failure_chains
from queuert.chains.limits import NO_LIMIT, types_of
from queuert.context import Context
from queuert.model import Job, Status
from queuert.storage.protocol import Session

# What an item has for us and not for the database: the job, and for how long its limit's key is to be held.
_OURS: Final = ("job", "hold")


def end_attempts(context: Context, session: Session, items: Sequence[dict[str, Any]]) -> set[str]:
    """Fail, reschedule or reap; the ids that were still held by the lease each item names. The rows of those that fail for good
    are locked already: see `lock_failing`."""
    jobs: dict[str, Job] = {item["id"]: item["job"] for item in items if item.get("job") is not None}
    failing = [i for i in items if i["status"] == Status.FAILED.value and i["id"] in jobs and jobs[i["id"]].on_failed]
    chains = {item["id"]: new_chain_id(context, session) for item in failing}
    plain = [
        {**{name: item[name] for name in item if name not in _OURS}, "failure_chain_id": chains.get(item["id"])}
        for item in items
    ]
    ended = context.repository.end_attempts(session, plain)
    held = {each.id for each in ended}
    _hold(context, session, [(jobs[i["id"]], i["hold"]) for i in items if i.get("hold") is not None and i["id"] in held])
    failed = {each.id: each.chain_id for each in ended if each.status is Status.FAILED}
    freed = release_closed(context, session, list(failed.values())) if failed else []
    limits = {job.limit_name for job in jobs.values() if job.limit_name is not None}
    places = types_of(context.types, limits) if limits else []
    context.announce(
        session,
        ready=[*(each.type_name for each in ended if each.status is Status.PENDING), *freed, *places],
        closed=list(failed.values()),
        lost=[item["id"] for item in items if item["outcome"] == "lost"],
    )
    started = [
        (chains[item["id"]], str(job.on_failed), failure_of(job, item["code"], item["detail"]))
        for item in failing
        if item["id"] in failed
        for job in (jobs[item["id"]],)
    ]
    if started:
        start_failure_chains(context, session, started)
    return {each.id for each in ended}


def _hold(context: Context, session: Session, held: Sequence[tuple[Job, float]]) -> None:
    """Let nothing start with the limit keys of these jobs for so many seconds; without a limit, nothing of their types."""
    if limited := [(job, pause) for job, pause in held if job.limit_name not in (None, NO_LIMIT)]:
        items = [{"name": job.limit_name, "key": job.limit_key, "seconds": pause} for job, pause in limited]
        context.repository.hold_keys(session, items)


def lock_failing(
    context: Context, session: Session, items: Sequence[dict[str, Any]], *, wait: bool = True
) -> tuple[list[dict[str, Any]], set[str]]:
    """Lock what ending these attempts needs; the items that can be written now, and the jobs that somebody else has locked."""
    chains = {i["id"]: i["job"].chain_id for i in items if i["status"] == Status.FAILED.value and i.get("job") is not None}
    if not chains and wait:
        return list(items), set()
    repository = context.repository
    locked: set[str] = set()
    if chains:
        locked |= repository.lock_closing(session, sorted({*chains, *chains.values()}), wait=wait)
    others = sorted(str(item["id"]) for item in items if item["id"] not in chains)
    if others and not wait:
        locked |= repository.lock_jobs(session, others, wait=False)
    elif others:
        locked |= set(others)  # waited for when they are written
    free = [item for item in items if item["id"] in locked and chains.get(item["id"], item["id"]) in locked]
    return free, {str(item["id"]) for item in items} - {str(item["id"]) for item in free}


def claimed_item(job: Job) -> dict[str, Any]:
    """What `release_claims` needs of a job."""
    item = {"id": job.id, "token": job.lease_token}
    return item if job.limit_name is None else {**item, "job": job}


def release_claims(context: Context, session: Session, worker: str, items: Sequence[dict[str, Any]]) -> set[str]:
    """Give back jobs that were claimed and not started; the ids that were still held."""
    plain = [{"id": item["id"], "token": item["token"]} for item in items]
    freed = context.repository.release_claims(session, worker, plain)
    released = {job.id for job in freed}
    limited = [item["job"] for item in items if item["id"] in released and "job" in item]
    if limited:
        counts = Counter((job.limit_name, job.limit_key) for job in limited)
        rates = [{"name": name, "key": key, "number": number} for (name, key), number in sorted(counts.items())]
        context.repository.give_back_rates(session, rates)
    places = types_of(context.types, {job.limit_name for job in limited}) if limited else []
    context.announce(session, ready=[*(job.type_name for job in freed), *places])
    return released

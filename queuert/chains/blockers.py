"""Blockers: the chains that a job waits for. They must exist, fit what its type declares, and not wait for it themselves.

A job is inserted with all its blockers counted as open. Naming them comes next, which on PostgreSQL locks their first jobs
against a close at this very moment; the statement after that counts which are open, and frees the job if none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from queuert.chains.new_chain import ChainRef, chain_id
from queuert.context import Context
from queuert.errors import ChainNotFoundError, JobTypeValidationError
from queuert.model import Chain
from queuert.storage.protocol import Session
from queuert.storage.records import Freed


def check_blocker_ids(context: Context, blockers: Sequence[ChainRef] | None, type_name: str) -> tuple[str, ...]:
    """The ids of the named chains, in order; each once."""
    if blockers is None:
        return ()
    if isinstance(blockers, (str, bytes, Chain)) or not isinstance(blockers, Iterable):
        raise TypeError("blockers must be a list of chains or ids.")
    ids = tuple(context.ids.check(chain_id(blocker)) for blocker in blockers)
    if len(set(ids)) != len(ids):
        raise JobTypeValidationError(
            "invalid_blockers", f"The same chain is named twice as a blocker of {type_name!r}.", type_name=type_name
        )
    return ids


def blocker_types(context: Context, session: Session, ids: Iterable[str]) -> dict[str, str]:
    """The types of chains that are to be blockers; all must exist."""
    wanted = sorted(ids)
    found = context.repository.get_chains(session, wanted) if wanted else {}
    for identity in wanted:
        if identity not in found:
            raise ChainNotFoundError(identity)
    return {identity: chain.type_name for identity, chain in found.items()}


def connect(
    context: Context, session: Session, blockers: Mapping[str, Sequence[str]], traces: Mapping[str, str | None]
) -> list[Freed]:
    """Note what jobs wait for; the status of each, which is pending if all its blockers have completed."""
    repository = context.repository
    items = [
        {"job_id": job_id, "chain_id": blocker, "index": index, "trace": traces.get(job_id)}
        for job_id, named in blockers.items()
        for index, blocker in enumerate(named)
    ]
    try:
        repository.insert_blockers(session, items)
    except Exception as error:
        deleted = repository.missing_blocker(error)
        if deleted is None:
            raise
        raise ChainNotFoundError(deleted) from error  # after it was looked at
    return repository.settle_blockers(session, list(blockers))


def check_circles(blockers: Mapping[str, Sequence[str]], type_names: Mapping[str, str]) -> None:
    """Chains of one batch must not wait for each other in a circle."""
    settled: set[str] = set()
    for start, named in blockers.items():
        path: list[tuple[str, list[str]]] = [(start, list(named))]
        waiting = {start}
        while path:
            identity, rest = path[-1]
            if not rest:
                path.pop()
                waiting.discard(identity)
                settled.add(identity)
                continue
            blocker = rest.pop()
            if blocker in waiting:
                raise waits_for_itself(identity, type_names[identity])
            if blocker in blockers and blocker not in settled:
                waiting.add(blocker)
                path.append((blocker, list(blockers[blocker])))


def waits_for_itself(chain: str, type_name: str) -> JobTypeValidationError:
    """The error for a chain that is to wait for itself."""
    return JobTypeValidationError(
        "invalid_blockers", f"Chain {chain} would wait for itself, through its blockers.", type_name=type_name
    )

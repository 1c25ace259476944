"""Reading chains and jobs: single records, and waiting for a chain to close."""

from __future__ import annotations

import re
import threading
import time
from typing import Final, TypeVar

from queuert.chains.new_chain import chain_id
from queuert.context import Context
from queuert.errors import (
    ChainCancelledError,
    ChainFailedError,
    ChainNotFoundError,
    JobNotFoundError,
    WaitTimeoutError,
)
from queuert.job_types import JobTypeOrName, check_type
from queuert.model import Chain, Job, Status
from queuert.notify.protocol import Channel, Notice
from queuert.options import Duration, seconds
from queuert.storage.protocol import Session
from queuert.storage.repository import Repository

T = TypeVar("T", Job, Chain)

MAX_LIMIT: Final = 1_000
MAX_DEPTH: Final = 20  # chains that wait for chains: how far a wait that timed out looks for the one that holds it up
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
ALL_STATUSES: Final = tuple(status.value for status in Status)
UNCOMPLETED: Final = tuple(status.value for status in Status if status is not Status.COMPLETED)


class Reader:
    """Reads chains and jobs of one app."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repository = context.repository

    # Single records

    def job(self, id: object, type_name: JobTypeOrName | None, conn: object | None) -> Job | None:
        identity = self._context.ids.check(id)
        found = self._context.read(conn, lambda session: self._repository.get_jobs(session, [identity])).get(identity)
        if found is None:
            return None
        check_type(identity, type_name, found.type_name)
        return self._context.payloads.decode_job(found)

    def chain(self, ref: object, type_name: JobTypeOrName | None, conn: object | None) -> Chain | None:
        identity = self._context.ids.check(chain_id(ref))
        found = self._context.read(conn, lambda session: self._repository.get_chains(session, [identity])).get(identity)
        if found is None:
            return None
        check_type(identity, type_name, found.type_name)
        return self._context.payloads.decode_chain(found)

    def job_blockers(self, id: object, conn: object | None) -> list[Chain]:
        identity = self._context.ids.check(id)

        def work(session: Session) -> list[Chain]:
            found = self._repository.get_blockers(session, [identity]).get(identity)
            if found is None and not self._repository.get_jobs(session, [identity]):
                raise JobNotFoundError(identity)
            return [self._context.payloads.decode_chain(chain) for chain in found or []]

        return self._context.read(conn, work)

    def connected(self, ref: object, conn: object | None) -> list[Chain]:
        identity = self._context.ids.check(chain_id(ref))

        def work(session: Session) -> list[Chain]:
            require_chain(self._repository, session, identity)
            ids = [other for other in self._repository.connected_chains(session, [identity]) if other != identity]
            found = self._repository.get_chains(session, ids) if ids else {}
            chains = sorted(found.values(), key=lambda chain: (chain.created_at, chain.id))
            return [self._context.payloads.decode_chain(chain) for chain in chains]

        return self._context.read(conn, work)

    # Waiting

    def wait_for(self, ref: object, *, timeout: Duration | None, poll_interval: Duration, raise_on_failure: bool) -> Chain:
        identity = self._context.ids.check(chain_id(ref))
        limit = None if timeout is None else seconds(timeout, "timeout")
        poll = seconds(poll_interval, "poll_interval", positive=True)
        deadline = None if limit is None else time.monotonic() + limit
        changed = threading.Event()

        def look_again(notice: Notice) -> None:
            if notice.payload in ("", identity):
                changed.set()

        with self._context.notifier.subscribe(look_again, channels={Channel.CHAIN_CLOSED}):
            while True:
                changed.clear()
                chain = self.chain(identity, None, None)
                if chain is None:
                    raise ChainNotFoundError(identity)
                if chain.status.closed:
                    return _closed(chain, raise_on_failure)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeoutError(identity, limit or 0.0, chain.status.value, self._waits_in_vain_for(chain))
                changed.wait(poll if left is None else min(poll, left))

    def _waits_in_vain_for(self, chain: Chain) -> dict[str, str]:
        """The chains that a blocked one waits for, itself or through others, and that did not complete: how each ended."""
        if chain.status is not Status.BLOCKED:
            return {}

        def work(session: Session) -> dict[str, str]:
            ended: dict[str, str] = {}
            seen, tails = {chain.id}, [chain.tail_id]
            for _ in range(MAX_DEPTH):
                blockers = [each for found in self._repository.get_blockers(session, tails).values() for each in found]
                ended |= {each.id: each.status.value for each in blockers if each.status in (Status.FAILED, Status.CANCELLED)}
                tails = [each.tail_id for each in blockers if each.status is Status.BLOCKED and each.id not in seen]
                seen |= {each.id for each in blockers}
                if not tails:
                    break
            return ended

        return self._context.read(None, work)


def _closed(chain: Chain, raise_on_failure: bool) -> Chain:
    if raise_on_failure and chain.status is Status.FAILED:
        raise ChainFailedError(
            f"Chain {chain.id} failed with {chain.error_code or 'no error code'}: app.timeline({chain.tail_id!r}) tells how.",
            chain,
        )
    if raise_on_failure and chain.status is Status.CANCELLED:
        raise ChainCancelledError(f"Chain {chain.id} was cancelled.", chain)
    return chain


def require_chain(repository: Repository, session: Session, identity: str) -> None:
    if identity not in repository.get_chains(session, [identity]):
        raise ChainNotFoundError(identity)

"""Completing a chain without a worker: by a button, a webhook, an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from queuert.chains.closing import reopen
from queuert.chains.complete import Completion, complete
from queuert.chains.continuing import next_job
from queuert.chains.new_chain import ChainRef, NextOptions
from queuert.context import Context
from queuert.errors import ChainNotFoundError, JobAlreadyCompletedError, JobStateError
from queuert.ids import Id
from queuert.job_types import InputOf, JobType, JobTypeOrName, check_type
from queuert.model import Job, Status
from queuert.options import UNSET, BlockersUntil, Duration, _Unset
from queuert.storage.protocol import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

NextT = TypeVar("NextT")


@contextmanager
def complete_from_outside(
    context: Context, identity: str, conn: object | None, type_name: JobTypeOrName | None
) -> Iterator[ChainTail]:
    """Lock the tail of a chain and hand it out to be finished or continued without a worker."""
    with context.explained():
        conn = context.database.ambient() if conn is None else conn
        if conn is not None:
            session = context.join(conn)
            with context.database.inside_users_block():
                yield _locked_tail(context, session, identity, type_name)
            return
        with context.database.block() as session:
            yield _locked_tail(context, session, identity, type_name)


def _locked_tail(context: Context, session: Session, identity: str, type_name: JobTypeOrName | None) -> ChainTail:
    tail = context.repository.lock_tail(session, identity)
    if tail is None:
        raise ChainNotFoundError(identity)
    check_type(identity, type_name, tail.chain_type_name)
    return ChainTail._of(context, session, tail)


class ChainTail(Job):
    """The tail of a chain, locked: every attribute of `Job` as it was found, and `finish` or `continue_with` to complete it."""

    _context: Context
    _session: Session
    _raw: Job
    _finished: bool

    @classmethod
    def _of(cls, context: Context, session: Session, job: Job) -> ChainTail:
        tail = object.__new__(cls)
        decoded = context.payloads.decode_job(Job(**job.__dict__))
        tail.__dict__.update(decoded.__dict__, _context=context, _session=session, _raw=job, _finished=False)
        return tail

    @property
    def conn(self) -> Any:
        """The connection of the transaction that holds the lock."""
        return self._session.raw

    def finish(self, output: object = None) -> None:
        """Complete the job and close the chain."""
        self._check()
        text = self._context.payloads.encode_output(self._raw.type_name, output)
        self._complete(Completion(self._raw, text, None))

    @overload
    def continue_with(self, job_type: JobType[NextT, Any], input: InputOf[NextT], **options: Unpack[NextOptions]) -> None: ...

    @overload
    def continue_with(self, job_type: JobType[None, Any], input: None = None, **options: Unpack[NextOptions]) -> None: ...

    @overload
    def continue_with(self, job_type: str, input: object = None, **options: Unpack[NextOptions]) -> None: ...

    def continue_with(
        self,
        job_type: JobType[Any, Any] | str,
        input: object = None,
        *,
        id: Id | None = None,
        at: datetime | None = None,
        after: Duration | None = None,
        priority: int | None = None,
        max_attempts: int | _Unset | None = UNSET,
        blockers: Sequence[ChainRef] | None = None,
        blockers_until: BlockersUntil = "completed",
        limit_key: object = None,
    ) -> None:
        """Complete the job and go on with the next one."""
        self._check()
        following = next_job(
            self._context,
            self._raw,
            job_type,
            input,
            id=id,
            at=at,
            after=after,
            priority=priority,
            max_attempts=max_attempts,
            blockers=blockers,
            blockers_until=blockers_until,
            limit_key=limit_key,
            learns_of_commit=self._session.hooks is not None,
        )
        self._complete(Completion(self._raw, None, None, following))

    def _check(self) -> None:
        if self._finished or self._raw.status is Status.COMPLETED:
            raise JobAlreadyCompletedError(self._raw.id)
        if self._raw.status not in (Status.PENDING, Status.RUNNING, Status.FAILED):
            raise JobStateError(
                f"Job {self._raw.id} is {self._raw.status}; only a pending, running or failed job can be completed.",
                job_id=self._raw.id,
                status=self._raw.status.value,
            )

    def _complete(self, completion: Completion) -> None:
        with self._session.savepoint():
            if self._raw.status is Status.FAILED:  # for those who wait until it has closed, it closes once more
                reopen(self._context, self._session, [self._raw.chain_id])
            complete(self._context, self._session, None, [completion])
        self.__dict__["_finished"] = True

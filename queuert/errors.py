"""Every error the library raises on purpose.

Each one carries its facts as attributes; its message is one sentence that says what to do next. A class whose
docstring ends in a full stop uses that docstring as its message when none is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from queuert.suggestions import did_you_mean

ValidationCode = Literal["not_entry_point", "invalid_continuation", "invalid_blockers", "invalid_input", "invalid_output"]


class QueuertError(Exception):
    """Base of all errors of this library."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class JobNotFoundError(QueuertError):
    """There is no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"There is no job {job_id}: it was never committed, or it was deleted.")
        self.job_id = job_id


class ChainNotFoundError(QueuertError):
    """There is no such chain."""

    def __init__(self, chain_id: str) -> None:
        super().__init__(
            f"There is no chain {chain_id}: it was never committed, it was deleted, or this is the id of a "
            "continuation (a chain's id is the id of its first job)."
        )
        self.chain_id = chain_id


class JobAlreadyCompletedError(QueuertError):
    """The job is completed already."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id} is completed already; nothing was changed.")
        self.job_id = job_id


class JobNotTriggerableError(QueuertError):
    """Only a pending job can be triggered."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"Job {job_id} is {status}; only a pending job can be triggered. Nothing was changed.")
        self.job_id = job_id
        self.status = status


class TransactionMisuseError(QueuertError):
    """The transaction belongs to the block: leave the block to commit it, or raise an exception to roll it back."""


class JobTakenByAnotherWorkerError(QueuertError):
    """This worker no longer holds the job's lease; nothing of this attempt was saved."""

    def __init__(self, job_id: str, reason: str = "taken_by_another_worker") -> None:
        super().__init__(
            f"This attempt no longer holds the lease of job {job_id} ({reason.replace('_', ' ')}); nothing of it was saved."
        )
        self.job_id = job_id
        self.reason = reason


class JobTypeMismatchError(QueuertError):
    """The record has another type than the caller asked for."""

    def __init__(self, record_id: str, expected: str, actual: str) -> None:
        super().__init__(f"{record_id} has the type {actual!r}, not {expected!r}.")
        self.id = record_id
        self.expected = expected
        self.actual = actual


class JobTypeValidationError(QueuertError):
    """Something does not fit the declared job type; `code` says what."""

    def __init__(self, code: ValidationCode, message: str, *, type_name: str | None = None) -> None:
        super().__init__(message)
        self.code: ValidationCode = code
        self.type_name = type_name


class UnreadableRowError(QueuertError):
    """The row of a job holds what this library does not write, so that the job cannot be run."""

    error_code = "INVALID_INPUT:UNREADABLE_ROW"


class UnknownJobTypeError(QueuertError):
    """No job type of this name is registered."""

    def __init__(self, type_name: str, known: Iterable[str] = ()) -> None:
        super().__init__(
            f"No job type {type_name!r} is registered with this app: define it with @app.job, name it with "
            f"app.declare(...), or include its registry.{did_you_mean(type_name, known)}"
        )
        self.type_name = type_name


class DuplicateJobTypeError(QueuertError):
    """Two job types have one name."""

    def __init__(self, type_name: str) -> None:
        super().__init__(f"The job type {type_name!r} is registered twice: give one of them another name.")
        self.type_name = type_name


@dataclass(frozen=True)
class BlockerReference:
    """One job that waits for a chain."""

    job_id: str
    chain_id: str
    blocked_by_chain_id: str


class BlockerReferenceError(QueuertError):
    """Other jobs still wait for a chain that was to be deleted."""

    def __init__(self, references: Sequence[BlockerReference]) -> None:
        waiting = ", ".join(f"job {r.job_id} waits for chain {r.blocked_by_chain_id}" for r in references[:5])
        more = f" and {len(references) - 5} more" if len(references) > 5 else ""
        super().__init__(f"Not deleted, since others wait for it: {waiting}{more}. Cancel or delete those first.")
        self.references: tuple[BlockerReference, ...] = tuple(references)


class TransactionRequiredError(QueuertError):
    """No transaction is open on this connection, so the job would commit alone: open one first."""


class InvalidJobIdError(QueuertError):
    """The id is malformed."""

    def __init__(self, job_id: object, expected: str = "a UUID") -> None:
        super().__init__(f"{job_id!r} is not a valid id: expected {expected}.")
        self.job_id = job_id


class AmbiguousIdError(QueuertError):
    """Several jobs have ids that begin or end so; `candidates` are some of them."""

    def __init__(self, part: str, candidates: Sequence[str], *, more: bool = False) -> None:
        shown = ", ".join(candidates) + (", ..." if more else "")
        super().__init__(f"{part} could be any of {shown}: write more of it.")
        self.part = part
        self.candidates = list(candidates)


class DuplicateJobIdError(QueuertError):
    """A job with this id exists already."""

    def __init__(self, job_id: str | None) -> None:
        super().__init__(f"A job with the id {job_id} exists already; nothing was written.")
        self.job_id = job_id


class WaitTimeoutError(QueuertError, TimeoutError):
    """The chain did not close in time."""

    def __init__(self, chain_id: str, timeout: float, status: str, waits_for: Mapping[str, str] | None = None) -> None:
        message = f"Chain {chain_id} is still {status} after {timeout:g} seconds."
        if waits_for:
            ended = [f"{blocker}, which {'was cancelled' if how == 'cancelled' else how}" for blocker, how in waits_for.items()]
            more = f" and for {len(ended) - 3} more that did not complete" if len(ended) > 3 else ""
            message += f" It waits for chain {', for chain '.join(ended[:3])}{more}: retry that, or cancel with cascade."
        super().__init__(message)
        self.chain_id = chain_id
        self.timeout = timeout
        self.status = status
        # The chains that hold it up for good, and whether each failed or was cancelled.
        self.waits_for: Mapping[str, str] = dict(waits_for or {})


class _ChainEndedError(QueuertError):
    def __init__(self, message: str, chain: object) -> None:
        super().__init__(message)
        self.chain = chain


class ChainFailedError(_ChainEndedError):
    """The chain that was waited for failed; `.chain` is its record."""


class ChainCancelledError(_ChainEndedError):
    """The chain that was waited for was cancelled; `.chain` is its record."""


class SchemaVersionError(QueuertError):
    """The tables and the library do not fit together."""


class ForeignKeysDisabledError(QueuertError):
    """Foreign keys are off on this SQLite connection: call app.configure_connection(conn) before its first transaction."""


class StaleSnapshotError(QueuertError):
    """This transaction has read a snapshot that is out of date, so it cannot write any more: start it with BEGIN IMMEDIATE."""


class JobStateError(QueuertError):
    """The job is in a state that does not allow this."""

    def __init__(self, message: str, *, job_id: str | None = None, status: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.status = status


class InvalidCursorError(QueuertError, ValueError):
    """The cursor is malformed: pass back the `next_cursor` of a page of the same listing, unchanged."""


class DatabaseUnavailableError(QueuertError):
    """The database cannot be opened or reached."""


class UnsupportedDatabaseError(QueuertError, ValueError):
    """The target is not a database this library can use."""

"""Durable job chains that commit with your database transactions."""

from queuert.app import Queuert
from queuert.chains.history import Stats
from queuert.chains.limits import LimitStatus
from queuert.chains.new_chain import NewChain
from queuert.chains.outside import ChainTail
from queuert.chains.pace import Rate, TypeRates
from queuert.chains.periodic import PeriodicStatus
from queuert.chains.why import Reason, Why
from queuert.errors import (
    AmbiguousIdError,
    BlockerReference,
    BlockerReferenceError,
    ChainCancelledError,
    ChainFailedError,
    ChainNotFoundError,
    DatabaseUnavailableError,
    DuplicateJobIdError,
    DuplicateJobTypeError,
    ForeignKeysDisabledError,
    InvalidCursorError,
    InvalidJobIdError,
    JobAlreadyCompletedError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobStateError,
    JobTakenByAnotherWorkerError,
    JobTypeMismatchError,
    JobTypeValidationError,
    QueuertError,
    SchemaVersionError,
    StaleSnapshotError,
    TransactionMisuseError,
    TransactionRequiredError,
    UnknownJobTypeError,
    UnsupportedDatabaseError,
    WaitTimeoutError,
)
from queuert.hooks import Hooks
from queuert.job_types import JobType, JobTypes, Task, TaskOptions
from queuert.limit import Limit
from queuert.model import Attempt, Chain, Failure, Job, Page, Pause, Progress, Status, TimelineEntry, WorkerInfo
from queuert.notify.protocol import Channel, Notice, Notifier, Subscription
from queuert.options import Backoff, Dedup, Lease, Retention
from queuert.running_job import Continuation, JobInterruptedError, RunningJob, Signal, current_job
from queuert.storage.migrations import MigrationStatus
from queuert.storage.sizes import Sizes, TableSize
from queuert.worker.worker import Worker

__all__ = [
    "AmbiguousIdError",
    "Attempt",
    "Backoff",
    "BlockerReference",
    "BlockerReferenceError",
    "Chain",
    "ChainCancelledError",
    "ChainFailedError",
    "ChainNotFoundError",
    "ChainTail",
    "Channel",
    "Continuation",
    "DatabaseUnavailableError",
    "Dedup",
    "DuplicateJobIdError",
    "DuplicateJobTypeError",
    "Failure",
    "ForeignKeysDisabledError",
    "Hooks",
    "InvalidCursorError",
    "InvalidJobIdError",
    "Job",
    "JobAlreadyCompletedError",
    "JobInterruptedError",
    "JobNotFoundError",
    "JobNotTriggerableError",
    "JobStateError",
    "JobTakenByAnotherWorkerError",
    "JobType",
    "JobTypeMismatchError",
    "JobTypeValidationError",
    "JobTypes",
    "Lease",
    "Limit",
    "LimitStatus",
    "MigrationStatus",
    "NewChain",
    "Notice",
    "Notifier",
    "Page",
    "Pause",
    "PeriodicStatus",
    "Progress",
    "Queuert",
    "QueuertError",
    "Rate",
    "Reason",
    "Retention",
    "RunningJob",
    "SchemaVersionError",
    "Signal",
    "Sizes",
    "StaleSnapshotError",
    "Stats",
    "Status",
    "Subscription",
    "TableSize",
    "Task",
    "TaskOptions",
    "TimelineEntry",
    "TransactionMisuseError",
    "TransactionRequiredError",
    "TypeRates",
    "UnknownJobTypeError",
    "UnsupportedDatabaseError",
    "WaitTimeoutError",
    "Why",
    "Worker",
    "WorkerInfo",
    "current_job",
]

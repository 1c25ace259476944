"""Job types: what a job is called, what goes in and out, what may follow it, and who runs it.

A `JobType` belongs to the registry it was defined in. What a type sets wins over its own registry, the registry over the
worker, the worker over the defaults.
"""

from queuert.job_types.failure import check_failure_types
from queuert.job_types.graph import check_blockers, check_continuation, check_entry, check_type
from queuert.job_types.job_type import InputOf, JobType, check_name
from queuert.job_types.options import BackoffOption, JobOptions, JobTypeOrName, TypeOptions
from queuert.job_types.registry import DefinesJobTypes, JobTypes
from queuert.job_types.schedules import Missed, Periodic, Schedule
from queuert.job_types.starting import StartsChains
from queuert.job_types.task import Task, TaskOptions

__all__ = [
    "BackoffOption",
    "DefinesJobTypes",
    "InputOf",
    "JobOptions",
    "JobType",
    "JobTypeOrName",
    "JobTypes",
    "Missed",
    "Periodic",
    "Schedule",
    "StartsChains",
    "Task",
    "TaskOptions",
    "TypeOptions",
    "check_blockers",
    "check_continuation",
    "check_entry",
    "check_failure_types",
    "check_name",
    "check_type",
]

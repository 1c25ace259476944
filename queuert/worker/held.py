"""A job in a worker's hands, and the terms of its lease."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from queuert.job_types import JobType
from queuert.model import Job
from queuert.options import Lease
from queuert.running_job import Reason
from queuert.worker.attempt import AttemptRun


class Terms(NamedTuple):
    """A lease in plain seconds."""

    duration: float
    renew_every: float

    @classmethod
    def of(cls, lease: Lease) -> Terms:
        return cls(lease.duration_seconds, lease.renew_seconds)


class Held:
    """A job in this worker's hands: from its claim until what became of it is written."""

    __slots__ = (
        "attempt",
        "claimed",
        "counted",
        "deadline",
        "job",
        "job_type",
        "lease",
        "lost",
        "over",
        "refused",
        "renew_at",
        "started",
        "trusted_until",
        "turn",
        "zombie_at",
    )

    def __init__(self, job: Job, job_type: JobType[Any, Any], lease: Terms, claimed: float) -> None:
        self.job = job
        self.job_type = job_type
        self.lease = lease
        self.claimed = claimed
        """When the claiming call started."""
        self.trusted_until = claimed + lease.duration
        self.renew_at = claimed + lease.renew_every
        self.started: float | None = None
        self.deadline = math.inf
        # When its handler, which was told that its time is up, is given up.
        self.zombie_at = math.inf
        # Whether it counts among the jobs in hand that were lost before.
        self.counted = False
        self.attempt: AttemptRun | None = None
        self.lost: Reason | None = None
        """Why the lease is gone, once that is known."""
        self.over = False
        """The handler has ended; only its result is still to be written."""
        # Whether the database refuses to renew this very lease.
        self.refused = False
        self.turn = False
        """It is a suspect, and has this process's turn until its result is written."""

    @property
    def hangs(self) -> bool:
        """Whether its handler was given up: it did not end when its time was up."""
        return self.zombie_at <= time.monotonic() and not self.over

    def lose(self, reason: Reason) -> None:
        self.lost = reason
        self.tell(reason)

    def tell(self, reason: Reason) -> None:
        if self.attempt is not None:
            self.attempt.signal.set(reason)

    def __str__(self) -> str:
        return f"{self.job.type_name} {self.job.id}"

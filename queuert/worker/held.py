"""A job in a worker's hands, and the terms of its lease."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from queuert.job_types import JobType
from queuert.model import Job
from queuert.options import Lease
from queuert.progress import Told
from queuert.running_job import Reason
from queuert.worker.attempt import AttemptRun
from queuert.worker.outcome import Record


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
        "stored",
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
        # The latest of what its handler told of its progress that is in the database.
        self.stored: Told | None = None
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

    @property
    def news(self) -> Told | None:
        """How far its handler says it is, where that is not stored yet."""
        latest = None if self.attempt is None else self.attempt.report.latest
        return None if latest == self.stored else latest

    def with_news(self, record: Record) -> Record:
        """What is written about the end of its attempt, with how far it came."""
        news = self.news
        return record if news is None else {**record, "fraction": news.fraction, "message": news.message}

    def lose(self, reason: Reason) -> None:
        self.lost = reason
        self.tell(reason)

    def tell(self, reason: Reason) -> None:
        if self.attempt is not None:
            self.attempt.signal.set(reason)

    def __str__(self) -> str:
        return f"{self.job.type_name} {self.job.id}"

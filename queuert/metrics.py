"""Metrics as Prometheus reads them: how the queues stand, and what this process has done.

    from queuert.metrics import Metrics

    metrics = Metrics(app)
    body = metrics.text()                # for /metrics, with metrics.content_type

Gauges are read from the tables, and are the same from every process; `queuert worker --health PORT` and the dashboard serve
them. Counters and histograms are those of this process, from the moment that its `Metrics` was made. One app has one
`Metrics`: `of(app)` gives it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
except ImportError as error:
    raise ImportError("Metrics need a library: pip install 'queuert[metrics]'.") from error

from queuert import observers
from queuert.app import Queuert, context_of
from queuert.chains.gauges import Gauges, read_gauges
from queuert.model import Job
from queuert.observing import OutcomeName

LOOK_AGAIN: Final = 5.0  # seconds for which one look at the tables serves, however many ask
SECONDS: Final = (0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)

_made: weakref.WeakKeyDictionary[Queuert, Metrics] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def of(app: Queuert) -> Metrics:
    """The metrics of an app, made when they are first asked for."""
    with _making:
        if app not in _made:
            _made[app] = Metrics(app)
        return _made[app]


class Metrics:
    """What an app looks like to Prometheus. It counts what happens in this process until `end()`."""

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, app: Queuert) -> None:
        self._context = context_of(app)
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self._started = Counter("queuert_chains_started", "Chains that this process started", ["type"], registry=registry)
        self._continued = Counter("queuert_jobs_continued", "Jobs with which it continued a chain", ["type"], registry=registry)
        self._attempts = Counter("queuert_attempts", "Attempts that ended here", ["type", "outcome"], registry=registry)
        self._failed = Counter("queuert_jobs_failed", "Jobs that failed for good here", ["type"], registry=registry)
        self._took = Histogram("queuert_handler_seconds", "How long handlers ran", ["type"], buckets=SECONDS, registry=registry)
        self._waited = Histogram(
            "queuert_wait_seconds", "From being due until being claimed", ["type"], buckets=SECONDS, registry=registry
        )
        self._lock = threading.Lock()
        self._gauges: Gauges | None = None
        self._read_at = float("-inf")
        registry.register(_Tables(self))
        observers.add(self._context, self)

    def text(self) -> bytes:
        """All of them, in the format that `content_type` names. Where the database cannot be read, those of this process."""
        text: bytes = generate_latest(self._registry)
        return text

    def end(self) -> None:
        """Count no more."""
        observers.remove(self._context, self)

    def gauges(self) -> Gauges | None:
        """How the queues stand; None while the database cannot be read."""
        with self._lock:
            if time.monotonic() - self._read_at > LOOK_AGAIN:
                self._gauges = None
                try:
                    self._gauges = read_gauges(self._context)
                except Exception:  # whatever the driver raises: `queuert_up` tells it
                    self._gauges = None
                self._read_at = time.monotonic()
            return self._gauges

    # What the app tells

    def produce(
        self, operation: Literal["start", "continue"], type_names: Sequence[str], *, learns_of_commit: bool
    ) -> _Produced:
        return _Produced(self._started if operation == "start" else self._continued, type_names)

    @contextmanager
    def attempt(self, job: Job, worker_id: str) -> Iterator[_Observed]:
        observed = _Observed(self, job)
        try:
            yield observed
        finally:
            observed.ended = time.monotonic()

    def lost(self, job: Job, *, final: bool) -> None:
        self._attempts.labels(job.type_name, "lost").inc()
        if final:
            self._failed.labels(job.type_name).inc()

    def completed_outside(self, job: Job) -> None:
        self._attempts.labels(job.type_name, "completed_outside").inc()

    def over(self, job: Job, outcome: OutcomeName, seconds: float) -> None:
        self._attempts.labels(job.type_name, outcome).inc()
        if outcome == "failed":
            self._failed.labels(job.type_name).inc()
        self._took.labels(job.type_name).observe(seconds)
        if job.last_attempt_at is not None:
            # Both by the database's clock.
            waited = (job.last_attempt_at - job.scheduled_at).total_seconds()
            self._waited.labels(job.type_name).observe(max(0.0, waited))


class _Produced:
    trace = None

    def __init__(self, counter: Any, type_names: Sequence[str]) -> None:
        self._counter = counter
        self._type_names = type_names

    def committed(self, job_ids: Sequence[str]) -> None:
        for name, number in Tally(self._type_names).items():
            self._counter.labels(name).inc(number)


class _Observed:
    def __init__(self, owner: Metrics, job: Job) -> None:
        self._owner = owner
        self._job = job
        self._began = time.monotonic()
        self.ended: float | None = None

    def over(self, outcome: OutcomeName, error_code: str | None) -> None:
        self._owner.over(self._job, outcome, (self.ended or time.monotonic()) - self._began)


class _Tables:
    """Reads the gauges when Prometheus asks."""

    def __init__(self, owner: Metrics) -> None:
        self._owner = owner

    def describe(self) -> Iterable[Metric]:
        return ()  # or it would be asked, and read the tables, when it is registered

    def collect(self) -> Iterable[Metric]:
        found = self._owner.gauges()
        yield GaugeMetricFamily("queuert_up", "Whether the tables can be read", value=float(found is not None))
        if found is None:
            return
        jobs = GaugeMetricFamily("queuert_jobs", "Jobs by type and status", labels=["type", "status"])
        least = GaugeMetricFamily(
            "queuert_jobs_at_least",
            "1 where queuert_jobs stopped counting: there are at least as many",
            labels=["type", "status"],
        )
        for name, counts in found.jobs.items():
            for status, number in counts.items():
                jobs.add_metric([name, status], number)
                if status in found.capped.get(name, ()):
                    least.add_metric([name, status], 1)
        yield jobs
        yield least
        yield _by_type("queuert_jobs_ready", "Jobs that are due and wait for a worker", found.ready)
        yield _by_type("queuert_oldest_ready_seconds", "How long the oldest of them has waited", found.oldest_ready)
        yield GaugeMetricFamily("queuert_workers", "Workers that are alive", value=found.workers)
        yield GaugeMetricFamily("queuert_workers_busy", "Slots in which a handler runs", value=found.busy)
        yield GaugeMetricFamily("queuert_zombies", "Handlers that run on though their job was taken away", value=found.zombies)
        yield GaugeMetricFamily(
            "queuert_stranded", "Jobs that wait for a chain that failed or was cancelled", value=found.stranded
        )
        yield GaugeMetricFamily("queuert_expired_leases", "Running jobs whose lease has ended", value=found.expired_leases)
        yield GaugeMetricFamily("queuert_schedules_overdue", "Schedules that should have ticked", value=found.schedules_overdue)


def _by_type(name: str, help: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=["type"])
    for type_name, value in values.items():
        family.add_metric([type_name], value)
    return family

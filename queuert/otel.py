"""OpenTelemetry: traces from the enqueueing request through chains, jobs, attempts and blockers; metrics of jobs and queues.

    from queuert.otel import instrument

    instrument(app)                      # with the global providers, or with yours

Creating jobs is a PRODUCER span, each attempt a CONSUMER span whose parent it is, wherever and whenever that runs: the span's
context is stored with the job, as W3C writes it. A job's span links to the start of its chain and to the chains it waited for.

Spans and numbers are emitted after the commit that made them true. A transaction that is rolled back emits nothing. On a
connection of your own without `app.hooks()` nobody tells the library of the commit: there the jobs carry the context of the
span around the call, and no producer's. Spans carry ids, types and error codes, but neither payloads nor error messages.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("OpenTelemetry is not installed: pip install 'queuert[otel]'.") from error

from queuert import observers
from queuert.app import Queuert
from queuert.chains.history import Stats
from queuert.model import Job, Status
from queuert.observing import OutcomeName

logger = logging.getLogger("queuert.otel")

NAME: Final = "queuert"
STATS_LAST: Final = 1.0
"""Seconds for which one look at the tables serves all gauges of a collection."""
COUNT_LIMIT: Final = 100_000
"""How far the jobs of each type and state are counted; `queuert.at_least` says where a count stopped there."""
WRONG: Final = frozenset({"failed", "retried", "lost"})

_w3c = TraceContextTextMapPropagator()


def instrument(app: Queuert, tracer_provider: Any = None, meter_provider: Any = None) -> Instrumentation:
    """Trace and measure what an app does, with the global providers or with these; once more replaces what was there before."""
    for earlier in observers.of(app._context):
        if isinstance(earlier, Instrumentation):
            earlier.end()
    made = Instrumentation(app, tracer_provider, meter_provider)
    observers.add(app._context, made)
    return made


class Instrumentation:
    """What `instrument` has set up; `end()` takes it away again."""

    def __init__(self, app: Queuert, tracer_provider: Any, meter_provider: Any) -> None:
        self._app = app
        self._ended = False
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._started = meter.create_counter("queuert.chains.started", "{chain}", "Chains that were started")
        self._continued = meter.create_counter("queuert.jobs.continued", "{job}", "Jobs that continue a chain")
        self._completed = meter.create_counter("queuert.jobs.completed", "{job}", "Jobs that were completed")
        self._failed = meter.create_counter("queuert.jobs.failed", "{job}", "Jobs that failed for good")
        self._retried = meter.create_counter(
            "queuert.attempts.retried", "{attempt}", "Attempts that failed and are tried again"
        )
        self._lost = meter.create_counter(
            "queuert.attempts.lost", "{attempt}", "Attempts that were lost with their worker or lease"
        )
        self._lasted = meter.create_histogram("messaging.process.duration", "s", "How long handlers run")
        self._waited = meter.create_histogram("queuert.jobs.wait", "s", "How long jobs that are due wait for a worker")
        meter.create_observable_gauge("queuert.jobs.depth", [self._depth], "{job}", "Jobs that are not completed, by state")
        meter.create_observable_gauge("queuert.jobs.oldest_ready", [self._age], "s", "How long the oldest ready job has waited")
        self._stats: Stats | None = None
        self._stats_at = float("-inf")

    def end(self) -> None:
        """Trace and measure no more."""
        self._ended = True
        observers.remove(self._app._context, self)

    # What the app tells

    def produce(
        self, operation: Literal["start", "continue"], type_names: Sequence[str], *, learns_of_commit: bool
    ) -> _Produced:
        if not learns_of_commit:
            return _Produced(self, operation, type_names, None, _written(context.get_current()))
        kinds = sorted(set(type_names))
        destination = kinds[0] if len(kinds) == 1 else NAME
        attributes: dict[str, Any] = {
            "messaging.system": NAME,
            "messaging.operation.type": "send",
            "messaging.operation.name": operation,
            "messaging.destination.name": destination,
        }
        if len(type_names) > 1:
            attributes["messaging.batch.message_count"] = len(type_names)
        span = self._tracer.start_span(f"{operation} {destination}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
        return _Produced(self, operation, type_names, span, _written(trace.set_span_in_context(span)))

    @contextmanager
    def attempt(self, job: Job, worker_id: str) -> Iterator[_Observed]:
        parent = _read(job.trace_context) or context.get_current()
        attributes: dict[str, Any] = {
            "messaging.system": NAME,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": job.type_name,
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": job.chain_id,
            "messaging.client.id": worker_id,
            "queuert.attempt": job.attempt,
        }
        span = self._tracer.start_span(
            f"process {job.type_name}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            links=self._links(job),
            attributes=attributes,
        )
        observed = _Observed(self, job, span)
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield observed
        finally:
            context.detach(token)
            observed.handler_ended()

    def lost(self, job: Job, *, final: bool) -> None:
        self._lost.add(1, _type(job))
        if final:
            self._failed.add(1, _type(job))

    def completed_outside(self, job: Job) -> None:
        self._completed.add(1, _type(job))

    # What spans and counters need

    def _links(self, job: Job) -> list[Any]:
        """To the start of the chain, and to the chains that the job waited for."""
        texts = [] if job.chain_trace_context == job.trace_context else [job.chain_trace_context]
        if job.blocker_count:
            try:
                texts += self._blockers(job)
            except Exception:
                logger.debug("The traces of a job's blockers could not be read.", exc_info=True)
        found = [trace.get_current_span(parent).get_span_context() for text in texts if (parent := _read(text)) is not None]
        return [trace.Link(each) for each in found if each.is_valid]

    def _blockers(self, job: Job) -> list[str | None]:
        context = self._app._context
        with context.database.read() as session:
            chains = context.repository.get_blockers(session, [job.id]).get(job.id, [])
            jobs = context.repository.get_jobs(session, [chain.id for chain in chains])
        return [jobs[chain.id].chain_trace_context for chain in chains if chain.id in jobs]

    def produced(self, operation: str, type_names: Sequence[str]) -> None:
        counter = self._started if operation == "start" else self._continued
        for name, number in Counter(type_names).items():
            counter.add(number, {"messaging.destination.name": name})

    def over(self, job: Job, outcome: OutcomeName, seconds: float) -> None:
        about = _type(job)
        if outcome == "succeeded":
            self._completed.add(1, about)
        elif outcome == "failed":
            self._failed.add(1, about)
        elif outcome == "retried":
            self._retried.add(1, about)
        elif outcome == "lost":
            self._lost.add(1, about)
        self._lasted.record(seconds, {**about, "queuert.outcome": outcome})
        if job.last_attempt_at is not None:
            # Both by the database's clock.
            self._waited.record(max(0.0, (job.last_attempt_at - job.scheduled_at).total_seconds()), about)

    # Gauges

    def _look(self) -> Stats | None:
        if self._ended:
            return None
        if time.monotonic() - self._stats_at > STATS_LAST:
            self._stats_at = time.monotonic()
            self._stats = None
            try:
                self._stats = self._app._history.stats(None, COUNT_LIMIT, None, share=COUNT_LIMIT)
            except Exception:
                logger.debug("The depth of the queues could not be read.", exc_info=True)
        return self._stats

    def _depth(self, options: Any) -> Iterable[Any]:
        stats = self._look()
        if stats is None:
            return
        for name, counts in stats.by_type.items():
            for status in (Status.BLOCKED, Status.PENDING, Status.RUNNING, Status.FAILED):
                about: dict[str, Any] = {"messaging.destination.name": name, "queuert.status": status.value}
                if status in stats.capped_by_type.get(name, ()):
                    about["queuert.at_least"] = True
                yield metrics.Observation(counts.get(status, 0), about)

    def _age(self, options: Any) -> Iterable[Any]:
        stats = self._look()
        if stats is not None:
            yield metrics.Observation(stats.oldest_ready_seconds or 0.0)


class _Produced:
    """Jobs that are being created; the span is emitted if they are."""

    def __init__(
        self, owner: Instrumentation, operation: str, type_names: Sequence[str], span: Any, trace_context: str | None
    ) -> None:
        self.trace = trace_context
        self._owner = owner
        self._operation = operation
        self._type_names = type_names
        self._span = span

    def committed(self, job_ids: Sequence[str]) -> None:
        self._owner.produced(self._operation, self._type_names)
        if self._span is not None:
            if len(job_ids) == 1:
                self._span.set_attribute("messaging.message.id", job_ids[0])
            self._span.end()


class _Observed:
    """An attempt; its span ends with the handler, and is emitted when the attempt's outcome is committed."""

    def __init__(self, owner: Instrumentation, job: Job, span: Any) -> None:
        self._owner = owner
        self._job = job
        self._span = span
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._ended_at: int | None = None

    def handler_ended(self) -> None:
        self._seconds = time.monotonic() - self._began
        self._ended_at = time.time_ns()

    def over(self, outcome: OutcomeName, error_code: str | None) -> None:
        span = self._span
        span.set_attribute("queuert.outcome", outcome)
        if outcome in WRONG:
            span.set_attribute("error.type", error_code or outcome)
            span.set_status(trace.StatusCode.ERROR, error_code or outcome)
        span.end(end_time=self._ended_at)
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        self._owner.over(self._job, outcome, seconds)


def _type(job: Job) -> dict[str, Any]:
    return {"messaging.destination.name": job.type_name}


def _written(where: Any) -> str | None:
    """A context as it is stored: `traceparent`, and on a second line `tracestate` if there is one."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, context=where)
    if "traceparent" not in carrier:
        return None
    state = carrier.get("tracestate")
    return f"{carrier['traceparent']}\n{state}" if state else carrier["traceparent"]


def _read(text: str | None) -> Any:
    if not text:
        return None
    parent, _, state = text.partition("\n")
    return _w3c.extract({"traceparent": parent, **({"tracestate": state} if state else {})}, context=context.Context())

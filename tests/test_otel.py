"""OpenTelemetry: traces across requests, chains, attempts and blockers; numbers; nothing for what was rolled back."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.handlers import held
from support.inside import context_of
from support.waiting import eventually

from queuert import Backoff, Continuation, Dedup, NewChain, Queuert, RunningJob
from queuert.otel import Instrumentation, instrument
from queuert.testing import advance


class Watched:
    """An app with everything it emits."""

    def __init__(self, app: Queuert) -> None:
        self.app = app
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])
        self.instrumentation: Instrumentation = instrument(app, self.tracers, self.meters)

    def spans(self) -> dict[str, ReadableSpan]:
        """By name; the last of a name."""
        return {span.name: span for span in self._spans.get_finished_spans()}

    def names(self) -> list[str]:
        return [span.name for span in self._spans.get_finished_spans()]

    def numbers(self, name: str) -> dict[str, float]:
        """The values of a metric by type, or by type and state."""
        data = self._reader.get_metrics_data()
        found: dict[str, float] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        about: Any = point.attributes or {}
                        parts = [about.get(key) for key in ("messaging.destination.name", "queuert.status", "queuert.outcome")]
                        key = " ".join(str(part) for part in parts if part is not None)
                        found[key] = point.value if hasattr(point, "value") else point.count
        return found


@pytest.fixture(params=["sqlite-file", "postgres"])
def target(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    url: str = request.getfixturevalue("pg_url")
    return url


@pytest.fixture
def watched(app: Queuert) -> Iterator[Watched]:
    watched = Watched(app)
    yield watched
    watched.instrumentation.end()
    watched.meters.shutdown()
    watched.tracers.shutdown()


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def ident(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_a_trace_goes_from_the_request_through_the_chain(watched: Watched) -> None:
    app = watched.app
    tracer = watched.tracers.get_tracer("shop")

    @app.job
    def charge(job: RunningJob[None]) -> Continuation:
        with tracer.start_as_current_span("at the bank"):
            return job.continue_with(ship)

    @app.job(entry=False)
    def ship(job: RunningJob[None]) -> str:
        with job.complete():
            return "secret output"

    with tracer.start_as_current_span("POST /orders"):
        chain = app.start_chain(charge)
    app.drain()
    spans = watched.spans()
    assert list(spans) == ["start charge", "POST /orders", "at the bank", "continue ship", "process charge", "process ship"]
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    assert parent(spans["start charge"]) == ident(spans["POST /orders"])
    assert parent(spans["process charge"]) == ident(spans["start charge"])
    assert parent(spans["at the bank"]) == ident(spans["process charge"])
    assert parent(spans["continue ship"]) == ident(spans["at the bank"])
    assert parent(spans["process ship"]) == ident(spans["continue ship"])
    assert [link.context.span_id for link in spans["process ship"].links] == [ident(spans["start charge"])]
    assert spans["start charge"].kind is SpanKind.PRODUCER
    assert spans["process charge"].kind is SpanKind.CONSUMER
    assert dict(spans["start charge"].attributes or {}) == {
        "messaging.system": "queuert",
        "messaging.operation.type": "send",
        "messaging.operation.name": "start",
        "messaging.destination.name": "charge",
        "messaging.message.id": chain.id,
    }
    attributes = dict(spans["process charge"].attributes or {})
    assert str(attributes.pop("messaging.client.id")).startswith("drain@")
    assert attributes == {
        "messaging.system": "queuert",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "charge",
        "messaging.message.id": chain.id,
        "messaging.message.conversation_id": chain.id,
        "queuert.attempt": 1,
        "queuert.outcome": "succeeded",
    }
    first, second = app.list_chain_jobs(chain.id)
    assert first.trace_context is not None
    assert first.trace_context.startswith("00-")
    assert first.chain_trace_context == second.chain_trace_context == first.trace_context != second.trace_context


def test_what_is_rolled_back_emits_nothing(watched: Watched) -> None:
    app = watched.app

    @app.job
    def work(job: RunningJob[None]) -> None: ...

    with suppress(ZeroDivisionError), app.transaction() as tx:
        app.start_chain(work, conn=tx)
        raise ZeroDivisionError
    assert watched.names() == []
    assert watched.numbers("queuert.chains.started") == {}
    with app.transaction() as tx:
        chain = app.start_chain(work, conn=tx)
        assert watched.names() == []
    assert watched.names() == ["start work"]
    with suppress(ZeroDivisionError), app.complete_chain(chain.id) as tail:
        tail.finish()
        raise ZeroDivisionError
    assert watched.numbers("queuert.jobs.completed") == {}
    with app.complete_chain(chain.id) as tail:
        tail.finish()
    assert watched.numbers("queuert.jobs.completed") == {"work": 1}


def test_a_continuation_that_is_rolled_back_emits_nothing(watched: Watched) -> None:
    app = watched.app

    @app.job(max_attempts=1)
    def work(job: RunningJob[None]) -> Continuation:
        with job.complete():
            following = job.continue_with(later)
        assert following is None, "the handler fails after the block"
        return following

    @app.job(entry=False)
    def later(job: RunningJob[None]) -> None: ...

    app.start_chain(work)
    app.drain()
    assert watched.names() == ["start work", "process work"]
    span = watched.spans()["process work"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "INTERNAL:ASSERTION_FAILED"
    assert watched.numbers("queuert.jobs.failed") == {"work": 1}
    assert watched.numbers("queuert.jobs.continued") == {}


def test_duplicates_are_not_counted_and_a_batch_is_one_span(watched: Watched) -> None:
    app = watched.app
    app.declare("one")
    app.declare("two")
    for _ in range(2):
        app.start_chain("one", dedup=Dedup("k"))
    app.start_chains([NewChain("one", 1), NewChain("two", 2), NewChain("one", 3)])
    assert watched.names() == ["start one", "start queuert"]
    assert (watched.spans()["start queuert"].attributes or {})["messaging.batch.message_count"] == 3
    assert watched.numbers("queuert.chains.started") == {"one": 3, "two": 1}


def test_every_attempt_is_a_span_of_its_own(watched: Watched) -> None:
    app = watched.app

    @app.job(max_attempts=2, backoff=Backoff(initial=0, jitter=0))
    def broken(job: RunningJob[None]) -> None:
        raise ValueError("secret")

    @app.job
    def later(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            job.reschedule(after=0)

    app.start_chain(broken)
    app.start_chain(later)
    app.drain()
    spans = [span for span in watched._spans.get_finished_spans() if span.name.startswith("process")]
    of = [(span.name, span.attributes or {}) for span in spans]
    told = sorted((name, about["queuert.attempt"], about["queuert.outcome"]) for name, about in of)
    assert told == [
        ("process broken", 1, "retried"),
        ("process broken", 2, "failed"),
        ("process later", 1, "rescheduled"),
        ("process later", 2, "succeeded"),
    ]
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert {(span.attributes or {})["error.type"] for span in failed} == {"INTERNAL:ValueError"}
    assert all("secret" not in span.to_json() for span in spans)
    assert watched.numbers("queuert.attempts.retried") == {"broken": 1}
    assert watched.numbers("queuert.jobs.failed") == {"broken": 1}
    assert watched.numbers("messaging.process.duration") == {
        "broken retried": 1,
        "broken failed": 1,
        "later rescheduled": 1,
        "later succeeded": 1,
    }
    assert watched.numbers("queuert.jobs.wait") == {"broken": 2, "later": 2}


def test_a_job_links_to_what_it_waited_for(watched: Watched) -> None:
    app = watched.app

    @app.job
    def part(job: RunningJob[int]) -> int:
        return job.input

    @app.job
    def total(job: RunningJob[None]) -> int:
        return sum(each.output for each in job.blockers)

    first, second = app.start_chain(part, 1), app.start_chain(part, 2)
    contexts = [job.trace_context for job in app.list_jobs(job_ids=[first.id, second.id], order="asc")]
    joined = app.start_chain(total, blockers=[first, second])
    app.drain()
    links = watched.spans()["process total"].links
    assert [f"{link.context.span_id:016x}" for link in links] == [str(each).split("-")[2] for each in contexts]
    with app.transaction() as tx:
        rows = tx.execute("SELECT trace_context FROM queuert_job_blocker").fetchall()
    job = app.get_job(joined.id)
    assert job is not None
    assert [row[0] for row in rows] == [job.trace_context] * 2


def test_a_worker_emits_the_same_from_all_of_its_threads(watched: Watched) -> None:
    app = watched.app

    @app.job
    def work(job: RunningJob[None]) -> None: ...

    with app.worker(concurrency=3) as worker:
        for chain in app.start_chains([NewChain(work) for _ in range(20)]):
            app.wait_for(chain, timeout=20)
        eventually(lambda: watched.names().count("process work") == 20)
    assert (watched.spans()["process work"].attributes or {})["messaging.client.id"] == worker.id
    assert watched.numbers("queuert.jobs.completed") == {"work": 20}


def test_lost_attempts_are_counted(watched: Watched) -> None:
    app = watched.app
    with held(app) as holding:
        advance(app, 100)
        app.drain(types=["held"])
        assert watched.numbers("queuert.attempts.lost") == {"held": 1}
        assert holding.chain is not None
    eventually(lambda: "process held" in watched.names())
    assert (watched.spans()["process held"].attributes or {})["queuert.outcome"] == "lost"


def test_gauges_show_depth_and_age(watched: Watched) -> None:
    app = watched.app
    app.declare("work")
    app.start_chain("work")
    advance(app, 50)
    blocker = app.start_chain("work", after=3600)
    app.start_chain("work", blockers=[blocker])
    depth = watched.numbers("queuert.jobs.depth")
    assert depth == {"work blocked": 1, "work pending": 2, "work running": 0, "work failed": 0}
    watched.instrumentation._stats_at = float("-inf")
    assert 50 <= watched.numbers("queuert.jobs.oldest_ready")[""] < 500


def test_on_a_connection_of_your_own_the_request_is_the_parent(sqlite_path: Path) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()
        watched = Watched(app)

        @app.job
        def work(job: RunningJob[None]) -> None: ...

        tracer = watched.tracers.get_tracer("shop")
        conn = sqlite3.connect(sqlite_path)
        app.configure_connection(conn)
        with tracer.start_as_current_span("request"):
            app.start_chain(work, conn=conn)
            conn.commit()
        app.drain()
        assert watched.names() == ["request", "process work"], "nobody has told of the commit"
        assert parent(watched.spans()["process work"]) == ident(watched.spans()["request"])
        with app.hooks():
            app.start_chain(work, conn=conn)
            conn.commit()
            assert "start work" not in watched.names()
        assert "start work" in watched.names()
        conn.close()
        watched.meters.shutdown()


def test_it_can_be_taken_away_and_put_back(watched: Watched) -> None:
    app = watched.app
    app.declare("work")
    again = instrument(app, watched.tracers, watched.meters)
    app.start_chain("work")
    assert watched.names() == ["start work"], "not twice"
    again.end()
    assert context_of(app).observer is None
    chain = app.start_chain("work")
    assert watched.names() == ["start work"]
    job = app.get_job(chain.id)
    assert job is not None
    assert job.trace_context is None


def test_a_context_that_cannot_be_read_does_no_harm(watched: Watched) -> None:
    app = watched.app

    @app.job
    def work(job: RunningJob[None]) -> None: ...

    app.start_chain(work)
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET trace_context = 'nonsense', chain_trace_context = '00-zz'")
    assert app.drain() == 1
    span = watched.spans()["process work"]
    assert span.parent is None
    assert list(span.links) == []


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queuert.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"queuert\[otel\]"):
        import queuert.otel  # noqa: F401 - importing it raises

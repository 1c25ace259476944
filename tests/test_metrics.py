"""Metrics and the pages of `queuert worker --health`: what Prometheus and probes see."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support import eventually
from support.own_postgres import own_server

from queuert import Backoff, Queuert, RunningJob
from queuert.cli.health_server import serving

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from queuert import metrics
from queuert.metrics import Metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def _fresh_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LOOK_AGAIN", 0.0)


@pytest.fixture
def queue(app: Queuert) -> Queuert:
    """A ready, a scheduled and a failed job, and one that is stranded."""

    @app.job("refuse", backoff=Backoff(initial=0, jitter=0))
    def refuse(job: RunningJob[None]) -> None:
        job.fail("CARD:DECLINED")

    @app.job("count")
    def count(job: RunningJob[int]) -> int:
        return job.input

    app.migrate()
    app.declare("mail")
    app.declare("invoice")
    failed = app.start_chain(refuse)
    app.drain(types=["refuse"])
    app.start_chain("invoice", blockers=[failed])
    app.start_chain("mail")
    app.start_chain("mail", after=3600)
    return app


def read(text: bytes) -> Samples:
    families = text_string_to_metric_families(text.decode())
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


def labels(**named: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(named.items()))


def test_the_gauges_say_how_the_queues_stand(queue: Queuert) -> None:
    found = read(Metrics(queue).text())
    assert found["queuert_jobs", labels(type="mail", status="pending")] == 2
    assert found["queuert_jobs", labels(type="refuse", status="failed")] == 1
    assert found["queuert_jobs_ready", labels(type="mail")] == 1
    assert found["queuert_oldest_ready_seconds", labels(type="mail")] >= 0
    assert ("queuert_jobs_ready", labels(type="invoice")) not in found
    assert found["queuert_stranded", ()] == 1
    assert found["queuert_expired_leases", ()] == 0
    assert found["queuert_schedules_overdue", ()] == 0
    assert found["queuert_up", ()] == 1
    for name in ("queuert_workers", "queuert_workers_busy", "queuert_zombies"):
        assert found[name, ()] == 0
    with queue.worker(types=["count"]):
        eventually(lambda: read(Metrics(queue).text())["queuert_workers", ()] == 1)


def test_a_count_that_stopped_says_so(queue: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.chains.gauges.COUNT_LIMIT", 1)
    found = read(Metrics(queue).text())
    assert found["queuert_jobs", labels(type="mail", status="pending")] == 1
    assert found["queuert_jobs_at_least", labels(type="mail", status="pending")] == 1
    assert ("queuert_jobs_at_least", labels(type="refuse", status="failed")) not in found


def test_expired_leases_are_counted(queue: Queuert) -> None:
    context = queue._context
    with context.database.block() as session:
        assert context.repository.claim_jobs(session, worker="gone", token=1, leases={"mail": 0.001}, limit=1)
    eventually(lambda: read(Metrics(queue).text())["queuert_expired_leases", ()] == 1)


def test_a_schedule_that_nobody_runs_is_overdue(queue: Queuert) -> None:
    late = (datetime.now(timezone.utc) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    with queue.transaction() as tx:
        tx.execute(f"INSERT INTO queuert_singleton (name, next_run_at) VALUES ('queuert:periodic:nightly', '{late}')")
    assert read(Metrics(queue).text())["queuert_schedules_overdue", ()] == 1
    with queue._context.database.block() as session:
        facts = {"until": None, "reason": None, "actor": None}
        queue._context.repository.pause(session, "schedule", ["nightly"], **facts)
    assert read(Metrics(queue).text())["queuert_schedules_overdue", ()] == 0, "it is paused"


def test_the_process_counts_what_it_does(queue: Queuert) -> None:
    counted = Metrics(queue)
    for number in range(3):
        queue.start_chain("count", number)
    queue.start_chain("refuse")
    queue.drain(types=["count", "refuse"])
    found = read(counted.text())
    assert found["queuert_chains_started_total", labels(type="count")] == 3
    assert found["queuert_attempts_total", labels(type="count", outcome="succeeded")] == 3
    assert found["queuert_attempts_total", labels(type="refuse", outcome="failed")] == 1
    assert found["queuert_jobs_failed_total", labels(type="refuse")] == 1
    assert found["queuert_handler_seconds_count", labels(type="count")] == 3
    assert found["queuert_wait_seconds_count", labels(type="count")] == 3
    counted.end()
    queue.start_chain("count", 4)
    assert read(counted.text())["queuert_chains_started_total", labels(type="count")] == 3


def test_one_app_has_one(queue: Queuert) -> None:
    assert metrics.of(queue) is metrics.of(queue)


def test_traces_and_metrics_work_beside_each_other(queue: Queuert) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from queuert.otel import instrument

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    counted = Metrics(queue)
    instrumented = instrument(queue, tracer_provider=provider)
    again = instrument(queue, tracer_provider=provider)
    queue.start_chain("count", 1)
    queue.drain(types=["count"])
    assert [span.name for span in exporter.get_finished_spans()] == ["start count", "process count"]
    assert read(counted.text())["queuert_attempts_total", labels(type="count", outcome="succeeded")] == 1
    again.end()
    instrumented.end()
    counted.end()
    assert queue._context.observer is None


# What a worker serves


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        number: int = found.getsockname()[1]
        return number


def get(port: int, path: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_a_worker_serves_health_and_metrics(queue: Queuert) -> None:
    port = free_port()
    worker = queue.worker(types=["count"])
    with serving(queue, worker, port), worker:
        code, kind, body = get(port, "/healthz")
        assert (code, kind) == (200, "application/json")
        assert json.loads(body)["ok"] is True
        assert get(port, "/readyz")[0] == 200
        code, kind, body = get(port, "/metrics")
        assert code == 200
        assert kind.startswith("text/plain")
        assert re.search(rb'queuert_jobs\{status="pending",type="mail"\} 2', body)
        assert get(port, "/other")[0] == 404
    assert not [thread for thread in threading.enumerate() if thread.name == "queuert-health"]
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")


def test_an_outage_makes_it_unready_but_not_unhealthy() -> None:
    port = free_port()
    with own_server() as server, Queuert(server.url) as app:
        app.migrate()

        @app.job("count")
        def count(job: RunningJob[int]) -> int:
            return job.input

        worker = app.worker()
        with serving(app, worker, port), worker:
            app.wait_for(app.start_chain(count, 1), timeout=20)
            server.stop("fast")
            eventually(lambda: get(port, "/readyz")[0] == 503, 30)
            assert json.loads(get(port, "/readyz")[2])["ok"] is False
            assert get(port, "/healthz")[0] == 200
            found = read(get(port, "/metrics")[2])
            assert found["queuert_up", ()] == 0
            assert ("queuert_stranded", ()) not in found
            assert found["queuert_chains_started_total", labels(type="count")] == 1
            server.start()
            eventually(lambda: get(port, "/readyz")[0] == 200, 30)
            assert app.wait_for(app.start_chain(count, 2), timeout=30).output == 2


def test_a_thread_that_makes_no_progress_is_unhealthy(queue: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    worker = queue.worker(types=["count"], poll_interval=0.05)
    gate, inside = threading.Event(), threading.Event()

    def hang(*args: object) -> float:
        inside.set()
        gate.wait()
        return 0.0

    monkeypatch.setattr("queuert.worker.threads.LEAST_PATIENCE", 0.2)
    with serving(queue, worker, port), worker:
        assert get(port, "/healthz")[0] == 200
        monkeypatch.setattr("queuert.worker.dispatcher.Dispatcher._step", hang)
        assert inside.wait(10)
        eventually(lambda: get(port, "/healthz")[0] == 503)
        assert json.loads(get(port, "/healthz")[2])["stuck"] == ["dispatcher"]
        monkeypatch.undo()
        gate.set()

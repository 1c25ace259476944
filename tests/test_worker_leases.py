"""Leases: kept by renewal, lost without, and who is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import eventually
from support.inside import database_of, keeper_of, lock_of, repository_of
from support.outages import Gone, outage

from queuert import Backoff, Lease, Queuert, RunningJob
from queuert.worker.held import Held
from queuert.worker.slots import Slots

SHORT = Lease(duration=0.6)
NOW = Backoff(initial=0, jitter=0)


def status(app: Queuert, job_id: str) -> str:
    job = app.get_job(job_id)
    return "gone" if job is None else str(job.status)


def stall(worker: Any) -> None:
    """Let a worker's lease keeper do nothing any more, as if the process were stopped."""
    keeper_of(worker)._step = lambda: None


def test_a_job_longer_than_its_lease_keeps_it_by_renewal(app: Queuert) -> None:
    @app.job("long", lease=SHORT)
    def long(job: RunningJob[None]) -> bool:
        return job.signal.wait(2)

    with app.worker(concurrency=2, reap_interval=0.1), app.worker(reap_interval=0.1):
        chain = app.wait_for(app.start_chain(long), timeout=10)
    assert chain.output is False
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]
    events = [entry.event for entry in app.timeline(chain.id)]
    assert "HEARTBEAT" in events


def test_one_statement_renews_all_leases(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    @app.job("long", lease=Lease(duration=30, renew_every=0.3))
    def long(job: RunningJob[None]) -> None:
        release.wait(20)

    chains = [app.start_chain(long) for _ in range(8)]
    renewals: list[int] = []
    renew = repository_of(app).renew_leases

    def counted(session: Any, worker: str, items: Any) -> set[str]:
        renewals.append(len(items))
        return renew(session, worker, items)

    monkeypatch.setattr(repository_of(app), "renew_leases", counted)
    with app.worker(concurrency=8) as worker:
        worker.events.watch()
        eventually(lambda: all(status(app, chain.id) == "running" for chain in chains))
        worker.events.wait("renewed", count=3)
        release.set()
        for chain in chains:
            app.wait_for(chain, timeout=10)
    assert renewals[-1] == 8
    assert len(renewals) <= 6


def test_a_dead_workers_job_is_taken_over_and_the_attempt_is_lost(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("job", lease=SHORT, backoff=NOW)
    def handler(job: RunningJob[None]) -> str:
        if job.attempt == 1:
            entered.set()
            leave.wait(20)
        return f"attempt {job.attempt}"

    chain = app.start_chain(handler)
    dead = app.worker(name="dead", reap_interval=1000)
    dead.start()
    entered.wait(10)
    stall(dead)
    started = time.monotonic()
    with app.worker(reap_interval=0.2):
        assert app.wait_for(chain, timeout=10).output == "attempt 2"
        assert time.monotonic() - started < 4
    leave.set()
    assert dead.stop()
    first, second = app.attempts(chain.id)
    assert (first.outcome, first.error_code, first.worker_id) == ("lost", "WORKER:LOST", dead.id)
    assert first.error_detail is not None
    assert dead.id in first.error_detail
    assert second.outcome == "succeeded"


@pytest.mark.parametrize("how", ["return", "complete", "raise", "reschedule", "prepare", "continue"])
def test_who_lost_the_lease_cannot_change_one_row(app: Queuert, how: str) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")

    @app.job("job", lease=SHORT, backoff=Backoff(initial=3600))
    def handler(job: RunningJob[None]) -> Any:
        entered.set()
        leave.wait(20)
        try:
            if how == "complete":
                with job.complete() as tx:
                    tx.execute("INSERT INTO ledger VALUES (1)")
            if how == "prepare":
                with job.prepare() as tx:
                    tx.execute("INSERT INTO ledger VALUES (1)")
            if how == "raise":
                raise RuntimeError
            if how == "reschedule":
                job.reschedule(after=1)
            if how == "continue":
                return job.continue_with("job")
            return "too late"
        except Exception as error:
            told.append(type(error).__name__)
            raise
        finally:
            left.set()

    chain = app.start_chain(handler)
    stalled = app.worker(name="stalled", reap_interval=1000)
    stalled.start()
    entered.wait(10)
    stall(stalled)
    with app.worker(types=[app.declare("nothing")], reap_interval=0.1):
        eventually(lambda: status(app, chain.id) == "pending")
    before = app.get_job(chain.id)
    leave.set()
    assert left.wait(10)
    assert stalled.stop()
    assert app.get_job(chain.id) == before
    assert len(app.list_chain_jobs(chain.id).items) == 1
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["lost"]
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM ledger").fetchone()[0] == 0
    if how == "prepare":
        assert told == ["JobTakenByAnotherWorkerError"]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("cancel", "cancelled"),
        ("delete", "not_found"),
        ("complete", "already_completed"),
        ("reap", "taken_by_another_worker"),
    ],
)
def test_a_handler_is_told_why_it_lost_its_job(app: Queuert, act: str, reason: str) -> None:
    entered = threading.Event()
    told: list[Any] = []

    # A long lease, except where it has to end: the notice has to do it, not the next renewal.
    @app.job("job", lease=SHORT if act == "reap" else Lease(duration=100))
    def handler(job: RunningJob[None]) -> str:
        entered.set()
        told.append(job.signal.wait(10))
        told.append(job.signal.reason)
        try:
            with job.complete():
                pass
        except Exception as error:
            told.append(type(error).__name__)
            raise
        return "by the handler"

    chain = app.start_chain(handler)
    with app.worker(reap_interval=1000) as worker:
        entered.wait(10)
        started = time.monotonic()
        if act == "cancel":
            app.cancel_chain(chain.id)
        elif act == "delete":
            app.delete_chain(chain.id)
        elif act == "complete":
            with app.complete_chain(chain.id) as tail:
                tail.finish("from outside")
        else:
            stall(worker)
            with app.worker(types=[app.declare("nothing")], reap_interval=0.05):
                eventually(lambda: status(app, chain.id) == "pending")
            del keeper_of(worker)._step  # it goes on
            keeper_of(worker)._wake.set()
        eventually(lambda: len(told) == 3)
        assert time.monotonic() - started < 3
    assert told == [True, reason, "JobTakenByAnotherWorkerError"]
    if act == "complete":
        done = app.get_chain(chain.id)
        assert done is not None
        assert done.output == "from outside"
    if act == "cancel":
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["cancelled"]


def test_a_job_that_is_still_running_here_is_not_claimed_again(app: Queuert) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()
    running = []

    @app.job("job", backoff=NOW)
    def handler(job: RunningJob[None]) -> str:
        running.append(job.attempt)
        entered.release()
        leave.wait(20)
        return f"attempt {job.attempt}"

    chain = app.start_chain(handler)
    with app.worker(concurrency=4, poll_interval=0.05) as worker:
        worker.events.watch()
        assert entered.acquire(timeout=10)
        app.cancel_chain(chain.id)
        app.retry_chain(chain.id)
        looked = worker.events.count("looked")
        worker.events.wait("looked", count=looked + 3)
        assert running == [1]
        leave.set()
        assert app.wait_for(chain, timeout=10).output == "attempt 2"


def test_a_slow_renewal_does_not_extend_trust(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database grants from its own now, at the earliest the moment the call began."""
    release, entered = threading.Event(), threading.Event()

    @app.job("long", lease=Lease(duration=3, renew_every=0.1))
    def long(job: RunningJob[None]) -> None:
        entered.set()
        release.wait(20)

    chain = app.start_chain(long)
    repository = repository_of(app)
    renew = repository.renew_leases
    spans: list[tuple[float, float]] = []

    def slow(session: Any, worker: str, items: Any) -> set[str]:
        started = time.monotonic()
        renewed = renew(session, worker, items)
        time.sleep(0.3)  # on its way: by the clock, as trust is
        spans.append((started, time.monotonic()))
        return renewed

    with app.worker() as worker:
        worker.events.watch()
        entered.wait(10)
        [held] = keeper_of(worker).in_hand()
        monkeypatch.setattr(repository, "renew_leases", slow)
        worker.events.wait("renewed", count=2)
        trusted = held.trusted_until
        assert any(start + 2.9 < trusted <= start + 3 for start, _ in spans)
        monkeypatch.undo()
        release.set()
        app.wait_for(chain, timeout=10)


def test_a_job_whose_lease_ended_while_it_waited_is_not_started(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    app.job("job", lease=SHORT)(lambda job: ran.append(job.attempt))
    submit = Slots.submit
    slowed = threading.Event()

    def slow(self: Slots, claimed: Sequence[Held]) -> None:
        if not slowed.is_set():
            slowed.set()
            eventually(lambda: time.monotonic() >= claimed[0].trusted_until)
        submit(self, claimed)

    monkeypatch.setattr(Slots, "submit", slow)
    with app.worker(reap_interval=1000) as worker:
        stall(worker)  # or it renews the lease before the slot looks
        worker.events.watch()
        app.wait_for(app.start_chain("job"), timeout=10)
        worker.events.wait("returned")
    assert ran == [1], "it was given back with its attempt restored, and started when it was claimed again"


def test_a_locked_row_is_not_a_lost_lease(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        entered, leave = threading.Event(), threading.Event()

        @app.job("long", lease=Lease(duration=5, renew_every=0.1))
        def long(job: RunningJob[None]) -> str:
            entered.set()
            leave.wait(20)
            return "told" if job.signal.is_set() else "not told"

        chain = app.start_chain(long)
        with app.worker() as worker:
            worker.events.watch()
            entered.wait(10)
            with app.transaction() as tx:
                tx.execute("SELECT 1 FROM queuert_job FOR UPDATE")
                worker.events.wait("renewed", count=worker.events.count("renewed") + 3)
            leave.set()
            assert app.wait_for(chain, timeout=10).output == "not told"


def test_a_long_block_delays_renewals_and_nobody_reaps_meanwhile(app: Queuert) -> None:
    database: Any = database_of(app)
    if database.dialect != "sqlite":
        pytest.skip("only one writer at a time is SQLite's way")
    entered, leave = threading.Event(), threading.Event()

    @app.job("long", lease=SHORT)
    def long(job: RunningJob[None]) -> str:
        entered.set()
        leave.wait(20)
        return "told" if job.signal.is_set() else "not told"

    chain = app.start_chain(long)
    with app.worker(reap_interval=0.1), app.worker(types=[app.declare("nothing")], reap_interval=0.1):
        entered.wait(10)
        with app.transaction() as tx:
            tx.execute("CREATE TABLE something (n integer)")
            lock = lock_of(database)
            eventually(lambda: lock.waiting_writers + lock.waiting_readers >= 3)  # who renews, and both who reap
            late = "SELECT leased_until < strftime('%Y-%m-%dT%H:%M:%fZ', 'now') FROM queuert_job"
            eventually(lambda: tx.execute(late).fetchone()[0])
        leave.set()
        assert app.wait_for(chain, timeout=10).output == "not told"
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]


def test_an_unreachable_database_costs_nothing_but_time(app: Queuert) -> None:
    """Renewals and completions fail for longer than the lease; the handler is told, and the job is not lost."""
    entered, told = threading.Event(), []

    @app.job("polite", lease=SHORT, max_attempts=1)
    def polite(job: RunningJob[None]) -> str:
        entered.set()
        if job.attempt == 1:
            told.append(job.signal.wait(10))
            job.signal.raise_if_set()
        return f"attempt {job.attempt}"

    tried: set[str] = set()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        tried.add(threading.current_thread().name)
        raise Gone

    chain = app.start_chain(polite)
    with app.worker(name="w1", reap_interval=1000):
        entered.wait(10)
        with outage(app, refuse):
            eventually(lambda: told)
            eventually(lambda: "queuert-w1-completer" in tried)
        assert app.wait_for(chain, timeout=10).output == "attempt 2"
    assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["rescheduled", "succeeded"]


STALLED = """
    import json, sys, time
    from queuert import Backoff, Lease, Queuert

    app = Queuert(sys.argv[1])

    @app.job("job", lease=Lease(duration=1), backoff=Backoff(initial=0))
    def handler(job):
        print(json.dumps({"entered": job.attempt}), flush=True)
        told = job.signal.wait(20)
        print(json.dumps({"told": told, "reason": job.signal.reason}), flush=True)
        try:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (1)")
        except Exception as error:
            print(json.dumps({"error": type(error).__name__}), flush=True)
            raise

    with app.worker(reap_interval=0.2):
        sys.stdin.readline()
    print(json.dumps({"stopped": True}), flush=True)
    app.close()
"""


def stop_outside_a_transaction(process: subprocess.Popen[str], app: Queuert) -> None:
    """A process that is stopped while it writes to a SQLite file keeps everybody else from writing."""
    for _ in range(50):
        process.send_signal(signal.SIGSTOP)
        free = threading.Event()

        def write(free: threading.Event = free) -> None:
            with app.transaction() as tx:
                tx.execute("DELETE FROM ledger")
            free.set()

        writer = threading.Thread(target=write)
        writer.start()
        if free.wait(0.5):
            return
        process.send_signal(signal.SIGCONT)
        writer.join()
    raise AssertionError("it was always writing")


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_a_stopped_process_wakes_up_and_changes_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue("sqlite_path")
    target = f"sqlite:///{path}" if kind == "sqlite-file" else request.getfixturevalue("pg_url")
    with Queuert(target) as app:
        app.migrate()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE ledger (n integer)")
        app.job("job", backoff=NOW)(lambda job: f"attempt {job.attempt} here")
        chain = app.start_chain("job")
        stalled = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(STALLED), target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        try:
            assert stalled.stdout is not None
            assert stalled.stdin is not None
            assert json.loads(stalled.stdout.readline()) == {"entered": 1}
            stop_outside_a_transaction(stalled, app)
            with app.worker(reap_interval=0.2):
                done = app.wait_for(chain, timeout=20)
            assert done.output == "attempt 2 here"
            before = app.get_job(chain.id)
            stalled.send_signal(signal.SIGCONT)
            assert json.loads(stalled.stdout.readline()) == {"told": True, "reason": "already_completed"}
            assert json.loads(stalled.stdout.readline()) == {"error": "JobTakenByAnotherWorkerError"}
            stalled.stdin.write("\n")
            stalled.stdin.flush()
            assert json.loads(stalled.stdout.readline()) == {"stopped": True}
            assert stalled.wait(20) == 0
        finally:
            stalled.kill()
            stalled.communicate()
        assert app.get_job(chain.id) == before
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["lost", "succeeded"]
        with app.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM ledger").fetchone()[0] == 0

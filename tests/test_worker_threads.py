"""The threads of a worker: their names, their number, and what happens when one dies."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import eventually
from support.inside import context_of, database_of, dispatcher_of, repository_of, worker_threads

from queuert import Lease, NewChain, Queuert, QueuertError, RunningJob, UnknownJobTypeError, Worker
from queuert.worker.attempt import AttemptRun


def threads_of(name: str) -> set[str]:
    prefix = f"queuert-{name}-"
    return {thread.name.removeprefix(prefix) for thread in threading.enumerate() if thread.name.startswith(prefix)}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_thread_has_a_name_and_is_gone_after_stop(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    with app.worker(name="w1", concurrency=3):
        app.wait_for(app.start_chain("job"), timeout=10)
        running = threads_of("w1")
    wanted = {"dispatcher", "leases", "reaper", "completer", "watchdog", "slot-1", "slot-2", "slot-3"}
    assert wanted <= running
    assert all(each in wanted or each.startswith("housekeeping") for each in running)
    assert not threads_of("w1")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_an_attempt_leaves_nothing_for_the_garbage_collector(app: Queuert) -> None:
    @app.job("plain")
    def plain(job: RunningJob[Any]) -> None:
        assert job.signal.reason is None

    @app.job("completing")
    def completing(job: RunningJob[Any]) -> None:
        with job.complete() as tx:
            tx.execute("SELECT 1")

    def count() -> int:
        return sum(type(thing) in (AttemptRun, RunningJob) for thing in gc.get_objects())

    before = count()  # what other tests have left
    with app.worker(concurrency=2):
        for name in ("plain", "completing"):
            for chain in app.start_chains([NewChain(name) for _ in range(20)]):
                app.wait_for(chain, timeout=10)
    # The last ones may still hang in what was not collected of the worker's own.
    assert count() - before <= 4


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_five_hundred_starts_leak_nothing(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    worker = app.worker(concurrency=2, reap_interval=3600)
    for _ in range(5):
        with worker:
            app.wait_for(app.start_chain("job"), timeout=10)
    gc.collect()
    threads, files = threading.active_count(), open_files()
    for number in range(500):
        worker.start()
        if number % 50 == 0:
            app.wait_for(app.start_chain("job"), timeout=10)
        assert worker.stop()
    gc.collect()
    eventually(lambda: threading.active_count() <= threads)
    eventually(lambda: open_files() <= files + 2)
    database: Any = database_of(app)
    assert getattr(database, "_reserved", 0) == 0


@pytest.mark.parametrize("role", ["dispatcher", "keeper", "completer", "reaper", "slots"])
def test_a_thread_that_dies_takes_the_worker_down_with_its_error(
    app: Queuert, role: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = threading.Event()

    @app.job("job", lease=Lease(duration=30, renew_every=0.05))
    def handler(job: RunningJob[None]) -> None:
        if role == "keeper":  # it is needed for as long as a handler runs
            leave.wait(10)

    worker = app.worker(name="w1", reap_interval=0.05)
    bug = ZeroDivisionError("a bug of ours")

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise bug

    with caplog.at_level(logging.CRITICAL, "queuert.worker"):
        worker.start()
        crew: Any = worker_threads(worker)
        if role == "dispatcher":
            crew._dispatcher._step = broken
        elif role == "keeper":
            crew._keeper._renew = broken
        elif role == "completer":
            crew._completer._insist = broken
        elif role == "slots":
            crew._slots._work = broken
        else:
            monkeypatch.setattr(repository_of(app), "lock_expired", broken)
        app.start_chain("job")
        eventually(lambda: worker.error is not None)
        leave.set()
        assert worker.error is bug
        assert not worker.running
        with pytest.raises(ZeroDivisionError, match="a bug of ours"):
            worker.stop(timeout=5)
    assert "died" in caplog.text
    eventually(lambda: not threads_of("w1"))


def test_run_and_the_block_raise_what_killed_the_worker(app: Queuert) -> None:
    app.job("job")(lambda job: None)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    def use(worker: Any, error: Exception | None = None) -> None:
        with worker:
            dispatcher_of(worker)._step = broken
            app.start_chain("job")
            eventually(lambda: worker.error)
            if error is not None:
                raise error

    worker: Any = app.worker()
    worker.start()
    dispatcher_of(worker)._step = broken
    app.start_chain("job")
    with pytest.raises(ZeroDivisionError):
        worker.run()
    with pytest.raises(ZeroDivisionError):
        use(worker)
    with pytest.raises(KeyError, match="the body's own"):
        use(worker, KeyError("the body's own"))


def test_a_database_without_tables_is_said_at_once(empty_target: str) -> None:
    with Queuert(empty_target) as app:
        app.job("job")(lambda job: None)
        with pytest.raises(QueuertError, match="migrate"):
            app.worker(name="w1").start()
    assert not threads_of("w1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": -1}, ValueError),
        ({"concurrency": 2.5}, TypeError),
        ({"concurrency": True}, TypeError),
        ({"concurrency": "4"}, TypeError),
        ({"poll_interval": 0}, ValueError),
        ({"poll_interval": -1}, ValueError),
        ({"poll_interval": "soon"}, TypeError),
        ({"reap_interval": 0}, ValueError),
        ({"reap_interval": float("nan")}, ValueError),
        ({"lease": 60}, TypeError),
        ({"backoff": 5}, TypeError),
        ({"name": ""}, ValueError),
        ({"name": 7}, TypeError),
        ({"name": "a\nb"}, ValueError),
        ({"types": "job"}, TypeError),
        ({"types": ["nobody"]}, UnknownJobTypeError),
        ({"types": [3]}, TypeError),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.job("job")(lambda job: None)
        with pytest.raises(error):
            app.worker(**options)


@pytest.mark.parametrize("timeout", [-1, "long", float("nan")])
def test_a_bad_timeout_is_refused(timeout: Any) -> None:
    with Queuert("sqlite:///:memory:") as app, pytest.raises((ValueError, TypeError)):
        app.worker().stop(timeout=timeout)


def test_no_lock_is_held_while_user_code_runs(app: Queuert) -> None:
    """Handlers, middleware and backoffs can use the worker and the app."""
    seen: list[Any] = []

    def backoff(used: int) -> float:
        seen.append(app.stats().by_status.get("running"))
        return 0

    @app.job("job", backoff=backoff)
    def handler(job: RunningJob[None]) -> None:
        seen.append((worker.running, worker.unfinished, worker.id, worker.error))
        app.start_chain("other")
        if job.attempt == 1:
            raise RuntimeError

    app.job("other")(lambda job: None)
    worker = app.worker()
    with worker:
        app.wait_for(app.start_chain("job"), timeout=10)
    assert seen == [(True, [], worker.id, None), 1, (True, [], worker.id, None)]


def test_an_idle_worker_uses_hardly_any_cpu(app: Queuert) -> None:
    app.job("job")(lambda job: None)
    with app.worker(concurrency=10) as worker:
        app.wait_for(app.start_chain("job"), timeout=10)
        worker.events.watch()
        dispatcher_of(worker).scheduled("job")
        worker.events.wait("looked")
        cpu, clock = time.process_time(), time.monotonic()
        time.sleep(2)  # a rate needs a time to be one of
        used = (time.process_time() - cpu) / (time.monotonic() - clock)
    assert used < 0.03, f"{used:.1%} of a core"


def test_chores_are_called_again_and_again_and_harm_nobody(app: Queuert, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    stuck, stopping = threading.Event(), threading.Event()

    def failing(stop: threading.Event, worker_id: str) -> None:
        calls.append(worker_id)
        raise ZeroDivisionError

    def endless(stop: threading.Event, worker_id: str) -> None:
        stuck.set()
        stop.wait(60)
        stopping.set()

    app.job("job")(lambda job: "ran")
    worker = Worker(context_of(app), reap_interval=0.05, housekeeping=[failing, endless])
    worker.events.watch()
    with worker:
        assert stuck.wait(10)
        worker.events.wait("reaped", count=3)
        assert app.wait_for(app.start_chain("job"), timeout=10).output == "ran"
        eventually(lambda: len(calls) >= 2)
    assert set(calls) == {worker.id}
    assert stopping.is_set()
    assert caplog.text.count("A chore of the worker failed") == 1


# Fork


def _in_child(worker: Any, app: Any, queue: Any) -> None:
    """A child that inherited a running worker."""
    results: list[Any] = [worker.running, worker.stop(), worker.error]
    with worker:
        results.append(app.wait_for(app.start_chain("job"), timeout=20).output)
        results.append(worker.id)
    queue.put(results)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_a_forked_child_has_no_worker_and_can_start_its_own(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue("sqlite_path")
    target = f"sqlite:///{path}" if kind == "sqlite-file" else request.getfixturevalue("pg_url")
    fork = multiprocessing.get_context("fork")
    with Queuert(target) as app:
        app.migrate()
        app.job("job")(lambda job: os.getpid())
        with app.worker(name="w1") as worker:
            assert app.wait_for(app.start_chain("job"), timeout=10).output == os.getpid()
            worker.stop()  # the child's alone is there to run the job
            worker.start()
            queue: Any = fork.Queue()
            child = fork.Process(target=_in_child, args=(worker, app, queue))
            child.start()
            running, stopped, error, output, identity = queue.get(timeout=60)
            child.join(20)
            assert child.exitcode == 0
            assert (running, stopped, error) == (False, True, None)
            assert output in (child.pid, os.getpid())
            assert f":{child.pid}:" in identity
            assert identity != worker.id
            assert app.wait_for(app.start_chain("job"), timeout=10).output == os.getpid()

"""Results are committed in groups, and one bad result harms no other."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support import eventually, found
from support.inside import completer_of, context_of, database_of
from support.outages import Gone, outage

from queuert import Backoff, Lease, NewChain, Queuert, RunningJob
from queuert.worker import results
from queuert.worker.events import Events
from queuert.worker.results import ResultWriter
from queuert.worker.threads import WorkerThreads


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were completed."""
    sizes: list[int] = []
    write = results.complete_batch

    def counting(context: Any, session: Any, worker: Any, batch: Any, **options: Any) -> Any:
        sizes.append(len(batch.completions))
        return write(context, session, worker, batch, **options)

    monkeypatch.setattr(results, "complete_batch", counting)
    return sizes


def finished(app: Queuert) -> bool:
    return not app.list_jobs(statuses=["pending", "running"], limit=1).items


def test_results_are_committed_in_groups(app: Queuert, groups: list[int]) -> None:
    app.job("job")(lambda job: job.input)
    app.start_chains([NewChain("job", n) for n in range(1000)])
    with app.worker(concurrency=10):
        eventually(lambda: finished(app), timeout=30)
    assert sum(groups) == 1000
    assert max(groups) > 20
    assert {job.output for job in app.list_jobs(limit=1000).items} <= set(range(1000))


@pytest.mark.parametrize("line", [True, False])
def test_a_few_results_wait_for_others_only_while_jobs_wait_for_slots(
    app: Queuert, groups: list[int], monkeypatch: pytest.MonkeyPatch, line: bool
) -> None:
    monkeypatch.setattr("queuert.worker.completer.GATHER", 60.0)
    app.job("job")(lambda job: None)
    with app.worker(concurrency=1) as worker:
        completer: Any = completer_of(worker)
        completer._more_to_come = lambda: line
        chain = app.start_chain("job")
        if line:
            eventually(lambda: completer.backlog == 1)
            assert not groups
        else:
            app.wait_for(chain, timeout=10)
    assert groups == [1], "the end waits for nobody"


@pytest.mark.parametrize(
    ("arriving", "gathered"),
    [([50, 60], 111), ([12, 30, 3, 50], 46), ([0, 50], 1), ([10] * 50, 41)],
    ids=["until they are many", "until few come", "nobody comes", "until it has taken long"],
)
def test_results_wait_for_others_as_long_as_these_come(
    app: Queuert, monkeypatch: pytest.MonkeyPatch, arriving: list[int], gathered: int
) -> None:
    """How many come during each of the waits, and how many are written together then."""
    clock, waits = [0.0], iter(arriving)
    crew: Any = WorkerThreads(context_of(app), app.worker()._options, "w1", Events())
    completer = crew._completer
    completer._more_to_come = lambda: True
    completer._queue.append(None)

    def wait(seconds: float) -> None:
        clock[0] += seconds
        completer._queue.extend([None] * next(waits))

    monkeypatch.setattr(completer._changed, "wait", wait)
    monkeypatch.setattr("queuert.worker.completer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    completer._gather()
    assert len(completer._queue) == gathered


def test_slots_wait_when_results_pile_up(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.completer.QUEUE", 5)
    monkeypatch.setattr("queuert.worker.completer.GROUP", 2)
    ran = [0]

    @app.job("job")
    def handler(job: RunningJob[None]) -> None:
        ran[0] += 1

    app.start_chains([NewChain("job") for _ in range(100)])
    writing, go_on = threading.Event(), threading.Event()
    write = ResultWriter.write

    def slow(self: ResultWriter, *args: Any, **kwargs: Any) -> Any:
        writing.set()
        go_on.wait(20)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(ResultWriter, "write", slow)
    with app.worker(concurrency=3) as worker:
        assert writing.wait(10)
        completer: Any = completer_of(worker)
        eventually(lambda: len(completer._space._waiters) == 3)
        # One or two being written, five in the queue, three in the hands of slots.
        assert 9 <= ran[0] <= 10
        go_on.set()
        eventually(lambda: finished(app), timeout=30)
    assert ran[0] == 100


def test_one_refused_result_does_not_take_its_group_down(app: Queuert, groups: list[int]) -> None:
    """A continuation whose id is taken already, in the middle of a group."""
    gate = threading.Barrier(8)
    taken = app.start_chain(app.declare("other"))

    @app.job("job", backoff=Backoff(initial=1000))
    def handler(job: RunningJob[int]) -> Any:
        gate.wait(10)
        if job.input == 5:
            return job.continue_with("other", id=taken.id)
        return job.continue_with("other") if job.input % 2 else job.input

    chains = app.start_chains([NewChain("job", n) for n in range(8)])
    with app.worker(concurrency=8):
        for n, chain in enumerate(chains):
            [attempt] = eventually(lambda chain=chain: app.attempts(chain.id))
            assert attempt.outcome == ("failed" if n == 5 else "succeeded")
    [attempt] = app.attempts(chains[5].id)
    assert attempt.error_code == "INTERNAL:DuplicateJobIdError"
    assert attempt.retry_at is not None
    assert [len(app.list_chain_jobs(chain.id).items) for chain in chains] == [1, 2, 1, 2, 1, 1, 1, 2]


def test_an_error_text_that_cannot_be_stored_does_not_stop_anything(app: Queuert) -> None:
    @app.job("job", max_attempts=1)
    def handler(job: RunningJob[None]) -> None:
        raise ValueError("\x00 and \udcff and \U0010ffff")

    app.job("fine")(lambda job: "fine")
    with app.worker():
        assert app.wait_for(app.start_chain("job"), timeout=10, raise_on_failure=False).status == "failed"
        assert app.wait_for(app.start_chain("fine"), timeout=10).output == "fine"


@pytest.mark.parametrize("ends", ["returns", "continues", "raises"])
def test_a_result_whose_row_is_locked_delays_only_itself(pg_url: str, ends: str) -> None:
    with Queuert(pg_url) as app:
        gate = threading.Barrier(2)

        @app.job("locked", lease=Lease(duration=2))
        def locked(job: RunningJob[None]) -> Any:
            gate.wait(10)
            gate.wait(10)
            if ends == "raises":
                raise RuntimeError
            return job.continue_with("next") if ends == "continues" else "done"

        app.declare("next")
        app.job("fine")(lambda job: "fine")
        chain = app.start_chain(locked)
        with app.worker(concurrency=2) as worker:
            gate.wait(10)
            with app.transaction() as tx:
                tx.execute("SELECT 1 FROM queuert_job WHERE id = %s FOR UPDATE", (chain.id,))
                gate.wait(10)
                # The calls of this thread would need the connection: another one looks.
                results: list[Any] = []

                def others() -> None:
                    for _ in range(5):
                        results.append(app.wait_for(app.start_chain("fine"), timeout=5).output)

                thread = threading.Thread(target=others)
                thread.start()
                thread.join(20)
                assert results == ["fine"] * 5
                late = "SELECT leased_until < clock_timestamp() FROM queuert_job WHERE id = %s"
                eventually(lambda: tx.execute(late, (chain.id,)).fetchone()[0])
                waited_for = "SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
                eventually(lambda: tx.execute(waited_for).fetchone()[0])
            [attempt] = eventually(lambda: app.attempts(chain.id))
            assert attempt.outcome == ("failed" if ends == "raises" else "succeeded")
            assert attempt.worker_id == worker.id


def test_a_locked_job_that_waits_for_the_chain_delays_only_that_chain(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        app.job("job")(lambda job: "done")
        chain = app.start_chain("job", after=3600)
        waiting = app.start_chain(app.declare("other"), blockers=[chain])
        worker = app.worker()
        worker.start()
        try:
            with app.transaction() as tx:
                tx.execute("SELECT 1 FROM queuert_job WHERE id = %s FOR UPDATE", (waiting.id,))
                app.trigger_job(chain.id, conn=tx)  # starts when this commits
            with app.transaction() as tx:
                tx.execute("SELECT 1 FROM queuert_job WHERE id = %s FOR UPDATE", (waiting.id,))
                results: list[Any] = []
                thread = threading.Thread(
                    target=lambda: results.extend(app.wait_for(app.start_chain("job"), timeout=5).output for _ in range(5))
                )
                thread.start()
                thread.join(20)
                assert results == ["done"] * 5
            assert app.wait_for(chain, timeout=10).output == "done"
            assert found(app.get_chain(waiting.id)).status == "pending"
        finally:
            worker.stop()


def test_a_passing_error_is_ridden_out_and_nothing_is_lost(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.completer.GROUP", 10)
    app.job("job")(lambda job: None)
    calls: Counter[str] = Counter()
    run = database_of(app).run

    def flaky(work: Any, **options: Any) -> Any:
        """Every third call of each thread fails."""
        role = threading.current_thread().name.removeprefix("queuert-w1-")
        calls[role] += 1
        if calls[role] % 3 == 0:
            raise Gone
        return run(work, **options)

    chains = app.start_chains([NewChain("job", n) for n in range(50)])
    with outage(app, flaky), app.worker(name="w1", concurrency=3, reap_interval=3600):
        for chain in chains:
            app.wait_for(chain, timeout=30)
    assert calls["dispatcher"] >= 3
    assert calls["completer"] >= 3
    assert [[attempt.outcome for attempt in app.attempts(chain.id)] for chain in chains] == [["succeeded"]] * 50


@pytest.mark.parametrize("committed", [True, False], ids=["it had committed", "it had not"])
@pytest.mark.parametrize("again", [False, True], ids=["recovered at once", "recovered by the next try"])
@pytest.mark.parametrize("how", ["statement", "transaction"])
def test_the_answer_is_lost(pg_url: str, how: str, committed: bool, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection dies around the commit; the job completes once, whatever happened, and who waits is told (nobody polls). A
    plain result is written by one statement, a continuation with an id of its own in a transaction."""
    import psycopg

    from queuert.postgres.connection import OwnConnection
    from queuert.postgres.session import PostgresSession

    with Queuert(pg_url) as app:
        ran = []
        lost = [0]

        @app.job("job")
        def job(job: RunningJob[None]) -> Any:
            ran.append(job.attempt)
            return job.continue_with("next", None, id=str(uuid.uuid4())) if how == "transaction" else None

        app.job("next")(lambda job: None)

        def losing(conn: Any, work: Callable[[], Any]) -> Any:
            if threading.current_thread().name.endswith("-completer") and not lost[0]:
                lost[0] += 1
                if committed:
                    work()
                conn.pgconn.finish()
                raise psycopg.OperationalError("the connection is lost")
            return work()

        commit, run = OwnConnection.commit, PostgresSession.run
        if how == "transaction":
            monkeypatch.setattr(OwnConnection, "commit", lambda conn: losing(conn, lambda: commit(conn)))
        else:
            monkeypatch.setattr(
                PostgresSession,
                "run",
                lambda self, query, params: (
                    losing(self.raw, lambda: run(self, query, params))
                    if query.name == "complete_jobs"
                    else run(self, query, params)
                ),
            )
        if again:
            from queuert.worker.results import _Transaction

            recover, failed = _Transaction.recover, []

            def failing(self: Any, session: Any) -> Any:
                if not failed:
                    failed.append(True)
                    raise psycopg.OperationalError("still lost")
                return recover(self, session)

            monkeypatch.setattr(_Transaction, "recover", failing)
        with app.worker(poll_interval=3600):
            chain = app.wait_for(app.start_chain("job"), timeout=20, poll_interval=3600)
        assert lost == [1]
        assert ran == [1]
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]


def test_stop_gives_up_on_a_database_that_is_gone(app: Queuert) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.job("job")
    def handler(job: RunningJob[None]) -> None:
        entered.set()
        leave.wait(20)

    chain = app.start_chain(handler)
    worker = app.worker(name="w1")
    worker.start()
    entered.wait(10)
    with outage(app):
        leave.set()
        started = time.monotonic()
        worker.stop(timeout=0.5)
        assert time.monotonic() - started < 5
        eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("queuert-w1-")])
    job = app.get_job(chain.id)
    assert job is not None
    assert job.status == "running", "its lease runs out, and it runs again"

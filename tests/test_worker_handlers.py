"""What handlers can do, and what is left behind when they do not come to their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support import eventually, found
from support.inside import database_of

from queuert import Backoff, Chain, Continuation, Lease, Queuert, RunningJob

NOW = Backoff(initial=0, jitter=0)


@pytest.fixture
def ledger(app: Queuert) -> Callable[[], list[int]]:
    """A table of the user's own; calling it gives its numbers."""
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")

    def numbers() -> list[int]:
        with app.transaction() as tx:
            return sorted(row[0] for row in tx.execute("SELECT n FROM ledger").fetchall())

    return numbers


def closed(app: Queuert, chain: Chain, timeout: float = 10) -> Chain:
    return app.wait_for(chain, timeout=timeout, raise_on_failure=False)


def outcomes(app: Queuert, job_id: str) -> list[str]:
    return [attempt.outcome for attempt in app.attempts(job_id)]


# Ways to succeed


def test_a_plain_return_completes_the_job(app: Queuert) -> None:
    @app.job
    def double(job: RunningJob[int]) -> int:
        return job.input * 2

    with app.worker() as worker:
        chain = app.wait_for(app.start_chain(double, 21), timeout=10)
    assert chain.output == 42
    job = app.get_job(chain.id)
    assert job is not None
    assert job.completed_by == worker.id
    assert (job.leased_by, job.leased_until, job.attempt) == (None, None, 1)
    [attempt] = app.attempts(chain.id)
    assert (attempt.worker_id, attempt.outcome, attempt.error_code) == (worker.id, "succeeded", None)
    assert attempt.claimed_at is not None
    assert attempt.started_at is not None
    assert attempt.claimed_at <= attempt.started_at <= attempt.finished_at


def test_complete_commits_the_writes_with_the_completion(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    @app.job
    def book(job: RunningJob[int]) -> str:
        with job.complete() as tx:
            tx.execute(f"INSERT INTO ledger VALUES ({job.input})")
        return "booked"

    with app.worker():
        assert app.wait_for(app.start_chain(book, 7), timeout=10).output == "booked"
    assert ledger() == [7]


def test_prepare_commits_before_complete_does(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    between = []

    @app.job
    def staged(job: RunningJob[None]) -> None:
        with job.prepare() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
        between.append(ledger())
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (2)")

    with app.worker():
        app.wait_for(app.start_chain(staged), timeout=10)
    assert between == [[1]]
    assert ledger() == [1, 2]


@pytest.mark.parametrize("inside", [True, False], ids=["inside complete()", "plain"])
def test_a_continuation_goes_on_with_the_chain(app: Queuert, inside: bool) -> None:
    @app.job("first")
    def first(job: RunningJob[int]) -> Continuation:
        if not inside:
            return job.continue_with(second, job.input + 1)
        with job.complete():
            return job.continue_with(second, job.input + 1)

    @app.job("second", entry=False)
    def second(job: RunningJob[int]) -> int:
        return job.input * 10

    with app.worker():
        chain = app.wait_for(app.start_chain(first, 1), timeout=10)
    assert chain.output == 20
    jobs = app.list_chain_jobs(chain.id, order="asc").items
    assert [job.type_name for job in jobs] == ["first", "second"]
    assert jobs[0].continued_to == jobs[1].id
    assert jobs[0].output is None


def test_blockers_come_with_their_outputs_and_in_order(app: Queuert) -> None:
    @app.job
    def part(job: RunningJob[int]) -> int:
        return job.input

    @app.job
    def total(job: RunningJob[None]) -> list[int]:
        return [chain.output for chain in job.blockers]

    @app.job
    def total_in_block(job: RunningJob[None]) -> list[int]:
        with job.complete():
            return [chain.output for chain in job.blockers]

    parts = [app.start_chain(part, n) for n in (3, 1, 2)]
    sums = [app.start_chain(each, blockers=parts) for each in (total, total_in_block)]
    with app.worker(concurrency=3):
        assert [app.wait_for(each, timeout=10).output for each in sums] == [[3, 1, 2], [3, 1, 2]]


# Ways not to


@pytest.mark.parametrize("where", ["before", "inside", "after", "in the return value"])
def test_a_handler_that_raises_leaves_nothing_behind_and_is_retried(
    app: Queuert, ledger: Callable[[], list[int]], where: str
) -> None:
    failing = [True]

    @app.job("work", backoff=NOW)
    def work(job: RunningJob[None]) -> Any:
        def maybe(place: str) -> None:
            if failing[0] and where == place:
                failing[0] = False
                raise RuntimeError("not this time")

        maybe("before")
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            maybe("inside")
        maybe("after")
        if failing[0]:
            failing[0] = False
            return {"a set": {1, 2}}
        return job.continue_with("next")

    app.job("next", entry=False)(lambda job: "end")
    waiting = app.declare("waiting")
    chain = app.start_chain(work)
    dependant = app.start_chain(waiting, blockers=[chain])
    seen = []

    class Look:
        """Looks at the database from outside when the second attempt begins."""

        def around_attempt(self, job: RunningJob[Any], call: Callable[[], Any]) -> Any:
            if job.attempt == 2:
                other = app.get_chain(dependant.id)
                assert other is not None
                seen.append((ledger(), len(app.list_chain_jobs(chain.id).items), other.status))
            return call()

    with app.worker(types=["work"], middleware=[Look()]):
        eventually(lambda: outcomes(app, chain.id) == ["failed", "succeeded"])
    assert seen == [([], 1, "blocked")]
    assert ledger() == [1]
    with app.worker():
        assert closed(app, chain).output == "end"
    eventually(lambda: found(app.get_chain(dependant.id)).status == "pending")


def test_an_error_that_is_caught_outside_the_block_still_undoes_it(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    @app.job("swallows", max_attempts=1)
    def swallows(job: RunningJob[None]) -> str:
        try:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (1)")
                raise KeyError("inside")
        except KeyError:
            pass
        return "fine"

    with app.worker():
        chain = closed(app, app.start_chain(swallows))
    assert (chain.status, chain.error_code) == ("failed", "INTERNAL:KeyError")
    assert ledger() == []


def test_sql_that_fails_in_a_block_does_not_prevent_the_retry(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    @app.job("clumsy", backoff=NOW)
    def clumsy(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            if job.attempt == 1:
                tx.execute("INSERT INTO no_such_table VALUES (1)")

    with app.worker():
        chain = app.wait_for(app.start_chain(clumsy), timeout=10)
    assert outcomes(app, chain.id) == ["failed", "succeeded"]
    assert ledger() == [1]


def test_sql_that_fails_in_prepare_does_not_prevent_the_retry(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    @app.job("clumsy", backoff=NOW)
    def clumsy(job: RunningJob[None]) -> None:
        with job.prepare() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            if job.attempt == 1:
                tx.execute("INSERT INTO no_such_table VALUES (1)")

    with app.worker():
        chain = app.wait_for(app.start_chain(clumsy), timeout=10)
    assert outcomes(app, chain.id) == ["failed", "succeeded"]
    assert ledger() == [1]


def test_attempts_run_out(app: Queuert) -> None:
    @app.job("hopeless", max_attempts=3, backoff=NOW)
    def hopeless(job: RunningJob[None]) -> None:
        raise ValueError(f"attempt {job.attempt}")

    with app.worker():
        chain = closed(app, app.start_chain(hopeless))
    assert (chain.status, chain.error_code) == ("failed", "INTERNAL:ValueError")
    attempts = app.attempts(chain.id)
    assert [attempt.outcome for attempt in attempts] == ["failed"] * 3
    assert [attempt.error_detail for attempt in attempts] == [f"ValueError: attempt {n}" for n in (1, 2, 3)]
    assert [attempt.retry_at is None for attempt in attempts] == [False, False, True]
    job = app.get_job(chain.id)
    assert job is not None
    assert job.last_attempt_error is not None
    assert "Traceback" in job.last_attempt_error
    assert "attempt 3" in job.last_attempt_error
    assert job.leased_by is None


def test_success_clears_the_error_and_the_attempts_keep_it(app: Queuert) -> None:
    @app.job("second-time-lucky", backoff=NOW)
    def lucky(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            raise TimeoutError("slow")

    with app.worker():
        chain = app.wait_for(app.start_chain(lucky), timeout=10)
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.error_code, job.last_attempt_error) == (None, None)
    assert [attempt.error_code for attempt in app.attempts(chain.id)] == ["TIMEOUT:TimeoutError", None]


class CardDeclined(Exception):
    error_code = "PAYMENT:DECLINED"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CardDeclined(), "PAYMENT:DECLINED"),
        (TimeoutError(), "TIMEOUT:TimeoutError"),
        (MemoryError(), "RESOURCE:OUT_OF_MEMORY"),
        (AssertionError(), "INTERNAL:ASSERTION_FAILED"),
        (LookupError("what"), "INTERNAL:LookupError"),
        (SystemExit(3), "INTERNAL:SystemExit"),
        (KeyboardInterrupt(), "INTERNAL:KeyboardInterrupt"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_error_codes(app: Queuert, error: BaseException, code: str) -> None:
    @app.job("raises", max_attempts=1)
    def raises(job: RunningJob[None]) -> None:
        raise error

    app.job("fine")(lambda job: "still here")
    with app.worker():
        assert closed(app, app.start_chain(raises)).error_code == code
        assert app.wait_for(app.start_chain("fine"), timeout=10).output == "still here"


def test_the_backoff_grows_and_is_capped(app: Queuert) -> None:
    @app.job("failing", backoff=Backoff(initial=100, multiplier=3, maximum=500, jitter=0))
    def failing(job: RunningJob[None]) -> None:
        raise RuntimeError

    chain = app.start_chain(failing)
    with app.worker():
        for attempt in range(1, 5):
            eventually(lambda attempt=attempt: len(app.attempts(chain.id)) == attempt)
            app.trigger_job(chain.id)
    waits = [round((a.retry_at - a.finished_at).total_seconds()) for a in app.attempts(chain.id)[:4] if a.retry_at]
    assert waits == [100, 300, 500, 500]


def test_jitter_spreads_the_retries(app: Queuert) -> None:
    @app.job("failing", backoff=Backoff(initial=100, jitter=0.5))
    def failing(job: RunningJob[None]) -> None:
        raise RuntimeError

    chains = [app.start_chain(failing) for _ in range(20)]
    with app.worker(concurrency=4):
        eventually(lambda: all(app.attempts(chain.id) for chain in chains))
    found = [app.attempts(chain.id)[0] for chain in chains]
    waits = [(attempt.retry_at - attempt.finished_at).total_seconds() for attempt in found if attempt.retry_at]
    assert len(waits) == 20
    assert all(49 < wait < 151 for wait in waits)
    assert max(waits) - min(waits) > 10


def test_a_backoff_that_is_broken_is_replaced_by_the_default(app: Queuert) -> None:
    def backoff(used: int) -> float:
        raise ZeroDivisionError

    @app.job("failing", backoff=backoff)
    def failing(job: RunningJob[None]) -> None:
        raise RuntimeError

    chain = app.start_chain(failing)
    with app.worker():
        [attempt] = eventually(lambda: app.attempts(chain.id))
    assert attempt.retry_at is not None
    assert 8 < (attempt.retry_at - attempt.finished_at).total_seconds() < 12


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught by the handler"])
def test_reschedule_tries_again_then_and_uses_up_no_attempt(app: Queuert, caught: bool) -> None:
    @app.job("later", max_attempts=1)
    def later(job: RunningJob[None]) -> str:
        if job.attempt < 4:
            try:
                job.reschedule(after=0, error="not yet")
            except Exception:
                if not caught:
                    raise
        return f"attempt {job.attempt}"

    with app.worker():
        chain = app.wait_for(app.start_chain(later), timeout=10)
    assert chain.output == "attempt 4"
    attempts = app.attempts(chain.id)
    assert [attempt.outcome for attempt in attempts] == ["rescheduled"] * 3 + ["succeeded"]
    assert [(attempt.error_code, attempt.error_detail) for attempt in attempts[:3]] == [(None, "not yet")] * 3


def test_reschedule_to_a_time(app: Queuert) -> None:
    at = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)

    @app.job("later")
    def later(job: RunningJob[None]) -> None:
        job.reschedule(at=at)

    chain = app.start_chain(later)
    with app.worker():
        eventually(lambda: app.attempts(chain.id))
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.scheduled_at, job.last_attempt_error) == ("pending", at, None)


@pytest.mark.parametrize("options", [{}, {"after": 1, "at": datetime.now(timezone.utc)}, {"after": -1}])
def test_a_reschedule_that_makes_no_sense_fails_the_attempt(app: Queuert, options: dict[str, Any]) -> None:
    @app.job("confused", max_attempts=1)
    def confused(job: RunningJob[None]) -> None:
        job.reschedule(**options)

    with app.worker():
        assert closed(app, app.start_chain(confused)).error_code == "INTERNAL:ValueError"


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught by the handler"])
def test_fail_is_for_good(app: Queuert, ledger: Callable[[], list[int]], caught: bool) -> None:
    @app.job("declined")
    def declined(job: RunningJob[None]) -> str:
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
        try:
            job.fail("PAYMENT:DECLINED", "no funds")
        except Exception:
            if not caught:
                raise
        return "as if nothing had happened"

    with app.worker():
        chain = closed(app, app.start_chain(declined))
    assert (chain.status, chain.error_code, chain.output) == ("failed", "PAYMENT:DECLINED", None)
    [attempt] = app.attempts(chain.id)
    assert (attempt.outcome, attempt.error_detail, attempt.retry_at) == ("failed", "no funds", None)
    assert ledger() == []


@pytest.mark.parametrize("misuse", ["complete twice", "prepare after complete", "foreign continuation"])
def test_misuse_fails_the_attempt(app: Queuert, ledger: Callable[[], list[int]], misuse: str) -> None:
    kept: list[Any] = []

    @app.job("other", max_attempts=1)
    def other(job: RunningJob[None]) -> Continuation:
        kept.append(job.continue_with("other", after=3600))
        return kept[0]  # type: ignore[no-any-return]

    @app.job("misuse", max_attempts=1)
    def misused(job: RunningJob[None]) -> Any:
        if misuse == "foreign continuation":
            return kept[0]
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
        with job.complete() if misuse == "complete twice" else job.prepare():
            return None

    with app.worker():
        app.start_chain(other)
        eventually(lambda: kept)
        chain = closed(app, app.start_chain(misused))
    assert chain.status == "failed"
    assert ledger() == []


@pytest.mark.parametrize("forgotten", ["plainly", "inside complete", "beside another"])
def test_a_continuation_that_is_not_returned_fails_the_attempt(
    app: Queuert, ledger: Callable[[], list[int]], forgotten: str
) -> None:
    @app.job
    def ship(job: RunningJob[int]) -> None: ...

    @app.job(max_attempts=2, backoff=NOW)
    def charge(job: RunningJob[None]) -> Any:
        if forgotten == "plainly":
            job.continue_with(ship, 1)
            return "charged"
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            job.continue_with(ship, 1)
            return job.continue_with(ship, 2) if forgotten == "beside another" else None

    with app.worker():
        chain = closed(app, app.start_chain(charge))
    assert (chain.status, chain.error_code, chain.output) == ("failed", "INTERNAL:JobTypeValidationError", None)
    assert outcomes(app, chain.id) == ["failed", "failed"]
    assert "'ship'" in found(app.attempts(chain.id)[0].error_detail)
    assert not app.list_jobs(types=["ship"]).items
    assert ledger() == []


def test_a_handler_that_raises_or_reschedules_need_not_return_its_continuation(app: Queuert) -> None:
    @app.job(backoff=NOW)
    def charge(job: RunningJob[None]) -> Continuation:
        following = job.continue_with("charge")
        if job.attempt == 1:
            job.reschedule(after=0)
        if job.attempt == 2:
            raise ValueError
        job.fail("PAYMENT:DECLINED")
        return following

    with app.worker():
        chain = closed(app, app.start_chain(charge))
    assert chain.error_code == "PAYMENT:DECLINED"
    assert [attempt.error_code for attempt in app.attempts(chain.id)] == [None, "INTERNAL:ValueError", "PAYMENT:DECLINED"]


def test_a_call_without_the_connection_in_complete_is_an_error_at_once(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    raised = []

    @app.job("forgetful")
    def forgetful(job: RunningJob[None]) -> None:
        with job.complete() as tx:
            for call in (lambda: app.start_chain("forgetful"), lambda: app.get_job(job.id), lambda: job.prepare().__enter__()):
                try:
                    call()
                except Exception as error:
                    raised.append(type(error).__name__)
            tx.execute("INSERT INTO ledger VALUES (1)")

    with app.worker():
        app.wait_for(app.start_chain(forgetful), timeout=10)
    assert raised == ["TransactionRequiredError", "TransactionRequiredError", "QueuertError"]
    assert ledger() == [1]


def test_user_code_cannot_end_the_transaction_of_complete(app: Queuert, ledger: Callable[[], list[int]]) -> None:
    refused: list[str] = []
    started = threading.Barrier(2)

    @app.job("rude")
    def rude(job: RunningJob[None]) -> None:
        started.wait(10)
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (1)")
            for name in ("commit", "rollback", "close"):
                if name == "close" and not hasattr(tx, "executescript"):
                    continue  # psycopg lets go of the connection: another test
                try:
                    getattr(tx, name)()
                except Exception:
                    refused.append(name)
            if hasattr(tx, "executescript"):
                try:
                    tx.executescript("SELECT 1")
                except Exception:
                    refused.append("executescript")

    @app.job("polite")
    def polite(job: RunningJob[None]) -> None:
        started.wait(10)
        with job.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (2)")

    chains = [app.start_chain(rude), app.start_chain(polite)]
    with app.worker(concurrency=2):
        for chain in chains:
            app.wait_for(chain, timeout=10)
    assert refused[:2] == ["commit", "rollback"]
    assert refused[2:] in ([], ["close", "executescript"])
    assert ledger() == [1, 2]


# Which jobs, and on what terms


def test_a_worker_runs_only_the_types_it_was_given(app: Queuert) -> None:
    app.job("mine")(lambda job: "done")
    app.job("yours")(lambda job: "done")
    mine, yours = app.start_chain("mine"), app.start_chain("yours")
    worker = app.worker(types=["mine"])
    worker.events.watch()
    with worker:
        app.wait_for(mine, timeout=10)
        worker.events.wait("looked")
        assert found(app.get_chain(yours.id)).status == "pending"
    with app.worker(types=[app.declare("other"), "yours"]):
        app.wait_for(yours, timeout=10)


def test_types_that_are_defined_after_the_start_are_run_too(app: Queuert) -> None:
    app.job("early")(lambda job: "early")
    with app.worker():
        app.job("late")(lambda job: "late")
        assert app.wait_for(app.start_chain("late"), timeout=10).output == "late"


def test_several_workers_in_one_process_share_the_work(app: Queuert) -> None:
    together = threading.Barrier(3)

    @app.job("meet")
    def meet(job: RunningJob[None]) -> None:
        together.wait(10)

    chains = [app.start_chain(meet) for _ in range(3)]
    workers = [app.worker(name=name) for name in ("same", "same", "other")]
    for worker in workers:
        worker.start()
    try:
        for chain in chains:
            app.wait_for(chain, timeout=10)
    finally:
        for worker in workers:
            worker.stop()
    assert {app.attempts(chain.id)[0].worker_id for chain in chains} == {worker.id for worker in workers}
    assert len({worker.id for worker in workers}) == 3


def test_the_type_wins_over_the_worker_and_the_worker_over_the_default(app: Queuert) -> None:
    leases: dict[str, float] = {}

    @app.job("own", backoff=Backoff(initial=100, jitter=0), lease=Lease(duration=500), max_attempts=2)
    def own(job: RunningJob[None]) -> None:
        leases["own"] = (found(job.leased_until) - found(job.last_attempt_at)).total_seconds()
        raise RuntimeError

    @app.job("bare")
    def bare(job: RunningJob[None]) -> None:
        leases["bare"] = (found(job.leased_until) - found(job.last_attempt_at)).total_seconds()
        raise RuntimeError

    chains = [app.start_chain(own), app.start_chain(bare)]
    with app.worker(backoff=Backoff(initial=7, jitter=0), lease=Lease(duration=200)):
        for chain in chains:
            eventually(lambda chain=chain: app.attempts(chain.id))
    waits = [round((a.retry_at - a.finished_at).total_seconds()) for c in chains for a in app.attempts(c.id) if a.retry_at]
    assert waits == [100, 7]
    assert {name: round(lease) for name, lease in leases.items()} == {"own": 500, "bare": 200}


def test_a_timeout_sets_the_signal_and_the_deadline_says_when(app: Queuert) -> None:
    seen = []

    @app.job("slow", timeout=0.2, max_attempts=1)
    def slow(job: RunningJob[None]) -> None:
        assert job.deadline is not None
        started = time.monotonic()
        seen.append((job.deadline - datetime.now(timezone.utc)).total_seconds())
        assert job.signal.wait(10)
        seen.append(time.monotonic() - started)
        seen.append(job.signal.reason)
        job.signal.raise_if_set()

    with app.worker():
        chain = closed(app, app.start_chain(slow))
    assert -0.3 < seen[0] < 0.3
    assert 0.1 < seen[1] < 2
    assert seen[2] == "timeout"
    assert chain.error_code == "TIMEOUT:JOB"


def test_a_handler_that_ignores_its_timeout_can_still_complete(app: Queuert) -> None:
    @app.job("stubborn", timeout=0.05)
    def stubborn(job: RunningJob[None]) -> str:
        assert job.signal.wait(10)
        return "done all the same"

    with app.worker():
        assert app.wait_for(app.start_chain(stubborn), timeout=10).output == "done all the same"


def test_a_job_without_a_timeout_has_no_deadline(app: Queuert) -> None:
    @app.job("plain")
    def plain(job: RunningJob[None]) -> bool:
        return job.deadline is None

    with app.worker():
        assert app.wait_for(app.start_chain(plain), timeout=10).output is True


# Whose fault it is


def test_a_deadlock_costs_no_attempt(pg_url: str) -> None:
    """Two handlers lock two rows in opposite order, each in its own transaction."""
    with Queuert(pg_url) as app:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE account (id integer PRIMARY KEY, n integer)")
            tx.execute("INSERT INTO account VALUES (1, 0), (2, 0)")
        gate = threading.Barrier(2)

        @app.job("transfer", max_attempts=1)
        def transfer(job: RunningJob[list[int]]) -> None:
            with job.complete() as tx:
                tx.execute("UPDATE account SET n = n + 1 WHERE id = %s", (job.input[0],))
                if job.attempt == 1:
                    gate.wait(10)
                tx.execute("UPDATE account SET n = n + 1 WHERE id = %s", (job.input[1],))

        chains = [app.start_chain(transfer, [1, 2]), app.start_chain(transfer, [2, 1])]
        with app.worker(concurrency=2):
            for chain in chains:
                app.wait_for(chain, timeout=20)
        found = sorted(outcomes(app, chain.id) for chain in chains)
        assert found == [["rescheduled", "succeeded"], ["succeeded"]]
        with app.transaction() as tx:
            assert tx.execute("SELECT n FROM account").fetchall() == [(2,), (2,)]


@pytest.mark.parametrize("place", ["prepare", "complete"])
def test_a_lost_connection_costs_no_attempt(pg_url: str, place: str) -> None:
    with Queuert(pg_url) as app:

        @app.job("unlucky", max_attempts=1)
        def unlucky(job: RunningJob[None]) -> str:
            with job.prepare() if place == "prepare" else job.complete() as tx:
                if job.attempt == 1:
                    tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return "done"

        with app.worker():
            chain = app.wait_for(app.start_chain(unlucky), timeout=20)
        assert outcomes(app, chain.id) == ["rescheduled", "succeeded"]


@pytest.mark.parametrize("place", ["prepare", "complete"])
def test_an_error_of_another_database_is_the_handlers(app: Queuert, place: str) -> None:
    """It looks like one that passes, but the transaction of the job is as good as before."""
    import sqlite3

    import psycopg

    postgres = database_of(app).dialect == "postgres"

    @app.job("elsewhere", max_attempts=1)
    def elsewhere(job: RunningJob[None]) -> None:
        with job.prepare() if place == "prepare" else job.complete():
            if postgres:
                raise psycopg.OperationalError("the other server does not answer")
            raise sqlite3.OperationalError("database is locked")

    with app.worker():
        chain = closed(app, app.start_chain(elsewhere))
    assert chain.error_code == ("INTERNAL:OperationalError" if postgres else "DEPENDENCY:DB_LOCKED")

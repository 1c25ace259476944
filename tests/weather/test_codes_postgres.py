"""Every kind of error that PostgreSQL reports, at every act of a worker: what passes costs time and nothing else.

A trigger on the job table raises the errors, so they are the server's own, with its codes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from support import eventually, found
from weather import PostgresFaults

from queuert import Backoff, Lease, Queuert, RunningJob, Worker
from queuert.postgres.errors import CLASSES, CODES, trouble
from queuert.storage.trouble import Trouble

# One or more of each class; those of the classes that the server itself reports first.
OUTAGES = [
    *("53100", "53200", "53300", "53400", "57014", "57P01", "57P02", "57P03", "57P05", "25006", "25P03", "25P04", "58000"),
    *("58030", "58P01", "55P03", "55006", "55000", "40001", "40P01", "40003", "08006", "26000", "28P01", "72000", "F0000"),
    *("XX000", "25001"),
]
JOBS = [
    *("22001", "22003", "22P02", "22P05", "23502", "23503", "23505", "23514", "54000", "54001", "P0001", "P0004", "09000"),
    *(
        "0F000",
        "0Z000",
        "10608",
        "20000",
        "21000",
        "27000",
        "2F000",
        "38000",
        "39000",
        "3B000",
        "40002",
        "44000",
        "HV000",
        "ZZ999",
    ),
]
SET_UPS = [
    *("42501", "42601", "42703", "42704", "42883", "42P01", "3F000", "3D000", "0A000", "0L000", "0P000", "24000", "2B000"),
    *("2D000", "34000", "03000", "0B000", "57P04", "XX001", "XX002"),
]
# Not all at every act: what differs between them is the class, and each test has its own worker.
SOME = {Trouble.SET_UP: ["42501", "42P01", "42883", "XX001"], Trouble.JOB: ["22003", "23514", "54000", "P0001"]}
FEW = ["53100", "53200", "57014", "25006", "25P04", "58030", "53300", "57P01", "40001", "XX000"]


def error(code: str) -> psycopg.Error:
    made = psycopg.errors.lookup(code)() if code in _KNOWN else psycopg.Error()
    made.sqlstate = code
    return made


_KNOWN = {
    code for name in dir(psycopg.errors) if isinstance(code := getattr(getattr(psycopg.errors, name), "sqlstate", None), str)
}


def test_every_code_that_psycopg_knows_is_in_the_table() -> None:
    assert {code[:2] for code in _KNOWN} - {"02"} <= set(CLASSES), "02 is no error"
    assert set(CODES) <= _KNOWN
    for kind, codes in ((Trouble.OUTAGE, OUTAGES), (Trouble.JOB, JOBS), (Trouble.SET_UP, SET_UPS)):
        assert {code for code in codes if trouble(error(code)) is not kind} == set()
    assert {code[:2] for code in (*OUTAGES, *JOBS, *SET_UPS)} >= set(CLASSES)


def test_what_the_driver_itself_raises_has_its_place() -> None:
    assert trouble(psycopg.OperationalError("the connection is lost")) is Trouble.OUTAGE
    assert trouble(psycopg.InterfaceError("the connection is closed")) is Trouble.OUTAGE
    assert trouble(psycopg.DataError("a NUL in a text")) is Trouble.JOB
    assert trouble(MemoryError()) is Trouble.OUTAGE
    assert trouble(KeyError()) is None


class Workshop:
    """Jobs of every kind, and how often each ran."""

    def __init__(self, app: Queuert) -> None:
        self.app = app
        self.ran: list[str] = []
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        with app.transaction() as tx:
            tx.execute("CREATE TABLE ledger (job_id text PRIMARY KEY)")

        @app.job("plain", max_attempts=1)
        def plain(job: RunningJob[None]) -> str:
            self.ran.append(job.id)
            return "done"

        @app.job("block", max_attempts=1)
        def block(job: RunningJob[None]) -> str:
            self.ran.append(job.id)
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.id,))
            return "done"

        @app.job("bad", max_attempts=1)
        def bad(job: RunningJob[None]) -> str:
            self.ran.append(job.id)
            raise ValueError("it cannot be done")

        @app.job("slow", max_attempts=1, lease=Lease(duration=3, renew_every=0.05))
        def slow(job: RunningJob[None]) -> str:
            self.ran.append(job.id)
            self.entered.release()
            self.gate.wait(20)
            return "done"

        @app.job("lost", max_attempts=3, backoff=Backoff(initial=0, jitter=0))
        def lost(job: RunningJob[None]) -> str:
            self.ran.append(job.id)
            return "done"

    def outcomes(self, job_id: str) -> list[str]:
        return [attempt.outcome for attempt in self.app.attempts(job_id)]


@pytest.fixture
def shop(pg_app: Queuert) -> Workshop:
    return Workshop(pg_app)


@pytest.fixture
def worker(shop: Workshop) -> Iterator[Callable[[], Worker]]:
    """Starts workers, which are stopped whatever becomes of them."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(shop.app.worker(concurrency=2, poll_interval=0.1, reap_interval=0.1))
        started[-1].start()
        return started[-1]

    yield start
    shop.gate.set()
    for each in started:
        if each.error is None:
            each.stop(10)


def refused_twice(faults: PostgresFaults) -> Callable[[], bool]:
    before = faults.met
    return lambda: faults.met >= before + 2


@pytest.mark.parametrize("kind", ["plain", "block"])
def test_outages_at_a_completion_cost_no_result_and_no_attempt(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], kind: str
) -> None:
    running = worker()
    for code in OUTAGES:
        refused = refused_twice(faults)
        faults.begin("complete", code)
        chain = shop.app.start_chain(kind)
        eventually(refused, 20)
        faults.end()
        assert shop.app.wait_for(chain, timeout=20).output == "done", code
        outcomes = shop.outcomes(chain.id)
        assert outcomes == ["rescheduled"] * (len(outcomes) - 1) + ["succeeded"], code
        if kind == "plain":
            assert shop.ran.count(chain.id) == 1, code
    assert running.error is None


def test_a_completion_that_is_refused_for_its_data_fails_alone(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker]
) -> None:
    running = worker()
    for code in JOBS:
        for kind in ("plain", "block"):
            faults.begin("complete", code)
            chain = shop.app.start_chain(kind)
            failed = shop.app.wait_for(chain, timeout=20, raise_on_failure=False)
            faults.end()
            assert (failed.status, shop.ran.count(chain.id)) == ("failed", 1), code
            assert failed.error_code, code
            assert shop.app.wait_for(shop.app.start_chain(kind), timeout=20).output == "done"
    assert running.error is None


@pytest.mark.parametrize("kind", ["plain", "block"])
def test_a_broken_set_up_stops_the_worker_and_gives_back_what_it_has_in_hand(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], kind: str
) -> None:
    for code in SET_UPS:
        running = worker()
        faults.begin("complete", code)
        chain = shop.app.start_chain(kind)
        eventually(lambda running=running: running.error is not None, 20)
        with pytest.raises(psycopg.Error) as raised:
            running.stop(10)
        assert raised.value.sqlstate == code
        job = found(shop.app.get_job(chain.id))
        assert (job.status, job.attempts_used, job.leased_by) == ("pending", 0, None), code
        assert set(shop.outcomes(chain.id)) == {"rescheduled"}
        faults.end()
        again = worker()
        assert shop.app.wait_for(chain, timeout=20).output == "done", code
        assert again.stop(10)


@pytest.mark.parametrize("code", [*FEW, *SOME[Trouble.JOB]])
def test_a_claim_that_is_refused_is_made_again(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults.begin("claim", code)
    chain = shop.app.start_chain("plain")
    running = worker()
    eventually(refused_twice(faults), 20)
    faults.end()
    assert shop.app.wait_for(chain, timeout=20).output == "done"
    assert running.error is None
    assert shop.outcomes(chain.id) == ["succeeded"]
    said = [record.message for record in caplog.records if "cannot be claimed" in record.message]
    assert len(said) <= 1, "once is enough"


@pytest.mark.parametrize("code", [*FEW, *SOME[Trouble.JOB]])
def test_a_renewal_that_is_refused_is_made_again(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], code: str
) -> None:
    chains = [shop.app.start_chain("slow") for _ in range(2)]
    running = worker()
    for _ in chains:
        assert shop.entered.acquire(timeout=10)
    faults.begin("renew", code)
    eventually(refused_twice(faults), 20)
    faults.end()
    running.events.watch()
    running.events.wait("renewed", count=2)
    shop.gate.set()
    for chain in chains:
        assert shop.app.wait_for(chain, timeout=20).output == "done"
        assert shop.outcomes(chain.id) == ["succeeded"]
    assert running.error is None


@pytest.mark.parametrize("code", FEW)
def test_a_failure_that_cannot_be_written_is_held(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], code: str
) -> None:
    faults.begin("fail", code)
    chain = shop.app.start_chain("bad")
    running = worker()
    eventually(refused_twice(faults), 20)
    faults.end()
    assert shop.app.wait_for(chain, timeout=20, raise_on_failure=False).error_code == "INTERNAL:ValueError"
    assert (shop.ran.count(chain.id), shop.outcomes(chain.id)) == (1, ["failed"])
    assert running.error is None


@pytest.mark.parametrize("code", SOME[Trouble.JOB])
def test_a_failure_that_is_refused_for_its_data_leaves_the_worker_alone(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], code: str
) -> None:
    faults.begin("fail", code)
    shop.app.start_chain("bad")
    running = worker()
    eventually(refused_twice(faults), 20)
    faults.end()
    assert shop.app.wait_for(shop.app.start_chain("plain"), timeout=20).output == "done"
    assert running.error is None


@pytest.mark.parametrize("code", [*FEW, *SOME[Trouble.JOB]])
def test_a_lost_job_is_taken_back_when_the_database_lets_us(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], code: str
) -> None:
    chain = shop.app.start_chain("lost")
    faults.execute(
        "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'gone', lease_token = 1,"
        " leased_until = now() - interval '1 minute', last_attempt_at = now()"
    )
    faults.begin("reap", code)
    running = worker()
    eventually(refused_twice(faults), 20)
    faults.end()
    assert shop.app.wait_for(chain, timeout=20).output == "done"
    assert shop.outcomes(chain.id) == ["lost", "succeeded"]
    assert running.error is None


@pytest.mark.parametrize("act", ["claim", "renew", "fail", "reap"])
def test_a_broken_set_up_stops_the_worker_wherever_it_is_met(
    faults: PostgresFaults, shop: Workshop, worker: Callable[[], Worker], act: str
) -> None:
    for code in SOME[Trouble.SET_UP]:
        shop.gate.clear()
        shop.app.start_chain({"claim": "plain", "renew": "slow", "fail": "bad", "reap": "lost"}[act])
        if act == "reap":
            faults.execute(
                "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'gone', lease_token = 1,"
                " leased_until = now() - interval '1 minute', last_attempt_at = now() WHERE status = 'pending'"
            )
        faults.begin(act, code)
        running = worker()
        eventually(lambda running=running: running.error is not None, 20)
        shop.gate.set()
        assert getattr(running.error, "sqlstate", None) == code
        faults.end()
        with pytest.raises(psycopg.Error):
            running.stop(10)
        faults.execute("DELETE FROM queuert_job")


def test_a_start_that_is_refused_leaves_nothing_and_the_next_one_goes_through(faults: PostgresFaults, shop: Workshop) -> None:
    for code in (*FEW, *SOME[Trouble.JOB], *SOME[Trouble.SET_UP]):
        faults.begin("start", code)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - of any class
            shop.app.start_chain("plain")
        assert "SchemaVersionError" in type(raised.value).__name__ or getattr(raised.value, "sqlstate", None) == code
        faults.end()
    assert faults.execute("SELECT count(*) FROM queuert_job") == [(0,)]
    assert shop.app.start_chain("plain").status == "pending"


def test_a_table_lock_beyond_the_statement_timeout_is_waited_out(faults: PostgresFaults, pg_url: str, shop: Workshop) -> None:
    """A migration of somebody else's: every statement of ours is cancelled by the server until it is over."""
    chain = shop.app.start_chain("slow")
    name = faults.execute("SELECT current_database()")[0][0]
    faults.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 150')
    ran, entered, gate = [], threading.Event(), threading.Event()
    with Queuert(pg_url) as app:

        @app.job("slow", max_attempts=1, lease=Lease(duration=30, renew_every=0.1))
        def slow(job: RunningJob[None]) -> str:
            ran.append(job.id)
            entered.set()
            gate.wait(20)
            return "done"

        with app.worker(concurrency=2, poll_interval=0.1, reap_interval=0.1) as running:
            assert entered.wait(10)
            with psycopg.connect(pg_url) as locker:
                locker.execute("SET statement_timeout = 0")
                locker.execute("LOCK TABLE queuert_job IN ACCESS EXCLUSIVE MODE")
                gate.set()
                cancelled = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                for _ in range(3):
                    eventually(lambda: faults.execute(cancelled)[0][0] > 0)
                    eventually(lambda: faults.execute(cancelled)[0][0] == 0)
                locker.rollback()
            assert app.wait_for(chain, timeout=20).output == "done"
            assert running.error is None
        assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]
        assert ran == [chain.id]

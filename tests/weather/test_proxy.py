"""A network that cuts, delays, half-closes and swallows, under load: the ledger is exact at the end."""

from __future__ import annotations

import random
import threading
from collections import Counter

import psycopg
import pytest
from support import eventually
from weather import Weather

from queuert import Backoff, Lease, NewChain, Queuert, RunningJob

JOBS = 150


@pytest.mark.parametrize("what", ["cut", "half_close", "delay", "black_hole"])
def test_the_ledger_is_exact_whatever_the_network_does(
    pg_app: Queuert, pg_url: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("leases", "dispatcher", "reaper", "completer"):
        monkeypatch.setattr(f"queuert.worker.{module}.DEADLINE", 1.0)
    monkeypatch.setattr("queuert.worker.watchdog.INTERVAL", 0.1)
    with pg_app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (job_id text NOT NULL)")
    pg_app.declare("write")
    pg_app.declare("plain")
    stop = threading.Event()
    with Weather(pg_url) as weather, Queuert(weather.url) as app:

        @app.job("write", lease=Lease(duration=3), backoff=Backoff(initial=0.05, jitter=0))
        def write(job: RunningJob[int]) -> None:
            with job.complete() as tx:
                tx.execute("SET LOCAL statement_timeout = '5s'")
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.id,))

        app.job("plain", lease=Lease(duration=3), backoff=Backoff(initial=0.05, jitter=0))(lambda job: job.input)

        def blow() -> None:
            while not stop.wait(random.uniform(0.1, 0.4)):
                if what == "delay":
                    weather.delay = random.choice([0.0, 0.01, 0.05])
                elif what != "black_hole":
                    getattr(weather, what)()

        wind = threading.Thread(target=blow, name="test-wind")
        with app.worker(concurrency=6, poll_interval=0.2, reap_interval=0.3) as worker:
            if what == "black_hole":
                # While nothing is under way in a handler's own transaction, which has no deadline of ours.
                eventually(lambda: worker.running)
                weather.black_hole()
            wind.start()
            try:
                chains = []
                for start in range(0, JOBS, 30):
                    kinds = [NewChain("write" if number % 2 else "plain", number) for number in range(start, start + 30)]
                    chains += pg_app.start_chains(kinds)
                with psycopg.connect(pg_url, autocommit=True) as looker:
                    open_ = "SELECT count(*) FROM queuert_job WHERE status <> 'completed'"
                    eventually(lambda: looker.execute(open_).fetchone() == (0,), 80, every=0.1)
                    written = Counter(row[0] for row in looker.execute("SELECT job_id FROM ledger").fetchall())
            finally:
                stop.set()
                wind.join()
                weather.delay = 0.0
            assert worker.error is None
    assert written == {chain.id: 1 for chain in chains if chain.type_name == "write"}

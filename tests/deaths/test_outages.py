"""The database goes away under a worker, which goes on by itself when it is back: nothing is lost, nothing is done twice.

No attempt is used up by an outage, so the jobs here have only one.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import eventually
from support.audit import check_attempts, check_no_orphans, ledger, outcomes, rows, statuses, unfinished
from support.fleet import Fleet, Worker
from support.inside import database_of
from support.own_postgres import OwnServer, own_server
from support.silence import SilentProxy
from workload import prepare

from queuert import Chain, NewChain, Queuert, WaitTimeoutError

PROMPT = 2.0
"""Seconds in which a job starts that somebody is told of: far below the poll interval of these workers."""
ONE_ATTEMPT = {"max_attempts": 1}
WORKER = {"concurrency": 4, "poll_interval": 60}

MakeFleet = Callable[..., Fleet]


def enqueue(client: Queuert, number: int) -> list[Chain]:
    """Chains of every kind."""
    kinds = ["first", "leaf", "quick"]
    chains = client.start_chains([NewChain(kinds[n % 3], n, max_attempts=1) for n in range(number)])
    join = NewChain("join", blockers=[chain for chain in chains if chain.type_name == "leaf"], max_attempts=1)
    return [*chains, *client.start_chains([join])]


def check_exactly_once(client: Queuert) -> None:
    assert set(statuses(client)) == {"completed"}
    writers = rows(client, "SELECT id FROM queuert_job WHERE type_name IN ('first', 'second', 'leaf', 'join')")
    assert ledger(client) == {job_id: 1 for (job_id,) in writers}
    # A connection that was lost makes an attempt run again, and a lease that could not be renewed in time does.
    for each in outcomes(client).values():
        assert each == ["rescheduled"] * (len(each) - 1) + ["succeeded"]
    check_attempts(client)
    check_no_orphans(client)


def is_prompt(client: Queuert) -> bool:
    """Whether a job that is enqueued now is told of, and run."""
    try:
        client.wait_for(client.start_chain("quick"), timeout=PROMPT)
    except WaitTimeoutError:
        return False
    return True


def goes_on(client: Queuert) -> None:
    """Soon jobs start promptly again, and everything is done."""
    eventually(lambda: is_prompt(client), 20)
    eventually(lambda: not unfinished(client), 20)


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_postgres_is_stopped_and_started_again(server: OwnServer, make_fleet: MakeFleet, mode: Any) -> None:
    name = f"stopped_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    url = server.url.replace("/postgres?", f"/{name}?")
    assert name in url
    with Queuert(url) as client:
        prepare(client)
        fleet = make_fleet(url, worker=WORKER, types={**ONE_ATTEMPT, "lease": 2})
        with fleet.explained():
            worker = fleet.start()
            chains = enqueue(client, 150)
            fleet.marks.wait("started", 20)
            server.stop(mode)
            assert not is_reachable(url)
            server.start()
            for chain in chains:
                client.wait_for(chain, timeout=30)
            goes_on(client)
            check_exactly_once(client)
            assert worker.stop() == 0


def is_reachable(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


TERMINATE = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def pg_client(pg_url: str) -> Iterator[Queuert]:
    with Queuert(pg_url) as client:
        prepare(client)
        yield client


def test_all_backends_are_terminated_again_and_again(pg_client: Queuert, pg_url: str, make_fleet: MakeFleet) -> None:
    fleet = make_fleet(pg_url, worker=WORKER, types=ONE_ATTEMPT)
    with fleet.explained(), psycopg.connect(pg_url, autocommit=True) as admin:
        worker = fleet.start()
        enqueue(pg_client, 300)
        for _ in range(8):
            started = fleet.marks.count("started", worker.pid)
            eventually(lambda goal=started + 10: fleet.marks.count("started", worker.pid) >= goal, 20)
            admin.execute(TERMINATE)
        eventually(lambda: not unfinished(pg_client), 30)
        goes_on(pg_client)
        check_exactly_once(pg_client)
        assert worker.stop() == 0


@pytest.mark.parametrize("what", ["its socket goes nowhere", "UNLISTEN *"])
def test_a_listener_that_hears_nothing_is_replaced(pg_client: Queuert, pg_url: str, make_fleet: MakeFleet, what: str) -> None:
    with SilentProxy(pg_url) as proxy:
        fleet = make_fleet(pg_url, worker=WORKER, app={"listen_url": proxy.url}, heartbeat=0.5)
        with fleet.explained():
            worker = fleet.start()
            pg_client.wait_for(pg_client.start_chain("quick"), timeout=20)
            assert is_prompt(pg_client)
            opened = proxy.opened
            if what == "UNLISTEN *":
                proxy.say(what)
            else:
                proxy.fall_silent()
            # Who is told of nothing finds this one with the first look of the new connection.
            unheard = pg_client.start_chain("quick")
            pg_client.wait_for(unheard, timeout=20)
            eventually(lambda: proxy.opened > opened)
            pg_client.wait_for(pg_client.start_chain("quick"), timeout=20)
            assert is_prompt(pg_client)
            assert worker.stop() == 0


# SQLite


def test_the_file_is_locked_for_longer_than_the_busy_timeout(sqlite_path: Path, make_fleet: MakeFleet) -> None:
    url, gate = f"sqlite:///{sqlite_path}", sqlite_path.with_name("gate")
    with Queuert(url) as client:
        prepare(client)
        fleet = make_fleet(url, worker=WORKER | {"concurrency": 6}, app={"busy_timeout": 0.5}, types=ONE_ATTEMPT)
        ways = ["return", "complete", "prepare"] * 2
        slow = client.start_chains([NewChain("slow", {"how": how, "gate": str(gate)}, max_attempts=1) for how in ways])
        with fleet.explained():
            worker = fleet.start()
            fleet.marks.wait("started", len(slow))
            enqueue(client, 60)
            with locked(sqlite_path):
                gate.touch()
                # Those that write give up, after several busy timeouts; the others wait with what they returned.
                fleet.marks.wait("error", 4)
                assert {mark.detail for mark in fleet.marks.all("error")} == {"OperationalError"}
                wait_for_the_lease_to_end(client, slow)
            for chain, how in zip(slow, ways, strict=True):
                assert client.wait_for(chain, timeout=20).output == how
            eventually(lambda: not unfinished(client), 20)
            goes_on(client)
            assert set(statuses(client)) == {"completed"}
            written = ledger(client)
            assert [written[chain.id] for chain in slow] == [0, 1, 1] * 2
            for each in outcomes(client).values():
                assert each == ["rescheduled"] * (len(each) - 1) + ["succeeded"]
            writers = "SELECT id FROM queuert_job WHERE type_name IN ('first', 'second', 'leaf', 'join')"
            assert all(written[job_id] == 1 for (job_id,) in rows(client, writers))
            assert set(written.values()) == {1}
            check_attempts(client)
            check_no_orphans(client)
            assert is_well(worker)


def locked(path: Path) -> closing[sqlite3.Connection]:
    """Somebody else's transaction, for as long as the block."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    return closing(conn)


def wait_for_the_lease_to_end(client: Queuert, chains: list[Chain]) -> None:
    now = "strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'"
    expired = f"SELECT count(*) FROM queuert_job WHERE type_name = 'slow' AND leased_until < {now}"
    database: Any = database_of(client)
    with closing(sqlite3.connect(database.path)) as conn:
        eventually(lambda: conn.execute(expired).fetchone()[0] == len(chains))


def is_well(worker: Worker) -> bool:
    return worker.running and worker.stop() == 0

"""Workers killed in the middle of anything: every chain ends, and nothing that `complete()` wrote is there twice."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from support import eventually
from support.audit import check_attempts, check_no_orphans, ledger, outcomes, rows, statuses, unfinished
from support.clocks import database_now
from support.fleet import Fleet
from workload import POINTS

from queuert import NewChain, Queuert

LEASE, REAP_INTERVAL, BACKOFF = 1.0, 0.2, 0.1
SLACK = 5.0

# What was committed when the process died, and so what becomes of the job: the attempts, the rows of prepare() and complete().
EXPECTED = {
    "claimed": (["lost", "succeeded"], 1, 1),
    "handler": (["lost", "succeeded"], 1, 1),
    "prepare": (["lost", "succeeded"], 1, 1),
    "prepared": (["lost", "succeeded"], 2, 1),
    "complete": (["lost", "succeeded"], 2, 1),
    "left": (["lost", "succeeded"], 2, 1),
    "committed": (["succeeded"], 1, 1),
    "returned": (["lost", "succeeded"], 0, 0),
    "written": (["succeeded"], 0, 0),
}


@pytest.mark.usefixtures("sound")
def test_a_worker_that_dies_at_any_point_of_an_attempt(client: Queuert, fleet: Fleet) -> None:
    """One process for each point. It is killed as soon as it is there, since it may hold SQLite's one write lock."""
    chains = {point: client.start_chain(f"stay-{point}") for point in POINTS}
    workers = {}
    for point in POINTS:
        worker = fleet.start(stay=point, worker={"types": [f"stay-{point}"]})
        workers[worker.pid] = worker

    def kill_those_that_are_there() -> bool:
        for mark in fleet.marks.all("at"):
            if mark.pid in workers:
                workers.pop(mark.pid).kill()
        return not workers

    with fleet.explained():
        eventually(kill_those_that_are_there, 30)
        killed_at = database_now(client)
        assert {mark.detail: mark.job_id for mark in fleet.marks.all("at")} == {p: c.id for p, c in chains.items()}

        fleet.start()
        ended = {point: client.wait_for(chain, timeout=30) for point, chain in chains.items()}
        assert {point: chain.output for point, chain in ended.items()} == {point: point for point in POINTS}
        eventually(lambda: not unfinished(client))

        tries = outcomes(client)
        prepared = [job_id for (job_id,) in rows(client, "SELECT job_id FROM prepared")]
        written = ledger(client)
        found = {p: (tries[c.id], prepared.count(c.id), written[c.id]) for p, c in chains.items()}
        assert found == EXPECTED
        check_no_orphans(client)
        check_attempts(client)
        for point, chain in chains.items():
            if EXPECTED[point][0] == ["lost", "succeeded"]:
                check_recovery(client, chain.id, killed_at)
    runs = [mark.attempt for mark in fleet.marks.all("started") if mark.job_id == chains["claimed"].id]
    assert runs == [2], "it was claimed by the one that died, and never started there"


def check_recovery(client: Queuert, job_id: str, killed_at: datetime) -> None:
    """Taken back within the lease and the reap interval, and run again after its backoff."""
    lost, again = client.attempts(job_id)
    assert lost.error_code == "WORKER:LOST"
    assert lost.worker_id != again.worker_id
    assert lost.retry_at is not None
    assert lost.finished_at < killed_at + timedelta(seconds=LEASE + REAP_INTERVAL + SLACK)
    assert timedelta(seconds=BACKOFF * 0.9) < lost.retry_at - lost.finished_at < timedelta(seconds=BACKOFF + 0.1)
    assert again.claimed_at is not None
    assert lost.retry_at <= again.claimed_at < lost.retry_at + timedelta(seconds=SLACK)


KILLS = 10
CHAINS, FAN_INS, WIDTH = 50, 10, 4
JOBS = 3 * CHAINS + FAN_INS * (WIDTH + 1)
"""Enqueued for each kill: 2,000 in all."""


def enqueue(client: Queuert) -> None:
    """Chains of three steps, and jobs that wait for others."""
    client.start_chains([NewChain("first", number) for number in range(CHAINS)])
    leaves = client.start_chains([NewChain("leaf", number % WIDTH) for number in range(FAN_INS * WIDTH)])
    client.start_chains([NewChain("join", blockers=leaves[start : start + WIDTH]) for start in range(0, len(leaves), WIDTH)])


@pytest.mark.slow
@pytest.mark.usefixtures("sound")
def test_kills_at_random_over_two_thousand_jobs(client: Queuert, fleet: Fleet) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    crew: dict[str, Any] = {"size": 3, "timeout": 60, "worker": {"concurrency": 4}}

    def kill_somebody() -> None:
        """After some more jobs were started: who started the last one or anybody, at once or a moment later."""
        goal = fleet.marks.count("started") + chance.randrange(1, JOBS)
        enqueue(client)
        fleet.until(lambda: fleet.marks.count("started") >= goal, **crew)
        last = fleet.marks.all("started")[-1].pid
        busy = [worker for worker in fleet.running if worker.pid == last]
        time.sleep(chance.choice([0, chance.uniform(0, 0.02)]))  # nothing is waited for: any moment will do
        chance.choice([chance.choice(fleet.running), *busy]).kill()

    with fleet.explained():
        for _ in range(KILLS):
            kill_somebody()
        fleet.until(lambda: not unfinished(client), **crew)
        assert statuses(client) == {"completed": KILLS * JOBS}

        # None is missing, none is there twice.
        expected = rows(client, "SELECT id FROM queuert_job WHERE type_name IN ('first', 'second', 'leaf', 'join')")
        assert ledger(client) == {job_id: 1 for (job_id,) in expected}
        assert rows(client, "SELECT DISTINCT output FROM queuert_job WHERE type_name = 'join'") in ([("6",)], [(6,)])

        # Re-runs are counted, and no attempt ran twice.
        tries = outcomes(client)
        assert [job_id for job_id, each in tries.items() if each != ["lost"] * (len(each) - 1) + ["succeeded"]] == []
        assert sum(each.count("lost") for each in tries.values()) > 0
        starts = [(mark.job_id, mark.attempt) for mark in fleet.marks.all("started")]
        assert len(starts) == len(set(starts))
        assert {job_id for job_id, _ in starts} == set(tries)
        prepared = rows(client, "SELECT job_id, attempt FROM prepared")
        assert len(prepared) == len(set(prepared))
        check_attempts(client)
        check_no_orphans(client)

"""A process that stood still until another took its jobs over cannot change one row when it wakes up, and is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import eventually
from support.audit import check_attempts, check_no_orphans, outcomes, rows
from support.fleet import Fleet, Worker

from queuert import Backoff, Lease, Queuert, RunningJob

WAYS = ("prepare", "complete", "continue in complete", "continue", "return", "reschedule", "fail", "raise")
TABLES = ("queuert_job", "queuert_job_attempt", "queuert_job_event", "queuert_job_blocker", "ledger", "prepared")
RENEWED = ("leased_until", "heartbeat_at")


def contents(client: Queuert) -> dict[str, list[dict[str, Any]]]:
    """All rows there are, without what the renewal of a lease changes."""

    def table(name: str) -> list[dict[str, Any]]:
        with client.transaction() as tx:
            cursor = tx.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in cursor.description]
            found = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        return sorted(({k: v for k, v in row.items() if k not in RENEWED} for row in found), key=repr)

    return {name: table(name) for name in TABLES}


def freeze(worker: Worker, url: str) -> None:
    """Stop a process outside of its transactions: nobody can take over anything while it holds SQLite's write lock."""

    def stands() -> bool:
        worker.freeze()
        if is_free(url):
            return True
        worker.thaw()
        return False

    eventually(stands)


def is_free(url: str) -> bool:
    if not url.startswith("sqlite"):
        return True
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        conn.execute("ROLLBACK")
        return True


@contextmanager
def taking_over(url: str, hold: Path | None) -> Iterator[Queuert]:
    """A worker here, which completes the jobs, or keeps them running until a file appears."""
    with Queuert(url) as app:
        app.declare("third")

        @app.job("stalled", lease=Lease(duration=20), backoff=Backoff(initial=0.1, jitter=0))
        def handler(job: RunningJob[dict[str, Any]]) -> str:
            while hold is not None and not hold.exists() and not job.signal.wait(0.01):
                pass
            return f"attempt {job.attempt}"

        with app.worker(concurrency=2 * len(WAYS), reap_interval=0.2, poll_interval=0.2):
            yield app


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("then", ["completed", "running"])
def test_a_worker_that_stalled_changes_nothing_and_its_handlers_are_told(
    client: Queuert, fleet: Fleet, url: str, tmp_path: Path, then: str
) -> None:
    gate, release = tmp_path / "gate", tmp_path / "release"
    jobs = {
        (how, told): client.start_chain("stalled", {"how": how, "told": told, "gate": str(gate)}).id
        for how in WAYS
        for told in (True, False)
    }
    with fleet.explained():
        stalled = fleet.start(worker={"concurrency": len(jobs)})
        fleet.marks.wait("started", len(jobs))
        freeze(stalled, url)
        with taking_over(url, release if then == "running" else None) as other:
            if then == "running":
                # One suspect at a time would run, and the first one is held.
                eventually(lambda: len(outcomes(client)) == len(jobs), 20)
                with other.transaction() as tx:
                    tx.execute("UPDATE queuert_job SET suspect = false")
            eventually(lambda: rows(client, "SELECT DISTINCT status, attempt FROM queuert_job") == [(then, 2)], 30)
            before = contents(client)

            gate.touch()
            stalled.thaw()
            tried = {mark.job_id: mark.detail for mark in fleet.marks.wait("tried", len(jobs))}
            assert stalled.stop() == 0
            assert contents(client) == before
            release.touch()
            for job_id in jobs.values():
                assert client.wait_for(job_id, timeout=20).output == "attempt 2"
        reason = "already_completed" if then == "completed" else "taken_by_another_worker"
        told = {mark.job_id: mark.detail for mark in fleet.marks.all("told")}
        assert told == {jobs[how, True]: reason for how in WAYS}
        # In complete() it is the commit that is refused, after the handler's end, unless the handler was told before.
        for blocked in ((how, told) for how, told in jobs if how == "prepare" or (told and "complete" in how)):
            assert tried[jobs[blocked]] == "JobTakenByAnotherWorkerError"
        assert list(outcomes(client).values()) == [["lost", "succeeded"]] * len(jobs)
        for job_id in jobs.values():
            lost, succeeded = client.attempts(job_id)
            assert f":{stalled.pid}:" in lost.worker_id
            assert f":{stalled.pid}:" not in succeeded.worker_id
        check_attempts(client)
        check_no_orphans(client)

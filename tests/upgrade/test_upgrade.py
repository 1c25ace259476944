"""A database of the last release is upgraded while both releases work on it: every chain ends, and ends once."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from load import HELD, PLAIN, WRITERS
from support import eventually
from support.audit import check_attempts, check_no_orphans, ledger, rows, statuses, unfinished
from support.fleet import Fleet

from queuert import Queuert

ENOUGH = 10  # rounds of each enqueuer, and jobs of each worker, after the upgrade


@pytest.mark.slow
def test_both_releases_work_side_by_side_while_the_database_is_upgraded(url: str, fleet: Fleet, last_release: Path) -> None:
    with fleet.explained(), Queuert(url) as app:
        assert fleet.start(release=last_release, role="fill").wait() == 0
        assert app.migration_status().applied == ("0001_initial",)
        victim = fleet.start(release=last_release, role="worker", worker={"types": ["orphaned"]})
        assert victim.wait() == -9
        crew = [fleet.start(release=last_release, role=role) for role in ("worker", "enqueuer")]
        eventually(lambda: held_by(fleet, crew[0].pid) and fleet.marks.count("round") >= ENOUGH, 30)

        assert fleet.start(role="migrator").wait() == 0
        assert app.migration_status().pending == ()
        fleet.marks.write("migrated")
        crew += [fleet.start(role=role) for role in ("worker", "enqueuer")]
        crew += [fleet.start(release=last_release, role=role) for role in ("worker", "enqueuer")]

        eventually(lambda: all(count >= ENOUGH for count in since_the_upgrade(fleet, [each.pid for each in crew]).values()), 60)
        Path(fleet.options["stop"]).touch()
        assert [each.wait() for each in crew[1::2]] == [0, 0, 0]
        Path(fleet.options["gate"]).touch()
        eventually(lambda: not unfinished(app), 30, every=0.1)
        assert [each.stop() for each in crew[0::2]] == [0, 0, 0]

        libraries = {mark.pid: mark.detail for mark in fleet.marks.all("runs")}
        assert [libraries[each.pid] == str(last_release) for each in crew] == [True, True, False, False, True, True]
        check_chains(app)
        check_keys(app, fleet)
        check_attempts(app)
        assert failures(app) == []
        check_no_orphans(app)
        check_file(url)


def held_by(fleet: Fleet, pid: int) -> bool:
    """Whether the process runs the jobs that go on until the gate opens."""
    held = [mark for mark in fleet.marks.all("started") if mark.detail == "held"]
    return len(held) == HELD and {mark.pid for mark in held} == {pid}


def since_the_upgrade(fleet: Fleet, pids: list[int]) -> dict[int, int]:
    """How many jobs each process has begun, or rounds it has gone."""
    marks = fleet.marks.all()
    after = [mark.event for mark in marks].index("migrated")
    found = Counter(mark.pid for mark in marks[after:])
    return {pid: found[pid] for pid in pids}


def check_chains(app: Queuert) -> None:
    """All are completed, with what they had to give, and have written what they had to write once."""
    query = "SELECT id, output FROM queuert_job WHERE type_name = ?"
    jobs = {name: {job_id: _json(output) for job_id, output in rows(app, query, name)} for name in (*WRITERS, *PLAIN)}
    assert statuses(app) == {"completed": sum(map(len, jobs.values()))}
    assert ledger(app) == dict.fromkeys((job_id for name in WRITERS for job_id in jobs[name]), 1)
    ordered = [chain_id for (chain_id,) in rows(app, "SELECT chain_id FROM orders")]
    assert sorted(ordered) == sorted(jobs["first"])
    assert len(jobs["first"]) == len(jobs["second"]) == len(jobs["third"])
    wrong = "SELECT t.id FROM queuert_job t JOIN queuert_job f ON f.id = t.chain_id WHERE t.type_name = 'third' AND "
    assert not rows(app, wrong + "CAST(CAST(t.output AS text) AS integer) <> CAST(CAST(f.input AS text) AS integer) + 3")
    inputs = """
        SELECT b.job_id, l.input FROM queuert_job_blocker b JOIN queuert_job l ON l.id = b.blocked_by_chain_id
        ORDER BY b.job_id, b."index"
    """
    expected: dict[str, list[int]] = {}
    for job_id, input_ in rows(app, inputs):
        expected.setdefault(job_id, []).append(_json(input_))
    assert {**jobs["join"], **jobs["gather"]} == expected
    assert len(jobs["held"]) == HELD


def check_keys(app: Queuert, fleet: Fleet) -> None:
    """Whoever asked, on whichever release, was given the one chain of the key."""
    given: dict[str, set[str]] = {}
    for mark in fleet.marks.all("round"):
        for key, chain_id in mark.detail.items():
            given.setdefault(key, set()).add(chain_id)
    assert [key for key, chains in given.items() if len(chains) != 1] == []
    found = rows(app, "SELECT deduplication_key, chain_id FROM queuert_job WHERE deduplication_key IS NOT NULL")
    assert sorted(found) == sorted((key, *chains) for key, chains in given.items())


def failures(app: Queuert) -> list[tuple[str, str]]:
    """The attempts that failed: what a handler has done right could not be stored."""
    return rows(app, "SELECT job_id, error_detail FROM queuert_job_attempt WHERE outcome NOT IN ('succeeded', 'lost')")


def check_file(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
            assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert conn.execute("PRAGMA foreign_key_check").fetchall() == []


def _json(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def test_the_last_release_does_not_migrate_a_newer_database(url: str, fleet: Fleet, last_release: Path) -> None:
    with fleet.explained(), Queuert(url) as app:
        before = app.migrate()
        refused = fleet.start(release=last_release, role="migrator")
        assert refused.wait() != 0
        assert "The database is newer than this library" in refused.log
        assert app.migration_status() == before

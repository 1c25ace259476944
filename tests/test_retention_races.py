"""Cleaning up while others do the opposite: two at once, blockers named and jobs retried meanwhile, a kill in the middle."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.clocks import is_postgres
from support.racing import together
from support.waiting import eventually

import queuert
from queuert import ChainNotFoundError, Dedup, JobStateError, NewChain, Queuert, Retention
from queuert.chains.retention import BATCH

EVERYTHING = Retention(0, 0, 0)


@pytest.fixture
def app(app: Queuert) -> Queuert:
    app.declare("work")
    return app


@pytest.fixture
def another(app: Queuert, target: str) -> Iterator[Callable[[], Queuert]]:
    """Makes apps with connections of their own, on a database that allows it."""
    made: list[Queuert] = []

    def make() -> Queuert:
        if "memory" in target:
            return app
        made.append(Queuert(target))
        made[-1].declare("work")
        return made[-1]

    yield make
    for each in made:
        each.close()


def closed(app: Queuert, number: int, status: str = "completed") -> list[str]:
    """Chains that may go at once."""
    ids = [chain.id for chain in app.start_chains([NewChain("work")] * number)]
    execute(app, f"UPDATE queuert_job SET status = '{status}', completed_at = scheduled_at WHERE status = 'pending'")
    return ids


def execute(app: Queuert, sql: str) -> list[Any]:
    with app.transaction() as tx:
        done = tx.execute(sql)
        return list(done.fetchall()) if done.description else []


def count(app: Queuert, table: str, where: str = "1 = 1") -> int:
    return int(execute(app, f"SELECT count(*) FROM queuert_{table} WHERE {where}")[0][0])


def assert_whole(app: Queuert) -> None:
    """Nothing is orphaned, and whatever is not closed still has all that it waited for."""
    for table in ("job_attempt", "job_event", "job_blocker"):
        assert count(app, table, "job_id NOT IN (SELECT id FROM queuert_job)") == 0, table
    assert count(app, "job_blocker", "blocked_by_chain_id NOT IN (SELECT id FROM queuert_job)") == 0
    blockers = "(SELECT count(*) FROM queuert_job_blocker b WHERE b.job_id = queuert_job.id)"
    assert count(app, "job", f"status NOT IN ('completed', 'cancelled') AND blocker_count <> {blockers}") == 0


def test_two_that_clean_up_at_once_delete_everything_once(app: Queuert, another: Callable[[], Queuert]) -> None:
    closed(app, 5 * BATCH)
    cleaners = [another() for _ in range(3)]
    cleaned = together(*(lambda each=each: each.cleanup(EVERYTHING) for each in cleaners))
    assert sum(deleted["completed"] for deleted in cleaned) == 5 * BATCH
    assert count(app, "job") == 0
    assert_whole(app)


def test_what_is_named_as_a_blocker_meanwhile_stays_or_was_gone_before(app: Queuert, another: Callable[[], Queuert]) -> None:
    old = closed(app, 3 * BATCH)
    over = threading.Event()

    def name_blockers(app: Queuert) -> list[tuple[str, list[str]]]:
        started = []
        while not over.is_set():
            chosen = random.sample(old, 2)
            with suppress(ChainNotFoundError):
                started.append((app.start_chain("work", blockers=chosen).id, chosen))
        return started

    def clean(app: Queuert) -> list[Any]:
        try:
            app.cleanup(EVERYTHING)
        finally:
            over.set()
        return []

    namers = [another() for _ in range(2)]
    _, *started = together(lambda: clean(another()), *(lambda each=each: name_blockers(each) for each in namers))
    for chain_id, chosen in (pair for pairs in started for pair in pairs):
        assert [chain.id for chain in app.get_job_blockers(chain_id)] == chosen
    assert_whole(app)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_job_that_is_retried_meanwhile_has_all_its_blockers_or_is_refused(
    app: Queuert, another: Callable[[], Queuert], status: str
) -> None:
    blockers = closed(app, BATCH, status)
    waiting = [app.start_chain("work", blockers=[each]).id for each in blockers]
    app.cancel_chains(waiting)
    retrying = another()

    def retry() -> int:
        done = 0
        for chain_id in random.sample(waiting, len(waiting)):
            with suppress(JobStateError):
                done += len(retrying.retry_chains([chain_id]))
        return done

    policy = Retention(completed=0, failed=0, cancelled=None)
    retried, deleted = together(retry, lambda: another().cleanup(policy)[status])
    assert retried + deleted == BATCH, "either the blocker went, or its job could be retried"
    assert_whole(app)


def test_deleting_by_hand_does_not_take_a_blocker_from_a_job_that_is_retried(
    app: Queuert, another: Callable[[], Queuert]
) -> None:
    blockers = closed(app, 60, "failed")
    waiting = [app.start_chain("work", blockers=[each]).id for each in blockers]
    app.cancel_chains(waiting)
    retrying, deleting = another(), another()

    def retry() -> None:
        for chain_id in waiting:
            with suppress(JobStateError):
                retrying.retry_chain(chain_id)

    def delete() -> None:
        for chain_id in blockers:
            with suppress(queuert.BlockerReferenceError):
                deleting.delete_chain(chain_id)

    together(retry, delete)
    assert_whole(app)


def test_keys_that_are_used_again_meanwhile_stay_unique(app: Queuert, another: Callable[[], Queuert]) -> None:
    keys = [f"k{number}" for number in range(3)]
    held: Counter[str] = Counter()
    guard, over = threading.Lock(), threading.Event()

    def use(app: Queuert) -> int:
        started = 0
        for _ in range(40):
            key = random.choice(keys)
            chain = app.start_chain("work", dedup=Dedup(key))
            if chain.deduplicated:
                continue
            started += 1
            with guard:
                held[key] += 1
                assert held[key] == 1, "two open chains have the key"
            with app.complete_chain(chain.id) as tail:
                with guard:
                    held[key] -= 1
                tail.finish()
        return started

    def clean(app: Queuert) -> int:
        deleted = 0
        while not over.is_set():
            deleted += app.cleanup(EVERYTHING)["completed"]
        return deleted

    def use_and_end() -> int:
        try:
            return sum(together(*(lambda each=each: use(each) for each in (another(), another(), another()))))
        finally:
            over.set()

    started, deleted = together(use_and_end, lambda: clean(another()))
    assert started == deleted + app.cleanup(EVERYTHING)["completed"]
    assert count(app, "job") == count(app, "job_key") == 0


def test_it_waits_for_nobody(pg_url: str) -> None:
    with Queuert(pg_url) as app, psycopg.connect(pg_url) as conn:
        app.declare("work")
        old = closed(app, BATCH + 10)
        waiting = app.start_chain("work", blockers=[old[3]], conn=conn)  # not committed for a long time
        cleaned: list[dict[str, int]] = []
        thread = threading.Thread(target=lambda: cleaned.append(app.cleanup(EVERYTHING)), daemon=True)
        thread.start()
        thread.join(20)
        assert cleaned == [{"completed": BATCH + 9, "failed": 0, "cancelled": 0}]
        conn.commit()
        assert app.cleanup(EVERYTHING)["completed"] == 0, "somebody waits for it by now"
        assert [chain.id for chain in app.get_job_blockers(waiting.id)] == [old[3]]


def test_batches_that_take_long_are_made_smaller(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.chains.retention.LONG", -1.0)
    closed(app, 2 * BATCH)
    seen = [0]
    app.cleanup(EVERYTHING, progress=seen.append)
    sizes = [after - before for before, after in itertools.pairwise(seen)]
    assert sizes[:3] == [BATCH, BATCH // 2, BATCH // 4]
    assert sizes[-1] == 1
    assert count(app, "job") == 0


CLEANING = """
import os, sys
from queuert import Queuert, Retention
app = Queuert(os.environ["CLEANED_URL"])
app.cleanup(Retention(0, 0, 0), progress=lambda number: print(number, flush=True))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_after_a_kill_in_the_middle_the_next_one_goes_on(target: str) -> None:
    if "memory" in target:
        pytest.skip("belongs to one process")
    with Queuert(target) as app:
        app.migrate()
        app.declare("work")
        for _ in range(5):
            closed(app, 1_000)
        environment = {**os.environ, "CLEANED_URL": target, "PYTHONPATH": str(Path(queuert.__file__).parents[1])}
        process = subprocess.Popen([sys.executable, "-c", CLEANING], env=environment, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            for _ in range(3):
                assert process.stdout.readline(), "it has begun"
        finally:
            process.kill()
            process.communicate()
        assert 0 < count(app, "job") < 5_000
        assert_whole(app)
        eventually(lambda: app.cleanup(EVERYTHING)["completed"] == 0, 60)  # PostgreSQL takes a moment to notice
        assert count(app, "job") == 0
        if not is_postgres(app):
            assert execute(app, "PRAGMA integrity_check") == [("ok",)]

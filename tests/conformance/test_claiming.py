"""Claiming: who gets which job in what order, and when the next one is due."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from support.store import Store

from queuert.model import Status
from queuert.storage.records import Level

pytestmark = pytest.mark.conformance

UTC = timezone.utc


def backdate(store: Store, job_id: str, seconds: float) -> None:
    """Let a pending job have been due for some time."""
    at = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    store.sql("UPDATE {job} SET scheduled_at = :at WHERE id = :id", at=at, id=job_id)


def test_a_claim_turns_pending_into_running_under_a_lease(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim(worker="me", token=-(2**62), lease=30)
    assert job == store.job(chain)
    assert (job.status, job.attempt, job.leased_by, job.lease_token) == (Status.RUNNING, 1, "me", -(2**62))
    assert job.last_attempt_at is not None
    assert job.leased_until is not None
    assert job.leased_until - job.last_attempt_at == timedelta(seconds=30)
    assert job.heartbeat_at is None


def test_each_type_has_its_own_lease(store: Store) -> None:
    store.start("a")
    store.start("b")

    def work(session: object) -> list:
        return store.repository.claim_jobs(session, worker="w", token=1, leases={"a": 10.0, "b": 99.5}, limit=5)

    leases = {job.type_name: job.leased_until - job.last_attempt_at for job in store.write(work)}
    assert leases == {"a": timedelta(seconds=10), "b": timedelta(seconds=99.5)}


def test_a_claim_of_nothing_changes_nothing(store: Store) -> None:
    store.start("b")
    store.start("a", after=60)
    before = store.tables()
    assert store.claim(types=["a"]) == []
    assert store.claim(types=["unknown"]) == []
    assert store.claim(types=[]) == []
    assert store.tables() == before


def test_a_claim_takes_no_more_than_asked_and_each_job_once(store: Store) -> None:
    chains = store.start_many(25)
    taken: list[str] = []
    for expected in (10, 10, 5, 0):
        jobs = store.claim(10)
        assert len(jobs) == expected
        taken += [job.id for job in jobs]
    assert taken == [chain.id for chain in chains]


def test_the_highest_priority_comes_first_then_the_longest_due(store: Store) -> None:
    plan = [("a", 0, 50), ("b", 5, 1), ("a", 5, 9), ("c", -100, 999), ("b", 0, 70), ("c", 100, 1), ("a", 5, 5)]
    for type_name, priority, due_for in plan:
        backdate(store, store.start(type_name, due_for, priority=priority).id, due_for)
    order = sorted(plan, key=lambda entry: (-entry[1], -entry[2]))
    one_by_one = []
    for _ in range(4):
        (job,) = store.claim(1)
        one_by_one.append((job.type_name, job.priority, int(job.input)))
    rest = [(job.type_name, job.priority, int(job.input)) for job in store.claim(10)]
    assert one_by_one + rest == order


def test_only_the_types_asked_for_are_claimed(store: Store) -> None:
    for name in ("a", "b", "c", "a"):
        store.start(name, priority=1 if name == "b" else 0)
    assert [job.type_name for job in store.claim(types=["a", "c"])] == ["a", "c", "a"]


def test_future_and_blocked_jobs_hold_nobody_up(store: Store) -> None:
    store.start_many(30, "a", after=1000, priority=50)
    blocker = store.start("c", after=1000, priority=100)
    for _ in range(10):
        store.start("a", blockers=[blocker], priority=90)
    due = store.start("a", priority=-5)
    assert [job.id for job in store.claim(2)] == [due.id]


def test_jobs_that_the_worker_still_holds_are_left_alone(store: Store) -> None:
    chains = store.start_many(6)
    held = [chains[0].id, chains[2].id]
    assert [job.id for job in store.claim(2, held=held)] == [chains[1].id, chains[3].id]
    assert {job.id for job in store.claim(10)} == {chains[0].id, chains[2].id, chains[4].id, chains[5].id}


def test_suspects_are_claimed_apart(store: Store) -> None:
    first, second = store.start(priority=9), store.start()
    (job,) = store.claim(1)
    assert job.id == first.id
    store.end(job, outcome="lost", code="WORKER:LOST", after=0)
    assert store.job(first).suspect is True
    assert [j.id for j in store.claim(10)] == [second.id]
    (suspect,) = store.claim(10, suspect=True)
    assert (suspect.id, suspect.attempt, suspect.suspect) == (first.id, 2, True)
    store.complete(suspect)
    assert store.job(first).suspect is False


def test_levels_are_only_a_hint_of_where_to_start(store: Store) -> None:
    old, new = store.start(priority=3), store.start(priority=3)
    backdate(store, old.id, 100)
    since = store.job(new).scheduled_at
    hint = [Level("a", 3, since)]
    found = [job.id for job in store.claim(5, levels=hint)]
    # SQLite has no dead rows to step over and ignores the hint.
    assert found == ([new.id] if store.dialect == "postgres" else [old.id, new.id])
    assert [job.id for job in store.claim(5)] == ([old.id] if store.dialect == "postgres" else [])


def test_levels_of_other_types_are_not_claimed(store: Store) -> None:
    chain = store.start("b")
    hint = [Level("b", 0, store.job(chain).scheduled_at)]
    assert store.claim(5, ["a"], levels=hint) == []


def test_a_retried_claim_raises_the_attempt_number(store: Store) -> None:
    chain = store.start()
    for number in (1, 2, 3):
        (job,) = store.claim()
        assert job.attempt == number
        store.end(job, after=0)
    assert [attempt.attempt for attempt in store.attempts(chain)] == [1, 2, 3]


# Next due


def next_due(store: Store, *types: str) -> float | None:
    return store.read(lambda session: store.repository.next_due(session, types))


def test_nothing_pending_is_never_due(store: Store) -> None:
    blocker = store.start("b")
    store.start("a", blockers=[blocker])
    assert next_due(store, "a") is None
    assert next_due(store) is None
    store.claim()
    assert next_due(store, "a", "b") is None


def test_next_due_is_the_earliest_of_all_types_and_priorities(store: Store) -> None:
    store.start("a", after=500, priority=50)
    store.start("a", after=300, priority=-50)
    store.start("b", after=100)
    assert next_due(store, "a") == pytest.approx(300, abs=5)
    assert next_due(store, "a", "b") == pytest.approx(100, abs=5)
    backdate(store, store.start("c").id, 42)
    assert next_due(store, "a", "b", "c") == pytest.approx(-42, abs=5)


def test_next_due_sees_suspects(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    store.end(job, outcome="lost", after=70)
    assert next_due(store, "a") == pytest.approx(70, abs=5)

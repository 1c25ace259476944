"""Counting, cleaning up, tasks that one process at a time does, and giving space back."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime, timedelta, timezone

import pytest
from support.store import CONTENT, Store

from queuert.chains.retention import BATCH
from queuert.model import Status
from queuert.options import Dedup, Retention

pytestmark = pytest.mark.conformance


# Counting


def test_an_empty_database_counts_nothing(store: Store) -> None:
    stats = store.history.stats(None, 10, None)
    assert set(stats.by_status.values()) == {0}
    assert (stats.by_type, stats.attempts, stats.error_codes, stats.stranded) == ({}, {}, [], 0)
    assert (stats.oldest_running, stats.longest_running, stats.oldest_ready_seconds) == (None, [], None)
    assert stats.capped == set()


def test_jobs_are_counted_by_type_and_status(store: Store) -> None:
    store.start_many(5, "a")
    store.start_many(3, "b")
    for job in store.claim(2, ["a"]):
        store.complete(job)
    for job in store.claim(1, ["b"]):
        store.fail(job)
    store.claim(1, ["a"])
    stats = store.history.stats(None, 10_000, None)
    assert stats.by_type == {
        "a": {Status.PENDING: 2, Status.RUNNING: 1, Status.COMPLETED: 2},
        "b": {Status.PENDING: 2, Status.FAILED: 1},
    }
    assert stats.by_status == {
        Status.PENDING: 4,
        Status.RUNNING: 1,
        Status.COMPLETED: 2,
        Status.FAILED: 1,
        Status.BLOCKED: 0,
        Status.CANCELLED: 0,
    }
    only = store.history.stats(["b", "none"], None, None)
    assert only.by_type == {"b": {Status.PENDING: 2, Status.FAILED: 1}}


@pytest.mark.parametrize(("limit", "shown", "capped"), [(2, 2, True), (4, 4, True), (5, 5, False), (None, 5, False)])
def test_a_count_stops_at_its_limit_and_says_so(store: Store, limit: int | None, shown: int, capped: bool) -> None:
    store.start_many(5)
    stats = store.history.stats(None, limit, None)
    assert stats.by_status[Status.PENDING] == shown
    assert stats.by_type["a"][Status.PENDING] == shown
    assert (Status.PENDING in stats.capped) is capped


def test_the_types_share_the_limit_of_a_state(store: Store) -> None:
    sizes = {"a": 13, "b": 1, "c": 8, "d": 2, "e": 5, "f": 3}
    for name, size in sizes.items():
        if name not in store.type_names:
            store.context.types.declare(name)
        store.start_many(size, name)
    everything = sum(sizes.values())
    for limit, share in itertools.product((1, 2, 5, 6, 7, 12, 18, 26, 31, 32, 33), (1, 3, 500)):
        stats = store.history.stats(None, limit, None, share=share)
        counts = {name: counted[Status.PENDING] for name, counted in stats.by_type.items()}
        stopped = {name for name, states in stats.capped_by_type.items() if Status.PENDING in states}
        assert stats.by_status[Status.PENDING] == min(limit, everything)
        assert stats.capped == ({Status.PENDING} if limit < everything else set())
        assert bool(stopped) <= bool(stats.capped), "where the state is exact, so is each type"
        assert {n: counts[n] for n in sizes if n not in stopped} == {n: sizes[n] for n in sizes if n not in stopped}
        assert all(min(limit, share) <= counts[name] < sizes[name] for name in stopped)
        assert len({counts[name] for name in stopped}) <= 1, "equal parts"
        assert sum(counts.values()) >= min(limit, everything) - len(stopped)
        assert stats.attempts_by_type == {name: {0: number} for name, number in counts.items()}


def test_what_rare_types_leave_of_the_limit_is_for_the_frequent(store: Store) -> None:
    store.start_many(30, "a")
    for name in ("b", "c"):
        store.start_many(1, name)
    for job in store.claim(2, ["a"]):
        store.complete(job)
    stats = store.history.stats(None, 12, None, share=1)
    assert {name: counts[Status.PENDING] for name, counts in stats.by_type.items()} == {"a": 10, "b": 1, "c": 1}
    assert stats.by_type["a"][Status.COMPLETED] == 2
    assert (stats.capped, stats.capped_by_type) == ({Status.PENDING}, {"a": {Status.PENDING}})
    exact = store.history.stats(None, 30, None, share=1)
    assert (exact.by_type["a"][Status.PENDING], exact.capped, exact.capped_by_type) == (28, set(), {})


def test_attempts_and_errors_are_counted_no_further_than_the_jobs(store: Store) -> None:
    for name in ("a", "b"):
        store.start_many(6, name)
    for job in store.claim(10):
        store.end(job, after=0, code="NET:TIMEOUT")
    stats = store.history.stats(None, 4, None, share=1)
    assert {name: sum(counts.values()) for name, counts in stats.attempts_by_type.items()} == {"a": 2, "b": 2}
    assert sum(stats.attempts.values()) == 4
    assert stats.error_codes == [("NET:TIMEOUT", 4)]
    for job in store.claim(12):
        store.fail(job, code="NET:DOWN")
    stats = store.history.stats(None, 5, None, share=1)
    assert {name: sum(counts.values()) for name, counts in stats.attempts_by_type.items()} == {"a": 2, "b": 2}
    assert stats.error_codes == [("NET:DOWN", 5)]


def test_attempts_and_error_codes_are_distributed(store: Store) -> None:
    store.start_many(3, "a")
    store.start_many(2, "b")
    for job in store.claim(10):
        store.end(job, after=0, code="NET:TIMEOUT" if job.type_name == "a" else "DB:LOCKED")
    (job,) = store.claim(1, ["a"])
    store.end(job, after=0, code="NET:TIMEOUT")
    stats = store.history.stats(None, 10_000, None)
    assert stats.attempts == {1: 4, 2: 1}
    assert stats.attempts_by_type == {"a": {1: 2, 2: 1}, "b": {1: 2}}
    assert stats.error_codes == [("NET:TIMEOUT", 3), ("DB:LOCKED", 2)]
    assert store.job(stats.error_examples["DB:LOCKED"]).type_name == "b"
    (job,) = store.claim(1, ["b"])
    store.complete(job)
    assert store.history.stats(None, 10_000, None).error_codes == [("NET:TIMEOUT", 3), ("DB:LOCKED", 1)]
    assert store.history.stats(["b"], 10_000, None).error_codes == [("DB:LOCKED", 1)]


def test_the_longest_running_come_first(store: Store) -> None:
    store.start_many(3)
    running = store.claim(3, worker="w4")
    for seconds, job in zip((10, 300, 20), running, strict=True):
        at = (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat(timespec="microseconds")
        store.sql("UPDATE {job} SET last_attempt_at = :at WHERE id = :id", at=at.replace("+00:00", "Z"), id=job.id)
    store.renew(running[1])
    stats = store.history.stats(None, 10, None)
    assert [r.job_id for r in stats.longest_running] == [running[n].id for n in (1, 2, 0)]
    oldest = stats.oldest_running
    assert (oldest.type_name, oldest.worker_id, oldest.attempt) == ("a", "w4", 1)
    assert oldest.seconds == pytest.approx(300, abs=5)
    assert oldest.heartbeat_at == store.job(running[1]).heartbeat_at
    assert store.history.stats(["b"], 10, None).oldest_running is None


def test_the_oldest_ready_job_tells_how_long_it_has_waited(store: Store) -> None:
    store.start(after=500)
    assert store.history.stats(None, 10, None).oldest_ready_seconds is None
    chain = store.start("b")
    at = (datetime.now(timezone.utc) - timedelta(seconds=77)).isoformat(timespec="microseconds")
    store.sql("UPDATE {job} SET scheduled_at = :at WHERE id = :id", at=at.replace("+00:00", "Z"), id=chain.id)
    assert store.history.stats(None, 10, None).oldest_ready_seconds == pytest.approx(77, abs=5)


def test_stranded_jobs_are_those_whose_blocker_will_not_complete(store: Store) -> None:
    failed, cancelled, alive = store.start("b"), store.start("b", after=1000), store.start("b", after=1000)
    for blockers in ([failed], [cancelled, alive], [alive], [failed, cancelled]):
        store.start("a", blockers=blockers)
    (job,) = store.claim()
    assert job.id == failed.id
    store.proceed(job, "c")
    (tail,) = store.claim()
    assert store.history.stats(None, 10, None).stranded == 0
    store.fail(tail)
    store.chains.cancel([cancelled.id], None)
    assert store.history.stats(None, 10, None).stranded == 3
    assert store.history.stats(["a"], None, None).stranded == 3
    assert store.history.stats(["b"], None, None).stranded == 0
    assert store.history.stats(None, 2, None).stranded <= 2
    store.chains.retry([failed.id], None)
    assert store.history.stats(None, 10, None).stranded == 2


def test_types_are_listed_once_each(store: Store) -> None:
    assert store.read(store.repository.job_types) == []
    store.start_many(3, "b")
    store.start("a")
    (job,) = store.claim(types=["a"])
    store.proceed(job, "c")
    assert store.read(store.repository.job_types) == ["a", "b", "c"]
    assert store.read(store.repository.chain_types) == ["a", "b"]


# Cleaning up


def closed(store: Store, ages: dict[str, float], type_name: str = "a") -> dict[str, str]:
    """One chain closed in each state named, so many seconds ago; their ids by state."""
    found = {}
    for status, age in ages.items():
        chain = store.start(type_name, dedup=Dedup(f"{status} {age}"))
        (job,) = store.claim(1, [type_name])
        if status == "completed":
            store.complete(job)
        elif status == "failed":
            store.fail(job)
        else:
            store.chains.cancel([chain.id], None)
        then = (datetime.now(timezone.utc) - timedelta(seconds=age)).isoformat(timespec="microseconds")
        store.sql(
            "UPDATE {job} SET created_at = :at, chain_created_at = :at, completed_at = :at WHERE chain_id = :id",
            at=then.replace("+00:00", "Z"),
            id=chain.id,
        )
        found[status] = chain.id
    return found


def left(store: Store) -> set[str]:
    return {str(row[0]) for row in store.sql("SELECT chain_id FROM {job}")}


def test_each_state_is_kept_for_its_own_time(store: Store) -> None:
    old = closed(store, {"completed": 200, "failed": 200, "cancelled": 200})
    new = closed(store, {"completed": 50, "failed": 50, "cancelled": 50}, "b")
    deleted = store.cleaner.clean(Retention(completed=100, failed=1000, cancelled=None))
    assert deleted == {"completed": 1, "failed": 0, "cancelled": 0}
    assert left(store) == {old["failed"], old["cancelled"], *new.values()}
    deleted = store.cleaner.clean(Retention(completed=100, failed=100, cancelled=100))
    assert deleted == {"completed": 0, "failed": 1, "cancelled": 1}
    assert left(store) == set(new.values())
    assert {row[1] for row in store.tables()["job_key"]} == {"completed 50", "failed 50", "cancelled 50"}
    store.cleaner.clean(Retention(0, 0, 0))
    assert store.tables() == {table: [] for table in CONTENT}


def test_age_counts_from_the_close_and_not_from_the_start(store: Store) -> None:
    ids = closed(store, {"completed": 500})
    store.sql("UPDATE {job} SET completed_at = :now", now=store.read(store.repository.clock).isoformat())
    assert store.cleaner.clean(Retention(completed=100)) == {"completed": 0, "failed": 0, "cancelled": 0}
    assert left(store) == set(ids.values())


def test_open_chains_are_never_cleaned_up(store: Store) -> None:
    store.start()
    store.start("b", after=1000)
    store.start("c", blockers=[store.start("b", after=1000)])
    store.claim()
    before = store.tables()
    store.sql("UPDATE {job} SET created_at = created_at")
    assert sum(store.cleaner.clean(Retention(0, 0, 0)).values()) == 0
    assert store.tables() == before


def test_what_others_wait_for_is_kept(store: Store) -> None:
    ids = closed(store, {"completed": 100, "failed": 100}, "b")
    other = store.start("c", after=1000)
    waiting = store.start("a", blockers=[ids["completed"], ids["failed"], other])
    assert sum(store.cleaner.clean(Retention(10, 10, 10)).values()) == 0
    store.chains.cancel([waiting.id], None)
    assert store.cleaner.clean(Retention(10, 10, None)) == {"completed": 1, "failed": 1, "cancelled": 0}


def test_many_chains_go_in_batches_past_those_that_stay(store: Store) -> None:
    number = BATCH + 30
    chains = store.start_many(number)
    store.sql(
        "UPDATE {job} SET status = 'completed', completed_at = :at, created_at = :at, chain_created_at = :at",
        at="2020-01-01T00:00:00.000000Z",
    )
    kept = chains[5]
    store.start("b", blockers=[kept, store.start("c", after=1000)])
    told: list[int] = []
    assert store.cleaner.clean(Retention(completed=60), progress=told.append)["completed"] == number - 1
    assert told == [BATCH - 1, number - 1]
    assert kept.id in left(store)
    assert len(left(store)) == 3


def test_a_cleanup_can_be_stopped_and_run_again(store: Store) -> None:
    closed(store, {"completed": 100, "failed": 100})
    stop = threading.Event()
    stop.set()
    assert sum(store.cleaner.clean(Retention(1, 1, 1), stop=stop).values()) == 0
    assert sum(store.cleaner.clean(Retention(1, 1, 1), max_seconds=0).values()) == 0
    assert sum(store.cleaner.clean(Retention(1, 1, 1)).values()) == 2


def test_a_continued_chain_goes_as_a_whole(store: Store) -> None:
    chain = store.start("a", 0)
    (job,) = store.claim()
    store.proceed(job, "b", input=1)
    assert sum(store.cleaner.clean(Retention(0, 0, 0)).values()) == 0
    (job,) = store.claim()
    store.complete(job)
    store.sql("UPDATE {job} SET completed_at = :at, created_at = :at, chain_created_at = :at", at="2020-01-01T00:00:00Z")
    assert store.cleaner.clean(Retention(completed=60))["completed"] == 1
    assert store.tables() == {table: [] for table in CONTENT}
    assert store.reader.chain(chain.id, None, None) is None


# One process at a time


def take(store: Store, name: str, owner: str, lease: float = 60) -> object:
    return store.write(lambda session: store.repository.take_singleton(session, name, owner, lease))


def finish(store: Store, name: str, owner: str, **due: object) -> bool:
    return store.write(lambda session: store.repository.finish_singleton(session, name, owner, **due))


def test_a_task_is_taken_by_one_at_a_time(store: Store) -> None:
    assert take(store, "tidy", "one") == (None, None)
    assert take(store, "tidy", "two") is None
    assert take(store, "tidy", "one") is None
    assert take(store, "other", "two") == (None, None)
    assert finish(store, "tidy", "two", next_in=0.0) is False
    assert finish(store, "tidy", "one", next_in=0.0) is True
    last, due = take(store, "tidy", "two")
    assert last == due
    assert finish(store, "tidy", "one", next_in=0.0) is False


def test_a_task_is_not_taken_before_it_is_due(store: Store) -> None:
    take(store, "tidy", "one")
    later = datetime(2100, 1, 1, tzinfo=timezone.utc)
    finish(store, "tidy", "one", next_at=later)
    assert take(store, "tidy", "two") is None
    ((name, owner, until, last, due),) = store.read(store.repository.list_singletons)
    assert (name, owner, until, due) == ("tidy", None, None, later)
    assert last is not None


def test_a_task_whose_owner_died_is_taken_over(store: Store) -> None:
    take(store, "tidy", "dead")
    store.sql("UPDATE {singleton} SET leased_until = :at", at="2001-01-01T00:00:00.000000Z")
    assert take(store, "tidy", "alive") == (None, None)
    assert finish(store, "tidy", "dead", next_in=1.0) is False


# Space


@pytest.mark.parametrize("full", [False, True])
def test_vacuum_leaves_every_row_as_it_was(store: Store, full: bool) -> None:
    chains = store.start_many(50)
    store.chains.delete([chain.id for chain in chains[:40]], None)
    before = store.tables()
    assert store.database.vacuum(store.names, full=full) is True
    assert store.tables() == before
    assert len(store.claim(20)) == 10

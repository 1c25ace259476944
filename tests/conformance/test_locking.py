"""PostgreSQL's row locks: who waits for whom, who does not, and in what order rows are locked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.racing import Background, holding, is_free, together, wait_until_blocked
from support.store import Store

from queuert.chains.complete import Completion
from queuert.model import Job, Status
from queuert.storage.protocol import Session

pytestmark = pytest.mark.conformance

LOCKED = "SELECT id FROM {job} WHERE id = :id FOR UPDATE"


@pytest.fixture
def store(postgres_store: Store) -> Store:
    return postgres_store


# Naming a blocker holds a key-share lock on it, which only its close waits for


def test_a_dependant_being_created_does_not_keep_its_blocker_from_being_worked_on(store: Store) -> None:
    blocker = store.start("b", max_attempts=None)
    with store.database.block() as session:
        store.start("a", blockers=[blocker], conn=session.raw)
        assert not is_free(store, blocker.id)

        def work() -> list[str]:
            done = []
            (job,) = store.claim()
            done.append("claimed")
            assert store.renew(job) == {job.id}
            store.expire(job)
            assert store.reap() == {job.id}
            done.append("reaped")
            (job,) = store.claim(suspect=True)
            assert store.release(job) == {job.id}
            (job,) = store.claim(suspect=True)
            assert store.end(job, after=0) == {job.id}
            (job,) = store.claim()
            following = store.chains.next_job(job, "c")
            assert store.complete(job, then=following).ids == {job.id}
            done.append("continued")
            return done

        assert Background(work).result() == ["claimed", "reaped", "continued"]


def test_closing_a_chain_waits_for_who_is_naming_it_as_a_blocker(store: Store) -> None:
    blocker = store.start("b")
    (job,) = store.claim()
    with store.database.block() as session:
        waiting = store.start("a", blockers=[blocker], conn=session.raw)
        closing = Background(lambda: store.complete(job))
        wait_until_blocked(store)
        assert closing.running
    assert closing.result().ids == {job.id}
    assert store.job(waiting).status is Status.PENDING


def test_a_closing_chain_cannot_be_named_as_a_blocker_meanwhile(store: Store) -> None:
    chain = store.start("b")
    (job,) = store.claim()
    store.proceed(job, "c")
    (tail,) = store.claim()
    with store.database.block() as session:
        store.complete(tail, session=session)
        # The first job is locked against the key-share lock of a foreign key, although it is not the one that completes.
        assert not is_free(store, chain.id, "KEY SHARE")
        naming = Background(lambda: store.start("a", blockers=[chain]))
        wait_until_blocked(store)
    assert naming.result().status is Status.PENDING


def test_a_chain_that_goes_on_can_be_named_as_a_blocker_meanwhile(store: Store) -> None:
    chain = store.start("b")
    (job,) = store.claim()
    with store.database.block() as session:
        store.complete(job, then=store.chains.next_job(job, "c"), session=session)
        assert is_free(store, chain.id, "KEY SHARE")
        assert not is_free(store, chain.id, "NO KEY UPDATE")
        naming = Background(lambda: store.start("a", blockers=[chain]))
        assert naming.result().status is Status.BLOCKED
    assert store.job(naming.result()).status is Status.BLOCKED


# Who skips locked rows


def test_a_claim_skips_locked_rows(store: Store) -> None:
    first, second, third = store.start_many(3)
    with holding(store, LOCKED, id=first.id):
        assert [job.id for job in Background(lambda: store.claim(2)).result()] == [second.id, third.id]
    assert [job.id for job in store.claim(2)] == [first.id]


def test_a_claim_looks_past_a_whole_window_of_locked_rows(store: Store) -> None:
    chains = store.start_many(60)
    with holding(store, "SELECT id FROM {job} ORDER BY scheduled_at, id LIMIT 50 FOR UPDATE"):
        found = Background(lambda: store.claim(1)).result()
    assert [job.id for job in found] == [chains[50].id]


def test_a_renewal_skips_locked_rows_and_their_leases_are_not_lost(store: Store) -> None:
    store.start_many(3)
    locked, *others = store.claim()
    with holding(store, LOCKED, id=locked.id):
        renewed = Background(lambda: store.renew(locked, *others)).result()
        assert renewed == {job.id for job in others}
        states = store.read(lambda session: store.repository.lease_states(session, [locked.id]))
        assert states[locked.id][1:] == (Status.RUNNING, locked.leased_by, locked.lease_token)
    assert store.renew(locked) == {locked.id}


def test_the_reaper_skips_locked_rows(store: Store) -> None:
    store.start_many(2)
    locked, other = store.claim()
    store.expire(locked, other)
    with holding(store, LOCKED, id=locked.id):
        assert Background(store.reap).result() == {other.id}
    assert store.reap() == {locked.id}


def completions(store: Store, jobs: list[Job], *, going_on: bool) -> list[Completion]:
    return [
        Completion(
            job,
            None if going_on else "1",
            job.lease_token,
            store.chains.next_job(job, "c") if going_on else None,
        )
        for job in jobs
    ]


@pytest.mark.parametrize("going_on", [False, True], ids=["closing", "going on"])
@pytest.mark.parametrize("locked_row", ["tail", "root"])
def test_without_waiting_a_locked_row_is_left_for_later(store: Store, going_on: bool, locked_row: str) -> None:
    store.start_many(3)
    for job in store.claim():
        store.proceed(job, "b", input=0)
    jobs = store.claim()
    held = jobs[1].id if locked_row == "tail" else jobs[1].chain_id
    batch = completions(store, jobs, going_on=going_on)

    def complete() -> Any:
        return store.write(lambda session: store.chains.complete(session, "w1", batch, wait=False))

    with holding(store, LOCKED, id=held):
        done = Background(complete).result()
    assert (done.ids, done.locked) == ({jobs[0].id, jobs[2].id}, {jobs[1].id})
    assert store.job(jobs[1]) == jobs[1]
    again = store.write(lambda session: store.chains.complete(session, "w1", batch[1:2], wait=False))
    assert (again.ids, again.locked) == ({jobs[1].id}, set())


def test_without_waiting_a_chain_whose_dependant_is_locked_is_left_for_later(store: Store) -> None:
    store.start_many(2, "b")
    first, second = store.claim()
    waiting = store.start("a", blockers=[first.id, second.id])
    alone = store.start("c")
    (third,) = store.claim(types=["c"])
    batch = completions(store, [first, third], going_on=False)
    with holding(store, LOCKED, id=waiting.id):
        done = Background(lambda: store.write(lambda session: store.chains.complete(session, "w1", batch, wait=False))).result()
    assert (done.ids, done.locked) == ({third.id}, {first.id})
    assert store.job(alone).status is Status.COMPLETED
    again = store.write(lambda session: store.chains.complete(session, "w1", batch[:1], wait=False))
    assert again.ids == {first.id}
    assert store.job(waiting).open_blockers == 1


def test_ending_attempts_without_waiting_can_lock_what_a_dependant_names(store: Store) -> None:
    blocker = store.start("b")
    (job,) = store.claim()
    with store.database.block() as session:
        store.start("a", blockers=[blocker], conn=session.raw)
        free = Background(lambda: store.write(lambda own: store.repository.lock_jobs(own, [job.id], wait=False))).result()
        assert free == {job.id}


# The order of locks


def _items(jobs: list[Job], **values: Any) -> list[dict[str, Any]]:
    return [{"id": job.id, "token": job.lease_token, **values} for job in jobs]


def _end(store: Store, session: Session, jobs: list[Job]) -> Any:
    common = {"worker": "w1", "status": "pending", "outcome": "failed", "code": "X:Y", "detail": None, "error": None}
    common |= {"at": None, "after": 0, "forgive": 0, "waited": None}
    return store.repository.end_attempts(session, _items(jobs, **common))


ORDERED: dict[str, Callable[[Store, Session, list[Job]], Any]] = {
    "lock_closing": lambda st, s, jobs: st.repository.lock_closing(s, [job.id for job in jobs]),
    "lock_jobs": lambda st, s, jobs: st.repository.lock_jobs(s, [job.id for job in jobs]),
    "lock_chains": lambda st, s, jobs: st.repository.lock_chains(s, [job.id for job in jobs]),
    "complete": lambda st, s, jobs: st.chains.complete(s, "w1", completions(st, jobs, going_on=False)),
    "continue": lambda st, s, jobs: st.chains.complete(s, "w1", completions(st, jobs, going_on=True)),
    "end_attempts": _end,
    "release_claims": lambda st, s, jobs: st.repository.release_claims(s, "w1", _items(jobs)),
    "cancel_tails": lambda st, s, jobs: st.repository.cancel_tails(s, [job.id for job in jobs], None),
    "cancel": lambda st, s, jobs: st.chains.cancel([job.id for job in jobs], s.raw),
    "delete": lambda st, s, jobs: st.chains.delete([job.id for job in jobs], s.raw),
}


def check_order(store: Store, rows: list[str], act: Callable[[Session], Any]) -> None:
    """With the smallest row locked by somebody, the act must wait for it before it has locked any other."""
    rows = sorted(rows)
    with holding(store, LOCKED, id=rows[0]):
        acting = Background(lambda: store.write(act))
        wait_until_blocked(store)
        assert [is_free(store, row) for row in rows[1:]] == [True] * (len(rows) - 1)
    acting.result()


@pytest.mark.parametrize("name", ORDERED)
def test_rows_are_locked_in_the_order_of_their_ids(store: Store, name: str) -> None:
    store.start_many(5)
    jobs = store.claim()
    # Rows that were updated last come first on the disk's pages, and the caller names them backwards.
    for job in jobs[:2]:
        store.renew(job)
    check_order(store, [job.id for job in jobs], lambda session: ORDERED[name](store, session, jobs[::-1]))


@pytest.mark.parametrize("name", ["retry", "trigger"])
def test_rows_of_closed_and_pending_jobs_are_locked_in_order_too(store: Store, name: str) -> None:
    chains = store.start_many(5, after=100)
    ids = [chain.id for chain in chains]
    if name == "retry":
        store.chains.cancel(ids, None)
    act = getattr(store.chains, name)
    check_order(store, ids, lambda session: act(ids[::-1], session.raw))


def test_dependants_are_released_in_the_order_of_their_ids(store: Store) -> None:
    store.start("b")
    (blocker,) = store.claim()
    waiting = [store.start("a", blockers=[blocker.id]).id for _ in range(5)]
    check_order(store, waiting, lambda session: store.complete(blocker, session=session))
    assert {store.job(identity).status for identity in waiting} == {Status.PENDING}


def test_blockers_are_named_in_the_order_of_their_ids(store: Store) -> None:
    blockers = [chain.id for chain in store.start_many(5, "b")]
    rows = sorted(blockers)
    with holding(store, LOCKED, id=rows[0]):
        naming = Background(lambda: store.start("a", blockers=blockers[::-1]))
        wait_until_blocked(store)
        assert [is_free(store, row) for row in rows[1:]] == [True] * 4
    naming.result()


def test_keys_are_locked_in_their_own_order(store: Store) -> None:
    keys = [{"type_name": "a", "key": f"k{number}"} for number in range(5)]

    def touch(wanted: list[dict[str, str]]) -> None:
        store.write(lambda session: store.repository.touch_keys(session, wanted))

    touch(keys[2:])
    with holding(store, "INSERT INTO {job_key} VALUES ('a', 'k0')"):
        touching = Background(lambda: touch(keys[::-1]))
        wait_until_blocked(store)
        # Neither the keys that were there nor the one that is new has been touched before the first.
        Background(lambda: touch(keys[1:])).result()
        assert touching.running
    touching.result()


def test_two_batches_in_opposite_order_do_not_deadlock(store: Store) -> None:
    def deadlocks() -> int:
        sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(store.sql(sql)[0][0])

    store.start_many(12)
    jobs = store.claim(12)
    before = deadlocks()

    def cancel(ids: list[str]) -> None:
        for _ in range(15):
            with store.database.block() as session:
                store.chains.cancel(ids, session.raw)
                store.chains.retry(ids, session.raw)
                store.chains.trigger(ids, session.raw)

    ids = [job.id for job in jobs]
    together(lambda: cancel(ids), lambda: cancel(ids[::-1]), lambda: cancel(sorted(ids, key=hash)))
    assert deadlocks() == before


# Durability


def test_claims_and_renewals_commit_asynchronously_and_nothing_else_does(store: Store) -> None:
    store.start_many(2)
    setting = "SELECT current_setting('synchronous_commit')"

    def after(act: Callable[[Session], Any]) -> str:
        def work(session: Session) -> str:
            act(session)
            return str(store.sql(setting, session)[0][0])

        return store.write(work)

    jobs: list[Job] = []
    assert after(lambda session: jobs.extend(store.claim(1, session=session))) == "off"
    items = _items(jobs, lease=60)
    assert after(lambda session: store.repository.renew_leases(session, "w1", items)) == "off"
    assert after(lambda session: store.complete(*jobs, session=session)) == "on"
    assert after(lambda session: store.start(conn=session.raw)) == "on"
    assert store.sql(setting) == [("on",)]
    assert json.loads(store.job(jobs[0]).output) is None

"""What an idle worker claims when it hears of a job, on PostgreSQL: as a claim of everything would, but not from far."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.racing import Background
from support.store import Store

from queuert.model import Status

pytestmark = pytest.mark.conformance


@pytest.fixture
def store(postgres_store: Store) -> Store:
    return postgres_store


def test_it_turns_pending_into_running_under_a_lease(store: Store) -> None:
    chain = store.start()
    (job,) = store.claim_head(worker="me", token=-(2**62), lease=30.0)
    assert job == store.job(chain)
    assert (job.status, job.attempt, job.leased_by, job.lease_token) == (Status.RUNNING, 1, "me", -(2**62))
    assert job.last_attempt_at is not None
    assert job.leased_until is not None
    assert job.leased_until - job.last_attempt_at == timedelta(seconds=30)


def test_it_takes_the_same_jobs_in_the_same_order_as_a_claim_of_everything(store: Store) -> None:
    for number in range(30):
        store.start("a", number, priority=number * 7 % 5, after=60 if number % 11 == 3 else None)
    store.start("b", priority=100)
    taken = store.claim_head(10)
    store.release(*taken)
    again = store.claim(10, ["a"])
    assert [job.id for job in taken] == [job.id for job in again]
    assert [job.priority for job in taken] == sorted((job.priority for job in taken), reverse=True)


def test_what_is_not_due_not_of_the_type_suspect_or_still_held_is_left(store: Store) -> None:
    held = store.start("a")
    suspect = store.start("a")
    store.sql("UPDATE {job} SET suspect = true WHERE id = :id", id=suspect.id)
    store.start("a", after=60)
    store.start("b")
    store.start("a", blockers=[store.start("b")])
    assert store.claim_head(held=[held.id]) == []
    assert [job.id for job in store.claim_head()] == [held.id]


def test_locked_rows_are_stepped_over_and_nothing_else_is_locked(store: Store) -> None:
    first, second, third = store.start_many(3)
    with store.database.block() as session:
        store.sql("SELECT id FROM {job} WHERE id = :id FOR UPDATE", session, id=first.id)
        (job,) = Background(lambda: store.claim_head(1)).result()
        assert job.id == second.id
        assert [job.id for job in Background(lambda: store.claim_head(2)).result()] == [third.id]
    assert [job.id for job in store.claim_head()] == [first.id]


def test_a_job_that_somebody_is_putting_off_or_cancelling_is_not_taken(store: Store) -> None:
    for change in ("scheduled_at = statement_timestamp() + interval '1 hour'", "status = 'cancelled'"):
        chain = store.start()
        with store.database.block() as session:
            store.sql("UPDATE {job} SET " + change + " WHERE id = :id", session, id=chain.id)
            assert Background(store.claim_head).result() == []
        assert store.claim_head() == []
        assert store.job(chain).attempt == 0


def test_many_claimers_share_the_jobs_and_take_each_once(store: Store) -> None:
    chains = store.start_many(200)

    def claim() -> list[str]:
        mine: list[str] = []
        while jobs := store.claim_head(3):
            mine += [job.id for job in jobs]
        return mine

    claimers = [Background(claim) for _ in range(6)]
    taken = [identity for claimer in claimers for identity in claimer.result()]
    left = {job.id for job in store.claim(200)}  # a claimer ends where others have locked all that it looks at
    assert len(taken) == len(set(taken))
    assert set(taken) | left == {chain.id for chain in chains}
    assert len(taken) >= 100


def test_it_commits_without_waiting_for_the_disk(store: Store) -> None:
    store.start()
    with store.database.block() as session:
        assert store.claim_head(session=session)
        assert store.sql("SELECT current_setting('synchronous_commit')", session) == [("off",)]
    with store.database.read() as session:
        assert store.sql("SELECT current_setting('synchronous_commit')", session) == [("on",)]

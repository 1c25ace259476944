"""Creating chains: their columns, schedules, ids, deduplication keys and blockers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from support.store import PAST, Store

from queuert.chains.new_chain import NewChain
from queuert.errors import ChainNotFoundError, DuplicateJobIdError, JobTypeValidationError
from queuert.ids import uuid7
from queuert.model import Status
from queuert.options import Dedup

pytestmark = pytest.mark.conformance

UTC = timezone.utc


def test_a_new_chain_is_one_pending_job_that_is_its_own_root(store: Store) -> None:
    chain = store.start("a", {"n": 1}, priority=7, max_attempts=3)
    job = store.job(chain)
    assert (job.id, job.chain_id, job.chain_index) == (chain.id, chain.id, 0)
    assert (job.type_name, job.chain_type_name, job.status) == ("a", "a", Status.PENDING)
    assert (job.priority, job.max_attempts, job.attempt, job.attempts_forgiven) == (7, 3, 0, 0)
    assert (job.output, job.leased_by, job.leased_until, job.lease_token, job.heartbeat_at) == (None,) * 5
    assert (job.completed_at, job.completed_by, job.last_attempt_at, job.error_code) == (None,) * 4
    assert (job.continued_to, job.deduplication_key, job.open_blockers, job.blocker_count) == (None, None, 0, 0)
    assert job.suspect is False
    assert job.created_at == job.chain_created_at == job.scheduled_at == chain.created_at
    assert job.created_at.utcoffset() == timedelta(0)
    assert store.context.payloads.decode_job(job).input == {"n": 1}


def test_no_max_attempts_is_stored_as_forever(store: Store) -> None:
    assert store.job(store.start(max_attempts=None)).max_attempts is None


def test_a_batch_is_created_whole_and_answered_in_order(store: Store) -> None:
    wanted = [NewChain("a" if n % 2 else "b", n, priority=n % 5) for n in range(50)]
    chains = store.starter.start(wanted, None)
    assert [(c.type_name, c.input) for c in chains] == [(w.job_type, w.input) for w in wanted]
    jobs = store.read(lambda session: store.repository.get_jobs(session, [c.id for c in chains]))
    assert [jobs[c.id].priority for c in chains] == [n % 5 for n in range(50)]


def test_a_time_in_the_past_is_raised_to_now(store: Store) -> None:
    job = store.job(store.start(at=datetime(2001, 1, 1, tzinfo=UTC)))
    assert job.scheduled_at == job.created_at


def test_a_time_in_the_future_is_kept_to_the_microsecond(store: Store) -> None:
    at = datetime(2101, 2, 3, 4, 5, 6, 123456, tzinfo=UTC)
    assert store.job(store.start(at=at)).scheduled_at == at
    elsewhere = at.astimezone(timezone(timedelta(hours=-7)))
    assert store.job(store.start(at=elsewhere)).scheduled_at == at


def test_a_delay_counts_from_the_databases_now(store: Store) -> None:
    for after in (0, 0.25, 90, 10_000_000):
        job = store.job(store.start(after=after))
        assert job.scheduled_at - job.created_at == timedelta(seconds=after)


def test_an_id_can_be_given_and_is_taken_once(store: Store) -> None:
    identity = uuid7()
    assert store.start(id=identity).id == identity
    before = store.tables()
    with pytest.raises(DuplicateJobIdError):
        store.start("b", id=identity)
    with pytest.raises(DuplicateJobIdError):
        store.starter.start([NewChain("a"), NewChain("b", id=identity), NewChain("c")], None)
    assert store.tables() == before


def test_a_taken_id_leaves_the_transaction_usable(store: Store) -> None:
    identity = store.start().id
    with store.database.block() as session:
        with pytest.raises(DuplicateJobIdError):
            store.starter.start([NewChain("a"), NewChain("b", id=identity)], session.raw)
        other = store.start("c", conn=session.raw)
    assert store.sql("SELECT count(*) FROM {job}") == [(2,)]
    assert store.job(other).type_name == "c"


@pytest.mark.parametrize(
    "text", ["", "plain", "ünïcødé ✓ 🎉", "back\\slash \"quote\" 'tick'", "%s %(x)s :name {job}", "\t\n\r"]
)
def test_any_text_survives_input_and_key(store: Store, text: str) -> None:
    chain = store.start("a", {"text": text, "list": [text, None, 1.5, True]}, dedup=Dedup(f"k{text}"))
    job = store.job(chain)
    assert job.deduplication_key == f"k{text}"
    assert store.context.payloads.decode_job(job).input == {"text": text, "list": [text, None, 1.5, True]}


def test_large_whole_numbers_survive(store: Store) -> None:
    chain = store.start("a", [2**53 + 1, -(2**63), 10**30])
    assert store.context.payloads.decode_job(store.job(chain)).input == [2**53 + 1, -(2**63), 10**30]


# Deduplication


def test_a_key_gives_back_the_open_chain(store: Store) -> None:
    first = store.start("a", 1, dedup=Dedup("k"))
    second = store.start("a", 2, dedup=Dedup("k"))
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert (second.id, second.input) == (first.id, 1)
    assert store.sql("SELECT count(*) FROM {job}") == [(1,)]


def test_a_key_belongs_to_its_chain_type(store: Store) -> None:
    assert store.start("a", dedup=Dedup("k")).id != store.start("b", dedup=Dedup("k")).id
    assert sorted(store.tables()["job_key"]) == [("a", "k"), ("b", "k")]


@pytest.mark.parametrize("state", ["pending", "running", "blocked", "continued", "completed", "failed", "cancelled"])
def test_an_incomplete_key_stands_in_the_way_only_while_open(store: Store, state: str) -> None:
    blockers = [store.start("c")] if state == "blocked" else None
    first = store.start("a", dedup=Dedup("k"), blockers=blockers)
    if state not in ("pending", "blocked", "cancelled"):
        (job,) = store.claim(types=["a"])
        if state == "completed":
            store.complete(job)
        elif state == "failed":
            store.fail(job)
        elif state == "continued":
            store.proceed(job, "b")
    if state == "cancelled":
        store.chains.cancel([first.id], None)
    stands = state in ("pending", "running", "blocked", "continued")
    again = store.start("a", dedup=Dedup("k"))
    assert again.deduplicated is stands
    assert (again.id == first.id) is stands


def test_a_key_with_scope_any_stands_for_its_window(store: Store) -> None:
    first = store.start("a", dedup=Dedup("k"))
    store.finish(first)
    assert store.start("a", dedup=Dedup("k", "any", window=3600)).id == first.id
    created = (datetime.now(UTC) - timedelta(seconds=1800)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    store.sql("UPDATE {job} SET created_at = :at, chain_created_at = :at", at=created)
    assert store.start("a", dedup=Dedup("k", "any", window=3600)).id == first.id
    assert store.start("a", dedup=Dedup("k", "any", window=900)).id != first.id


def test_a_window_limits_open_chains_too(store: Store) -> None:
    first = store.start("a", dedup=Dedup("k"))
    store.sql("UPDATE {job} SET created_at = :at, chain_created_at = :at", at=PAST)
    second = store.start("a", dedup=Dedup("k", window=60))
    assert second.id != first.id
    # Without a window the newest of the two stands in the way.
    assert store.start("a", dedup=Dedup("k")).id == second.id


def test_excluded_chains_do_not_stand_in_the_way(store: Store) -> None:
    first = store.start("a", dedup=Dedup("k"))
    second = store.start("a", dedup=Dedup("k", exclude_chain_ids=[first.id]))
    assert second.id != first.id
    third = store.start("a", dedup=Dedup("k", exclude_chain_ids=[second.id]))
    assert third.id == first.id
    assert store.start("a", dedup=Dedup("k", exclude_chain_ids=[first.id, second.id])).deduplicated is False


def test_a_key_wins_over_an_id(store: Store) -> None:
    first = store.start("a", dedup=Dedup("k"))
    wanted = uuid7()
    assert store.start("a", id=wanted, dedup=Dedup("k")).id == first.id
    assert store.start("a", id=first.id, dedup=Dedup("k")).id == first.id
    assert store.sql("SELECT count(*) FROM {job} WHERE id = :id", id=wanted) == [(0,)]


def test_within_a_batch_the_first_of_a_key_is_created(store: Store) -> None:
    old = store.start("a", "old", dedup=Dedup("k1"))
    batch = [
        NewChain("a", 1, dedup=Dedup("k1")),
        NewChain("a", 2, dedup=Dedup("k2")),
        NewChain("a", 3),
        NewChain("a", 4, dedup=Dedup("k2")),
        NewChain("b", 5, dedup=Dedup("k2")),
    ]
    chains = store.starter.start(batch, None)
    assert [c.deduplicated for c in chains] == [True, False, False, True, False]
    assert chains[0].id == old.id
    assert chains[3].id == chains[1].id
    assert chains[3].input == 2
    assert store.sql("SELECT count(*) FROM {job}") == [(4,)]


def test_a_continuation_carries_the_key_and_the_chains_columns(store: Store) -> None:
    chain = store.start("a", dedup=Dedup("k"), priority=5)
    (job,) = store.claim()
    following = store.proceed(job, "b", input=2)
    assert (following.chain_id, following.chain_index, following.chain_type_name) == (chain.id, 1, "a")
    assert (following.deduplication_key, following.priority) == ("k", 5)
    assert following.chain_created_at == chain.created_at
    assert store.job(job).continued_to == following.id
    assert store.chain(chain).tail_id == following.id


# Blockers


def test_a_job_with_an_open_blocker_is_blocked(store: Store) -> None:
    blocker = store.start("b")
    chain = store.start("a", blockers=[blocker])
    job = store.job(chain)
    assert chain.status is job.status is Status.BLOCKED
    assert (job.open_blockers, job.blocker_count) == (1, 1)
    assert [j.id for j in store.claim()] == [blocker.id]


def test_only_completed_blockers_count_as_done(store: Store) -> None:
    done, failed, cancelled, running, scheduled = (store.start("b", n) for n in range(5))
    store.finish(done)
    store.chains.cancel([cancelled.id], None)
    jobs = {job.id: job for job in store.claim()}
    store.fail(jobs[failed.id])
    store.end(jobs[scheduled.id], after=1000)
    chain = store.start("a", blockers=[done, failed, cancelled, running, scheduled])
    assert (store.job(chain).open_blockers, store.job(chain).blocker_count) == (4, 5)


def test_a_job_whose_blockers_are_all_completed_is_pending_at_once(store: Store) -> None:
    done = [store.start("b") for _ in range(3)]
    for chain in done:
        store.finish(chain)
    chain = store.start("a", blockers=done)
    job = store.job(chain)
    assert chain.status is job.status is Status.PENDING
    assert (job.open_blockers, job.blocker_count) == (0, 3)
    assert [j.id for j in store.claim()] == [chain.id]


def test_a_continued_blocker_is_open_until_its_tail_completes(store: Store) -> None:
    blocker = store.start("b")
    (job,) = store.claim()
    store.proceed(job, "c")
    chain = store.start("a", blockers=[blocker])
    assert store.job(chain).status is Status.BLOCKED
    (tail,) = store.claim()
    store.complete(tail)
    assert store.job(chain).status is Status.PENDING


def test_blockers_keep_their_order(store: Store) -> None:
    blockers = store.start_many(5, "b")
    order = [blockers[n] for n in (3, 0, 4, 1, 2)]
    chain = store.start("a", blockers=order)
    found = store.reader.job_blockers(chain.id, None)
    assert [c.id for c in found] == [c.id for c in order]


def test_chains_of_one_batch_can_block_each_other(store: Store) -> None:
    first, second, third = uuid7(), uuid7(), uuid7()
    batch = [
        NewChain("a", id=third, blockers=[first, second]),
        NewChain("b", id=second, blockers=[first]),
        NewChain("c", id=first),
    ]
    assert [c.status for c in store.starter.start(batch, None)] == [Status.BLOCKED, Status.BLOCKED, Status.PENDING]
    for expected in (first, second, third):
        (job,) = store.claim()
        assert job.id == expected
        store.complete(job)


def test_bad_blockers_write_nothing(store: Store) -> None:
    real = store.start("b")
    before = store.tables()
    with pytest.raises(ChainNotFoundError):
        store.start("a", blockers=[real, uuid7()])
    with pytest.raises(JobTypeValidationError):
        store.start("a", blockers=[real, real.id])
    mine = uuid7()
    with pytest.raises(JobTypeValidationError):
        store.start("a", id=mine, blockers=[mine])
    one, two = uuid7(), uuid7()
    with pytest.raises(JobTypeValidationError):
        store.starter.start([NewChain("a", id=one, blockers=[two]), NewChain("a", id=two, blockers=[one])], None)
    assert store.tables() == before


def test_a_continuation_is_not_a_chain_to_wait_for(store: Store) -> None:
    store.start("b")
    (job,) = store.claim()
    following = store.proceed(job, "c")
    with pytest.raises(ChainNotFoundError):
        store.start("a", blockers=[following.id])


def test_a_continuation_can_have_blockers_and_a_schedule(store: Store) -> None:
    blocker = store.start("c", after=1000)
    store.start("a")
    (job,) = store.claim()
    following = store.proceed(job, "b", blockers=[blocker], after=60, priority=-3, max_attempts=None)
    assert (following.status, following.open_blockers, following.blocker_count) == (Status.BLOCKED, 1, 1)
    assert (following.priority, following.max_attempts) == (-3, None)
    assert following.scheduled_at - following.created_at == timedelta(seconds=60)


def test_a_continuation_cannot_wait_for_its_own_chain(store: Store) -> None:
    chain = store.start("a")
    (job,) = store.claim()
    waiting = store.start("b", blockers=[chain])
    before = store.tables()
    for blockers in ([chain], [waiting]):
        with pytest.raises(JobTypeValidationError):
            store.proceed(job, "c", blockers=blockers)
    assert store.tables() == before

"""Deduplication: one chain per key and chain type."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support import eventually
from support.clocks import make_older
from support.handlers import held

from queuert import Chain, Continuation, Dedup, InvalidJobIdError, NewChain, Queuert, QueuertError, RunningJob


@pytest.fixture(autouse=True)
def _types(app: Queuert) -> None:
    app.declare("report")
    app.declare("mail")


def test_a_second_start_gets_the_same_chain_back(app: Queuert) -> None:
    first = app.start_chain("report", 1, dedup=Dedup("today"))
    second = app.start_chain("report", 2, dedup=Dedup("today"))
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second == first
    assert second.input == 1
    assert [chain.id for chain in app.list_chains()] == [first.id]
    job = app.get_job(first.id)
    assert job is not None
    assert job.deduplication_key == "today"


def test_keys_belong_to_a_chain_type(app: Queuert) -> None:
    report = app.start_chain("report", dedup=Dedup("today"))
    mail = app.start_chain("mail", dedup=Dedup("today"))
    assert mail.id != report.id
    assert not mail.deduplicated
    assert app.start_chain("report", dedup=Dedup("Today")).deduplicated is False


def finish(app: Queuert, chain: Chain) -> None:
    with app.complete_chain(chain.id) as tail:
        tail.finish()


def test_incomplete_means_blocked_pending_or_running(app: Queuert) -> None:
    blocker = app.start_chain("mail")
    blocked = app.start_chain("report", dedup=Dedup("b"), blockers=[blocker])
    assert app.start_chain("report", dedup=Dedup("b")).id == blocked.id
    pending = app.start_chain("report", dedup=Dedup("p"), after=3600)
    assert app.start_chain("report", dedup=Dedup("p")).id == pending.id
    with held(app, "running") as running:
        with app.transaction() as tx:
            tx.execute("UPDATE queuert_job SET deduplication_key = 'r' WHERE type_name = 'running'")
        assert app.start_chain("running", dedup=Dedup("r")).id == running.chain.id


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
def test_a_closed_chain_frees_its_key_unless_the_scope_is_any(app: Queuert, ending: str) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None:
        job.fail("NO:GOOD")

    first = app.start_chain(work, dedup=Dedup("k"))
    if ending == "completed":
        finish(app, first)
    elif ending == "cancelled":
        app.cancel_chain(first.id)
    else:
        app.drain()
    found = app.get_chain(first.id)
    assert found is not None
    assert found.status == ending
    assert app.start_chain(work, dedup=Dedup("k", scope="any", window=60)).id == first.id
    second = app.start_chain(work, dedup=Dedup("k"))
    assert second.id != first.id
    assert not second.deduplicated


def test_a_window_counts_from_the_chains_creation(app: Queuert) -> None:
    first = app.start_chain("report", dedup=Dedup("k"))
    make_older(app, first.id, timedelta(minutes=10))
    for scope in ("any", "incomplete"):
        assert app.start_chain("report", dedup=Dedup("k", scope=scope, window=timedelta(minutes=11))).id == first.id
    assert app.start_chain("report", dedup=Dedup("k")).id == first.id
    late = app.start_chain("report", dedup=Dedup("k", window=timedelta(minutes=9)))
    assert late.id != first.id
    assert app.start_chain("report", dedup=Dedup("k", scope="any", window=540)).id == late.id


def test_the_key_of_a_chain_goes_with_its_continuations(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("mail")

    chain = app.start_chain(first, dedup=Dedup("k"))
    app.drain()
    found = app.get_chain(chain.id)
    assert found is not None
    assert found.tail_type_name == "mail"
    again = app.start_chain(first, dedup=Dedup("k"))
    assert (again.id, again.deduplicated, again.tail_id) == (chain.id, True, found.tail_id)
    assert app.start_chain("mail", dedup=Dedup("k")).id != chain.id, "the key is the chain type's, not the tail's"


def test_exclusions_are_looked_past(app: Queuert) -> None:
    first = app.start_chain("report", dedup=Dedup("k"))
    second = app.start_chain("report", dedup=Dedup("k", exclude_chain_ids=[first]))
    assert second.id != first.id
    assert app.start_chain("report", dedup=Dedup("k", exclude_chain_ids=[first.id.upper()])).id == second.id
    assert app.start_chain("report", dedup=Dedup("k", exclude_chain_ids=(second.id,))).id == first.id
    assert app.start_chain("report", dedup=Dedup("k")).id == second.id, "the newest"


def test_a_recurring_job_starts_its_successor_inside_its_own_completion(app: Queuert) -> None:
    @app.job
    def tick(job: RunningJob[int]) -> int:
        with job.complete() as tx:
            dedup = Dedup("tick", exclude_chain_ids=[job.chain_id])
            following = app.start_chain(tick, job.input + 1, after=3600, dedup=dedup, conn=tx)
            assert not following.deduplicated
            return job.input

    first = app.start_chain(tick, 1, dedup=Dedup("tick"))
    for number in (1, 2, 3):
        assert app.start_chain(tick, 99, dedup=Dedup("tick")).deduplicated
        (waiting,) = app.list_chains(types=["tick"], statuses=["pending"]).items
        assert waiting.input == number
        app.trigger_job(waiting.id)
        assert app.drain() == 1
    assert [chain.status for chain in app.list_chains(types=["tick"], order="asc")] == [*["completed"] * 3, "pending"]
    assert app.wait_for(first, timeout=5).output == 1


def test_within_a_batch_the_first_of_a_key_is_created(app: Queuert) -> None:
    chains = app.start_chains(
        [
            NewChain("report", 1, dedup=Dedup("a")),
            NewChain("report", 2, dedup=Dedup("b")),
            NewChain("report", 3, dedup=Dedup("a")),
            NewChain("mail", 4, dedup=Dedup("a")),
            NewChain("report", 5),
            NewChain("report", 6, dedup=Dedup("a", scope="any", window=60)),
        ]
    )
    assert [chain.deduplicated for chain in chains] == [False, False, True, False, False, True]
    assert [chain.input for chain in chains] == [1, 2, 1, 4, 5, 1]
    assert chains[2] == chains[0] == chains[5]
    assert len(app.list_chains().items) == 4


def test_a_key_wins_over_an_id(app: Queuert) -> None:
    taken = app.start_chain("report", dedup=Dedup("k"))
    other = app.start_chain("mail")
    fresh = "0190a0b0-0000-7000-8000-000000000001"
    assert app.start_chain("report", id=fresh, dedup=Dedup("k")).id == taken.id
    assert app.start_chain("report", id=other.id, dedup=Dedup("k")).id == taken.id, "also over one that exists"
    assert app.get_job(fresh) is None
    assert app.start_chain("report", id=fresh, dedup=Dedup("other")).id == fresh


def test_deduplicated_chains_are_not_checked_against_blockers_or_schedules(app: Queuert) -> None:
    first = app.start_chain("report", dedup=Dedup("k"))
    blocker = app.start_chain("mail")
    again = app.start_chain("report", dedup=Dedup("k"), blockers=[blocker], after=60, priority=5)
    assert again == first
    assert app.get_job_blockers(first.id) == []


def test_many_callers_at_once_get_one_chain(app: Queuert) -> None:
    start = threading.Barrier(8)

    def call(number: int) -> Chain:
        start.wait(10)
        return app.start_chain("report", number, dedup=Dedup("k"))

    with ThreadPoolExecutor(8) as pool:
        chains = list(pool.map(call, range(8)))
    assert len({chain.id for chain in chains}) == 1
    assert sorted(chain.deduplicated for chain in chains) == [False, *[True] * 7]
    assert len(app.list_chains().items) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_caller_waits_for_the_first_ones_commit_or_rollback(app: Queuert, commits: bool) -> None:
    answers: list[Chain] = []
    waiter = threading.Thread(target=lambda: answers.append(app.start_chain("report", 2, dedup=Dedup("k"))), daemon=True)
    try:
        with app.transaction() as tx:
            first = app.start_chain("report", 1, dedup=Dedup("k"), conn=tx)
            waiter.start()
            waiter.join(0.2)
            assert waiter.is_alive()
            assert not answers
            if not commits:
                raise ArithmeticError
    except ArithmeticError:
        pass
    waiter.join(10)
    assert answers[0].deduplicated is commits
    assert (answers[0].id == first.id) is commits
    assert len(app.list_chains().items) == 1


def test_batches_with_keys_in_opposite_order_do_not_deadlock(app: Queuert) -> None:
    keys = [f"key-{n}" for n in range(20)]
    start = threading.Barrier(4)

    def call(number: int) -> list[Chain]:
        start.wait(10)
        ordered = keys if number % 2 else keys[::-1]
        return app.start_chains([NewChain("report", key, dedup=Dedup(key)) for key in ordered])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(call, range(4)))
    for chains in answers:
        assert sorted(chain.input for chain in chains) == sorted(keys)
    assert len({chain.id for chains in answers for chain in chains}) == 20


def test_keys_that_no_chain_carries_are_forgotten(app: Queuert) -> None:
    def keys() -> int:
        with app.transaction() as tx:
            count: int = tx.execute("SELECT count(*) FROM queuert_job_key").fetchone()[0]
            return count

    chain = app.start_chain("report", dedup=Dedup("k"))
    other = app.start_chain("report", dedup=Dedup("k", exclude_chain_ids=[chain]))
    assert keys() == 1
    app.delete_chain(chain.id)
    assert keys() == 1
    app.delete_chain(other.id)
    assert keys() == 0


def test_a_start_that_is_refused_leaves_no_key_behind(app: Queuert) -> None:
    taken = app.start_chain("mail")
    with app.transaction() as tx:
        cases: list[dict[str, Any]] = [{"id": taken.id}, {"blockers": ["0190a0b0-0000-7000-8000-000000000009"]}]
        for options in cases:
            with pytest.raises(QueuertError, match=r"exists already|There is no chain"):
                app.start_chain("report", dedup=Dedup("k"), conn=tx, **options)
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM queuert_job_key").fetchone()[0] == 0


def test_retrying_does_not_look_at_keys(app: Queuert) -> None:
    first = app.cancel_chain(app.start_chain("report", dedup=Dedup("k")).id)
    app.start_chain("report", dedup=Dedup("k"))
    assert app.retry_chain(first.id).status == "pending"
    assert len(app.list_chains(statuses=["pending"]).items) == 2


def test_what_is_not_a_dedup_is_refused(app: Queuert) -> None:
    with pytest.raises(TypeError):
        app.start_chain("report", dedup="k")
    with pytest.raises(InvalidJobIdError):
        app.start_chain("report", dedup=Dedup("k", exclude_chain_ids=["nonsense"]))
    assert app.list_chains().items == []


def test_a_chain_that_is_being_closed_frees_its_key_in_time(app: Queuert) -> None:
    first = app.start_chain("report", dedup=Dedup("k"))
    closed = threading.Event()

    def close() -> None:
        finish(app, first)
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    eventually(closed.is_set)
    assert app.start_chain("report", dedup=Dedup("k")).id != first.id

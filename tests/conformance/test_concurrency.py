"""Real connections at once: no job is given out twice, no chain is made twice, no job is left blocked."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support import eventually
from support.racing import PATIENCE, Background, claim_until_empty, together, wait_until_blocked
from support.store import TYPES, Store

from queuert.chains.complete import Completion
from queuert.chains.new_chain import NewChain
from queuert.model import Status
from queuert.options import Dedup

pytestmark = pytest.mark.conformance


def every_job(store: Store) -> set[str]:
    return {str(row[0]) for row in store.sql("SELECT id FROM {job}")}


def users_transaction(store: Store, call: Callable[[Any], Any]) -> Any:
    """Call with a user's own connection in a transaction of its own, which nobody tries again."""
    if store.dialect == "postgres":
        with closing(store.database.open_listener()) as conn, conn.transaction():
            return call(conn)
    with closing(sqlite3.connect(store.database.path, timeout=30, isolation_level="IMMEDIATE")) as conn:
        store.database.configure(conn)
        with conn:
            conn.execute("BEGIN IMMEDIATE")
            return call(conn)


# Claiming


def test_sixteen_threads_claim_distinct_jobs(store: Store) -> None:
    number = 320
    for name in TYPES:
        store.start_many(number // 4, name)
    store.start_many(number // 4, "a", priority=3)

    def claim(worker: str) -> list[str]:
        taken: list[str] = []
        while jobs := store.claim(7, worker=worker):
            assert {job.leased_by for job in jobs} == {worker}
            taken += [job.id for job in jobs]
        return taken

    taken = together(*(lambda n=n: claim(f"w{n}") for n in range(16)))
    assert Counter(job for own in taken for job in own) == Counter(every_job(store))
    assert store.sql("SELECT DISTINCT status, attempt FROM {job}") == [("running", 1)]


def test_four_processes_claim_distinct_jobs(shared_store: Store) -> None:
    store = shared_store
    store.start_many(240)
    store.start_many(240, "b")
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        calls = [processes.submit(claim_until_empty, store.url, ["a", "b"], f"p{n}", 5) for n in range(4)]
        taken = [call.result(60) for call in calls]
    assert Counter(job for own in taken for job in own) == Counter(every_job(store))


def test_claiming_completing_and_reaping_at_once_ends_every_job_once(store: Store) -> None:
    store.start_many(150)
    ended: list[str] = []

    def work(worker: str) -> None:
        while True:
            jobs = store.claim(5, worker=worker) or store.claim(5, worker=worker, suspect=True)
            if not jobs and not store.sql("SELECT 1 FROM {job} WHERE status IN ('pending', 'running') LIMIT 1"):
                return
            for job in jobs:
                if random.random() < 0.1:
                    store.expire(job)
            if jobs:
                ended.extend(store.complete(*jobs, worker=worker).ids)

    def reap() -> None:
        while store.sql("SELECT 1 FROM {job} WHERE status IN ('pending', 'running') LIMIT 1"):
            store.reap()

    together(*(lambda n=n: work(f"w{n}") for n in range(4)), reap)
    assert Counter(ended) == Counter(every_job(store))
    rows = store.sql(
        "SELECT j.id, j.attempt, count(a.attempt) FROM {job} j JOIN {job_attempt} a ON a.job_id = j.id GROUP BY j.id, j.attempt"
    )
    assert all(attempt == finished for _, attempt, finished in rows)


# Deduplication


@pytest.mark.parametrize("scope", ["incomplete", "any"])
def test_many_threads_with_one_key_make_one_chain(store: Store, scope: str) -> None:
    for turn in range(3):
        key = Dedup(f"k{turn}", scope, window=3600)
        chains = together(*(lambda key=key: store.start("a", dedup=key) for _ in range(12)))
        assert len({chain.id for chain in chains}) == 1
        assert Counter(chain.deduplicated for chain in chains) == {False: 1, True: 11}
    assert store.sql("SELECT count(*) FROM {job}") == [(3,)]


def test_who_waits_for_a_key_gets_it_if_the_first_rolls_back(shared_store: Store) -> None:
    store = shared_store

    class Undo(Exception):
        pass

    others: list[Background] = []

    def rolled_back(conn: object) -> None:
        store.start("a", "first", dedup=Dedup("k"), conn=conn)
        others.extend(Background(lambda: store.start("a", "other", dedup=Dedup("k")).id) for _ in range(3))
        wait_until_blocked(store, 3)
        assert all(other.running for other in others)
        raise Undo

    with pytest.raises(Undo):
        users_transaction(store, rolled_back)
    assert len({other.result() for other in others}) == 1
    assert [job.input for job in map(store.job, every_job(store))] == ['"other"']


def test_batches_with_keys_in_opposite_order_do_not_deadlock(shared_store: Store) -> None:
    store = shared_store
    for turn in range(15):
        batch = [NewChain(name, n, dedup=Dedup(f"{turn}-{n}")) for n in range(6) for name in ("a", "b")]
        shuffled = random.sample(batch, len(batch))
        answers = together(
            *(
                lambda wanted=wanted: users_transaction(store, lambda conn: store.starter.start(wanted, conn))
                for wanted in (batch, batch[::-1], shuffled)
            )
        )
        assert len({frozenset(chain.id for chain in answer) for answer in answers}) == 1
    assert store.sql("SELECT count(*) FROM {job}") == [(15 * 12,)]


# Blockers


def finisher(store: Store, chain_id: str, how: str) -> Callable[[], None]:
    """One of the ways in which a chain is closed; what comes before the close is done here."""
    if how == "outside":
        return lambda: store.finish(chain_id)
    (job,) = store.claim(1, ["b"])
    completion = Completion(job, "null", job.lease_token)

    def complete(wait: bool) -> None:
        # The completer skips what is locked, and comes back to it.
        while not store.write(lambda session: store.chains.complete(session, "w1", [completion], wait=wait)).ids:
            assert not wait

    return lambda: complete(how == "worker")


@pytest.mark.parametrize("how", ["outside", "worker", "completer"])
def test_a_blocker_that_completes_at_the_instant_its_dependant_is_created_never_strands_it(store: Store, how: str) -> None:
    rounds = 120 if store.dialect == "postgres" else 40
    states: Counter[Status] = Counter()
    head_start = 0.0
    for _ in range(rounds):
        blocker = store.start("b")
        close = finisher(store, blocker.id, how)
        delay = head_start + random.uniform(-0.001, 0.001)  # who of the two waits, and how long: the race is one of time

        def create(blocker: Any = blocker, pause: float = max(0, delay)) -> Any:
            time.sleep(pause)
            return store.start("a", blockers=[blocker])

        def finish(close: Callable[[], None] = close, pause: float = max(0, -delay)) -> None:
            time.sleep(pause)
            close()

        made, _ = together(create, finish)
        # Who came second gets a head start, so that the race stays close on every machine.
        head_start += 0.0005 if made.status is Status.BLOCKED else -0.0005
        states[made.status] += 1
        job = store.job(made)
        assert (job.status, job.open_blockers) == (Status.PENDING, 0)
    assert store.history.stats(None, None, None).by_status[Status.BLOCKED] == 0
    assert len(states) == 2, "the race was never close"


def test_a_continuation_that_waits_for_a_chain_closing_just_now_is_not_stranded(store: Store) -> None:
    for _ in range(40 if store.dialect == "postgres" else 15):
        blocker = store.start("b")
        store.start("a")
        (job,) = store.claim(1, ["a"])
        following, _ = together(
            lambda job=job, blocker=blocker: store.proceed(job, "c", blockers=[blocker]),
            lambda blocker=blocker: store.finish(blocker),
        )
        assert (store.job(following).status, store.job(following).open_blockers) == (Status.PENDING, 0)
        store.chains.cancel([following.chain_id], None)


@pytest.mark.parametrize("number", [2, 6])
def test_blockers_that_close_at_once_release_a_job_exactly_once(store: Store, number: int) -> None:
    for _ in range((60 if store.dialect == "postgres" else 20) // number):
        blockers = store.start_many(number, "b")
        chain = store.start("a", blockers=blockers)
        together(*(lambda blocker=blocker: store.finish(blocker) for blocker in blockers))
        job = store.job(chain)
        assert (job.status, job.open_blockers) == (Status.PENDING, 0)
        assert store.events(chain) == ["UNBLOCKED"]
        assert len(store.claim(5, ["a"])) == 1


def test_a_random_graph_worked_on_by_all_threads_ends_completed(store: Store) -> None:
    """Chains start, wait for each other, go on and close all at once; in the end nothing waits."""
    roots: list[str] = [store.start("b").id]
    created: list[int] = []

    def create(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            wanted = chance.sample(roots, min(len(roots), chance.randint(0, 3)))
            roots.append(store.start(chance.choice("ab"), blockers=wanted).id)
        created.append(seed)

    def work(worker: str) -> bool:
        """Whether nothing is left to do."""
        while jobs := store.claim(4, ["a", "b", "c"], worker=worker):
            for job in jobs:
                if job.type_name == "a" and job.chain_index == 0:
                    store.proceed(job, "c", blockers=[])
                else:
                    assert store.complete(job, worker=worker).ids
        return len(created) == 3 and not store.sql("SELECT 1 FROM {job} WHERE status <> 'completed' LIMIT 1")

    together(
        *(lambda n=n: create(n) for n in range(3)),
        *(lambda n=n: eventually(lambda: work(f"w{n}"), PATIENCE) for n in range(4)),
    )
    assert store.sql("SELECT DISTINCT status, open_blockers FROM {job}") == [("completed", 0)]


# Other things at once


def test_a_task_is_taken_by_one_of_many_threads(store: Store) -> None:
    def take(owner: str) -> bool:
        return store.write(lambda session: store.repository.take_singleton(session, "t", owner, 60)) is not None

    for _ in range(3):
        assert Counter(together(*(lambda n=n: take(f"o{n}") for n in range(10)))) == {True: 1, False: 9}
        store.sql("DELETE FROM {singleton}")


def test_deleting_and_naming_a_blocker_at_once_leaves_no_orphan(store: Store) -> None:
    for _ in range(25):
        blocker = store.start("b")

        def create(blocker: Any = blocker) -> str:
            try:
                return str(store.start("a", blockers=[blocker]).status)
            except Exception as error:
                return type(error).__name__

        def delete(blocker: Any = blocker) -> str:
            try:
                return f"deleted {len(store.chains.delete([blocker.id], None))}"
            except Exception as error:
                return type(error).__name__

        made, gone = together(create, delete)
        assert (made, gone) in {("blocked", "BlockerReferenceError"), ("ChainNotFoundError", "deleted 1")}, (made, gone)
        orphans = "SELECT count(*) FROM {job_blocker} WHERE blocked_by_chain_id NOT IN (SELECT id FROM {job})"
        assert store.sql(orphans) == [(0,)]


def test_cancelling_and_completing_at_once_has_one_winner(store: Store) -> None:
    for _ in range(25):
        chain = store.start()
        (job,) = store.claim()
        done, _ = together(lambda job=job: store.complete(job).ids, lambda chain=chain: store.chains.cancel([chain.id], None))
        assert store.job(chain).status is (Status.COMPLETED if done else Status.CANCELLED)
        assert [a.outcome for a in store.attempts(chain)] == ["succeeded" if done else "cancelled"]

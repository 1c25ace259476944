"""A user's PostgreSQL connection above READ COMMITTED: open blockers and keys work or raise; nothing strands or doubles."""

# ruff: noqa: PT012 - what a block does when its body raises is what is tested

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.racing import Background, together, wait_until_blocked
from support.store import Store

from queuert.errors import StaleSnapshotError
from queuert.model import Chain, Status
from queuert.options import Dedup

psycopg = pytest.importorskip("psycopg")

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"]),
]

REFUSED = (psycopg.errors.SerializationFailure, StaleSnapshotError)


@pytest.fixture
def store(postgres_store: Store) -> Store:
    return postgres_store


@contextmanager
def transaction(store: Store, level: str) -> Iterator[Any]:
    """A user's transaction that has its snapshot already."""
    with psycopg.connect(store.url, autocommit=True) as conn:
        conn.isolation_level = psycopg.IsolationLevel[level]
        with conn.transaction():
            conn.execute("SELECT count(*) FROM queuert_job")
            yield conn


def committed(store: Store, level: str, act: Callable[[Any], Any]) -> Any:
    """Act in such a transaction again and again, as a user would, until it is not refused."""
    for _ in range(50):
        try:
            with transaction(store, level) as conn:
                return act(conn)
        except REFUSED:
            continue
    raise AssertionError("it was refused every time")


def assert_not_stranded(store: Store, chain: Chain | None) -> None:
    if chain is not None:
        job = store.reader.job(chain.id, None, None)
        assert job is None or (job.status, job.open_blockers) == (Status.PENDING, 0)


def test_an_open_blocker_works(store: Store, level: str) -> None:
    blocker = store.start("b")
    with transaction(store, level) as conn:
        chain = store.start("a", blockers=[blocker], conn=conn)
        assert chain.status is Status.BLOCKED
    store.finish(blocker)
    assert_not_stranded(store, chain)


@pytest.mark.parametrize("continued", [False, True])
def test_a_blocker_that_completed_after_the_snapshot(store: Store, level: str, continued: bool) -> None:
    blocker = store.start("b")
    chain = None
    try:
        with transaction(store, level) as conn:
            if continued:
                (job,) = store.claim()
                store.proceed(job, "c")
            store.finish(blocker)
            chain = store.start("a", blockers=[blocker], conn=conn)
    except REFUSED:
        assert store.sql("SELECT count(*) FROM {job} WHERE type_name = 'a'") == [(0,)]
        return
    assert_not_stranded(store, chain)


def test_a_blocker_that_completes_before_the_commit(store: Store, level: str) -> None:
    blocker = store.start("b")
    with transaction(store, level) as conn:
        chain = store.start("a", blockers=[blocker], conn=conn)
        closing = Background(lambda: store.finish(blocker))
        wait_until_blocked(store)
    closing.result()
    assert_not_stranded(store, chain)


def test_a_blocker_that_goes_on_after_the_snapshot(store: Store, level: str) -> None:
    blocker = store.start("b")
    made = []
    try:
        with transaction(store, level) as conn:
            (job,) = store.claim()
            store.proceed(job, "c")
            made.append(store.start("a", blockers=[blocker], conn=conn))
    except REFUSED:
        made = []
    store.finish(blocker)
    for chain in made:
        assert_not_stranded(store, chain)


def test_closing_a_chain_that_somebody_came_to_wait_for_after_the_snapshot(store: Store, level: str) -> None:
    blocker = store.start("b")
    with pytest.raises(REFUSED), transaction(store, level) as conn:
        chain = store.start("a", blockers=[blocker])
        store.finish(blocker, conn=conn)
    assert store.chain(blocker).status is Status.PENDING
    committed(store, level, lambda conn: store.finish(blocker, conn=conn))
    assert_not_stranded(store, chain)


def test_closing_a_chain_with_dependants_that_were_there_before_works(store: Store, level: str) -> None:
    blocker = store.start("b")
    chain = store.start("a", blockers=[blocker])
    with transaction(store, level) as conn:
        store.finish(blocker, conn=conn)
    assert_not_stranded(store, chain)


def test_a_refused_close_leaves_the_transaction_usable(store: Store, level: str) -> None:
    blocker = store.start("b")
    with transaction(store, level) as conn:
        waiting = store.start("a", blockers=[blocker])
        with pytest.raises(StaleSnapshotError):
            store.finish(blocker, conn=conn)
        other = store.start("c", conn=conn)
    assert store.job(other).status is Status.PENDING
    assert store.job(waiting).status is Status.BLOCKED


@pytest.mark.parametrize("known", [False, True], ids=["new key", "known key"])
def test_a_key_that_was_taken_after_the_snapshot(store: Store, level: str, known: bool) -> None:
    if known:
        store.finish(store.start("a", dedup=Dedup("k")))
    try:
        with transaction(store, level) as conn:
            first = store.start("a", dedup=Dedup("k"))
            second = store.start("a", dedup=Dedup("k"), conn=conn)
            assert second.id == first.id
    except REFUSED:
        pass
    assert store.sql("SELECT count(*) FROM {job} WHERE status = 'pending'") == [(1,)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_that_another_transaction_is_taking(store: Store, level: str, commits: bool) -> None:
    class Undo(Exception):
        pass

    def second() -> Any:
        with transaction(store, level) as conn:
            return store.start("a", dedup=Dedup("k"), conn=conn)

    made: Any = None
    try:
        with store.database.block() as session:
            first = store.start("a", dedup=Dedup("k"), conn=session.raw)
            other = Background(second)
            wait_until_blocked(store)
            if not commits:
                raise Undo
    except Undo:
        pass
    try:
        made = other.result()
    except REFUSED:
        assert commits
    assert store.sql("SELECT count(*) FROM {job}") == [(1,)]
    if made is not None and commits:
        assert made.id == first.id


def test_deleting_a_chain_that_somebody_came_to_wait_for_after_the_snapshot(store: Store, level: str) -> None:
    blocker = store.start("b")
    with pytest.raises((psycopg.errors.IntegrityError, *REFUSED)), transaction(store, level) as conn:
        chain = store.start("a", blockers=[blocker])
        store.chains.delete([blocker.id], conn)
    assert store.chain(blocker).status is Status.PENDING
    assert store.job(chain).status is Status.BLOCKED


def test_many_transactions_at_once_strand_and_double_nothing(store: Store, level: str) -> None:
    for turn in range(25):
        blockers = store.start_many(2, "b")
        key = Dedup(f"k{turn}")

        def create(blockers: list[Chain] = blockers, key: Dedup = key) -> Chain:
            return committed(store, level, lambda conn: store.start("a", blockers=blockers, dedup=key, conn=conn))

        def close(blocker: Chain, own: bool) -> None:
            if own:
                committed(store, level, lambda conn: store.finish(blocker, conn=conn))
            else:
                store.finish(blocker)

        own = random.random() < 0.5
        one, two, *_ = together(
            create, create, lambda b=blockers[0], o=own: close(b, o), lambda b=blockers[1], o=own: close(b, not o)
        )
        # The second may have come when the first was open, or there is one for each: never two that are open at once.
        assert_not_stranded(store, one)
        assert_not_stranded(store, two)
        assert one.id == two.id


def test_under_a_higher_default_the_librarys_own_blocks_see_everything(store: Store, level: str) -> None:
    store.sql(f"ALTER ROLE CURRENT_USER SET default_transaction_isolation = '{level.replace('_', ' ').lower()}'")
    try:
        fresh = Store(store.url)
        try:
            blocker = fresh.start("b")
            with fresh.chains.complete_from_outside(blocker.id, None, None) as tail:
                tail.finish()
            blocker = fresh.start("b")
            with fresh.database.block() as session:
                fresh.reader.chain(blocker.id, None, session.raw)  # the snapshot, if it is fixed
                chain = store.start("a", blockers=[blocker])
                fresh.finish(blocker, conn=session.raw)
            assert_not_stranded(store, chain)
        finally:
            fresh.close()
    finally:
        store.sql("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")

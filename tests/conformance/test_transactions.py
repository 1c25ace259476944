"""Transactions: what is rolled back leaves no trace, what is not committed is seen by nobody else."""

# ruff: noqa: PT012 - what a block does when its body raises is what is tested

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.store import PAST, Store

from queuert.chains.complete import Completion
from queuert.ids import uuid7
from queuert.model import Status
from queuert.notify.protocol import Channel
from queuert.options import Dedup
from queuert.storage.protocol import Session

pytestmark = pytest.mark.conformance


class Undo(Exception):
    """Raised to leave a transaction."""


class World:
    """Jobs in each state, for every mutation to have something to change."""

    new = blocked = other = ""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pending = store.start("a", after=500)
        self.keyed = store.start("a", dedup=Dedup("k"), after=500)
        self.running = store.start("b")
        (self.held,) = store.claim(1, ["b"])
        self.expired = store.start("b")
        (self.lost,) = store.claim(1, ["b"])
        store.expire(self.lost)
        self.waiting = store.start("c", blockers=[self.running])
        self.failed = store.start("b")
        (job,) = store.claim(1, ["b"])
        store.fail(job)
        self.done = store.start("b")
        store.finish(self.done)
        self.due = store.start("b")
        store.write(lambda session: store.repository.take_singleton(session, "task", "me", 60))


MUTATIONS: dict[str, Callable[[World, Session], Any]] = {
    "start": lambda w, s: w.store.start("a", conn=s.raw),
    "start with key": lambda w, s: w.store.start("a", dedup=Dedup("new"), conn=s.raw),
    "start with blocker": lambda w, s: w.store.start("a", blockers=[w.running, w.done], conn=s.raw),
    "claim": lambda w, s: w.store.claim(5, session=s),
    "renew": lambda w, s: w.store.repository.renew_leases(
        s, "w1", [{"id": w.held.id, "token": w.held.lease_token, "lease": 999}]
    ),
    "complete": lambda w, s: w.store.complete(w.held, session=s).ids,
    "continue": lambda w, s: w.store.complete(w.held, then=w.store.chains.next_job(w.held, "a"), session=s).ids,
    "continue with blocker": lambda w, s: (
        w.store.complete(w.held, then=w.store.chains.next_job(w.held, "a", blockers=[w.pending]), session=s).ids
    ),
    "reschedule": lambda w, s: w.store.end(w.held, s, outcome="rescheduled", after=5, forgive=1),
    "fail": lambda w, s: w.store.end(w.held, s, status="failed"),
    "release": lambda w, s: w.store.chains.release_claims(s, "w1", [{"id": w.held.id, "token": w.held.lease_token}]),
    "reap": lambda w, s: [w.store.end(job, s, outcome="lost", after=1) for job in w.store.expired(5, s)],
    "trigger": lambda w, s: w.store.chains.trigger([w.pending.id], s.raw),
    "cancel": lambda w, s: w.store.chains.cancel([w.running.id], s.raw, cascade=True),
    "retry": lambda w, s: w.store.chains.retry([w.failed.id], s.raw),
    "delete": lambda w, s: w.store.chains.delete([w.waiting.id], s.raw, cascade=True),
    "delete with key": lambda w, s: w.store.chains.delete([w.keyed.id], s.raw),
    "finish from outside": lambda w, s: w.store.finish(w.running, conn=s.raw) or True,
    "event": lambda w, s: (
        w.store.repository.add_events(s, [{"job_id": w.due.id, "event": "NOTED", "actor": None, "detail": "{}"}]) or True
    ),
    "take a task": lambda w, s: w.store.repository.take_singleton(s, "other", "me", 60),
    "finish a task": lambda w, s: w.store.repository.finish_singleton(s, "task", "me", next_in=5.0),
}


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rolled_back_mutation_leaves_every_table_as_it_was(world: World, name: str) -> None:
    store = world.store
    before = store.tables()

    def work(session: Session) -> None:
        assert MUTATIONS[name](world, session)
        assert store.tables(session) != before
        raise Undo

    with pytest.raises(Undo), store.database.block() as session:
        work(session)
    assert store.tables() == before


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_in_a_rolled_back_savepoint_leaves_the_rest(world: World, name: str) -> None:
    store = world.store
    with store.database.block() as session:
        kept = store.start("c", conn=session.raw)
        before = store.tables(session)
        with pytest.raises(Undo), session.savepoint():
            assert MUTATIONS[name](world, session)
            raise Undo
        assert store.tables(session) == before
    assert store.job(kept).status is Status.PENDING


POISON = "SELECT no_such_column FROM {job}"


def test_a_transaction_goes_on_after_a_savepoint_with_poisoned_sql(store: Store) -> None:
    with store.database.block() as session:
        first = store.start(conn=session.raw)
        with pytest.raises(Exception, match="no_such_column"), session.savepoint():
            store.start("b", conn=session.raw)
            store.sql(POISON, session)
        with pytest.raises(Undo), session.savepoint():
            with session.savepoint():
                store.start("b", conn=session.raw)
            raise Undo
        with session.savepoint(), session.savepoint():
            second = store.start("c", conn=session.raw)
    assert {str(row[0]) for row in store.sql("SELECT id FROM {job}")} == {first.id, second.id}


def test_an_attempt_can_be_recorded_after_the_handlers_sql_failed(store: Store) -> None:
    store.start()
    (job,) = store.claim()
    with store.database.block() as session:
        with pytest.raises(Exception, match="no_such_column"), session.savepoint():
            store.sql(POISON, session)
        assert store.end(job, session, after=30) == {job.id}
    assert (store.job(job).status, len(store.attempts(job))) == (Status.PENDING, 1)


def test_notices_of_what_was_rolled_back_are_never_told(store: Store) -> None:
    told: list[Any] = []
    with store.context.notifier.subscribe(told.append, channels=set(Channel)):
        with pytest.raises(Undo), store.database.block() as session:
            store.start("a", conn=session.raw)
            raise Undo
        with store.database.block() as session:
            store.start("b", conn=session.raw)
            with pytest.raises(Undo), session.savepoint():
                store.start("c", conn=session.raw)
                raise Undo
            assert told == []
        assert {notice.payload for notice in told} == {"b"}


# What others see of a transaction under way


READS: dict[str, Callable[[Store, Session, World], Any]] = {
    "get_jobs": lambda st, s, w: st.repository.get_jobs(s, [w.new]),
    "get_chains": lambda st, s, w: st.repository.get_chains(s, [w.new]),
    "get_tails": lambda st, s, w: st.repository.get_tails(s, [w.running.id]),
    "get_blockers": lambda st, s, w: st.repository.get_blockers(s, [w.blocked]),
    "lease_states": lambda st, s, w: st.repository.lease_states(s, [w.due.id]),
    "waits_for": lambda st, s, w: st.repository.waits_for(s, [w.blocked]),
    "waiting_chains": lambda st, s, w: sorted(st.repository.waiting_chains(s, [w.pending.id])),
    "waiting_jobs": lambda st, s, w: st.repository.waiting_jobs(s, [w.pending.id]),
    "blocker_chains": lambda st, s, w: sorted(st.repository.blocker_chains(s, [w.blocked])),
    "connected_chains": lambda st, s, w: sorted(st.repository.connected_chains(s, [w.pending.id])),
    "missing_blockers": lambda st, s, w: st.repository.missing_blockers(s, [w.waiting.id]),
    "blocker_references": lambda st, s, w: st.repository.blocker_references(s, [w.pending.id]),
    "find_duplicates": lambda st, s, w: st.repository.find_duplicates(
        s, [{"n": 0, "type_name": "a", "key": "secret", "scope": "incomplete", "since": None, "exclude": []}]
    ),
    "next_due": lambda st, s, w: st.repository.next_due(s, ["fresh"]) is None,
    "expired_chains": lambda st, s, w: st.repository.expired_chains(s, "b", "completed", 60.0, None, 50),
    "chain_types": lambda st, s, w: st.repository.chain_types(s),
    "job_types": lambda st, s, w: st.repository.job_types(s),
    "list_singletons": lambda st, s, w: st.repository.list_singletons(s),
    "list_attempts": lambda st, s, w: st.repository.list_attempts(s, w.held.id),
    "list_events": lambda st, s, w: st.repository.list_events(s, w.waiting.id),
    "count_jobs": lambda st, s, w: sorted(st.repository.count_jobs(s, ["a", "b", "c"], ["pending", "completed"], None)),
    "count_attempts": lambda st, s, w: sorted(st.repository.count_attempts(s, ["a", "b", "c"], ["failed"], None)),
    "count_retries": lambda st, s, w: sorted(st.repository.count_retries(s, ["a", "b", "c"], None)),
    "count_errors": lambda st, s, w: st.repository.count_errors(s, ["b", "c"], None),
    "count_stranded": lambda st, s, w: st.repository.count_stranded(s, ["c"], None),
    "longest_running": lambda st, s, w: [r.job_id for r in st.repository.longest_running(s, ["b", "c"], 50)],
    **{
        f"{listing} {order}": lambda st, s, w, listing=listing, order=order: [
            (item.id, item.status) for item in _list(st, s, listing, order, w)
        ]
        for listing in ("jobs", "jobs named", "chains", "chains named", "chain jobs", "blocked jobs")
        for order in ("asc", "desc")
    },
}


def _list(store: Store, session: Session, listing: str, order: str, world: World) -> list[Any]:
    repository, ids = store.repository, [world.new, world.blocked]
    page = {"at": None, "id": None, "limit": 100}
    span = {"since": None, "until": None, "error_codes": None}
    every = {"types": ["a", "b", "c", "fresh"], "statuses": [status.value for status in Status]}
    if listing == "jobs":
        return repository.list_jobs(session, order, **page, **span, **every, chain_types=None)
    if listing == "jobs named":
        return repository.list_jobs(session, order, **page, **span, **every, chain_types=None, job_ids=ids, chain_ids=[])
    if listing == "chains":
        return repository.list_chains(session, order, **page, **span, **every, root_only=False)
    if listing == "chains named":
        return repository.list_chains(session, order, **page, **span, **every, root_only=False, job_ids=[], chain_ids=ids)
    if listing == "chain jobs":
        return repository.list_chain_jobs(session, order, chain_id=world.held.id, index=None, limit=100)
    return repository.list_blocked_jobs(session, order, chain_id=world.pending.id, **page)


def _change_everything(world: World, session: Session) -> None:
    """Something that each read would show, if it saw it."""
    store = world.store
    (due,) = store.claim(1, ["b"], session=session)
    assert due.id == world.due.id
    store.end(due, session, status="failed", code="NEW:ERROR")
    store.start("b", id=world.other, conn=session.raw)
    store.finish(world.other, conn=session.raw)
    long_ago = "UPDATE {job} SET created_at = :at, chain_created_at = :at, completed_at = :at WHERE id = :id"
    store.sql(long_ago, session, at=PAST, id=world.other)
    store.sql("UPDATE {job} SET attempt = 1 WHERE id = :id", session, id=world.pending.id)
    store.start("a", id=world.new, dedup=Dedup("secret"), conn=session.raw)
    store.start("c", id=world.blocked, blockers=[world.pending, world.failed, world.done], conn=session.raw)
    store.sql("UPDATE {job} SET blocker_count = 9 WHERE id = :id", session, id=world.waiting.id)
    following = store.chains.next_job(world.held, "c", blockers=[world.done])
    finished = [Completion(world.held, None, world.held.lease_token, following)]
    assert store.chains.complete(session, "w1", finished).ids
    assert store.claim(1, ["c"], session=session)
    store.repository.add_events(session, [{"job_id": world.waiting.id, "event": "NOTED", "actor": None, "detail": "{}"}])
    assert store.repository.take_singleton(session, "hidden", "me", 60)
    fresh = "UPDATE {job} SET type_name = 'fresh', chain_type_name = 'fresh' WHERE id = :id"
    store.sql(fresh, session, id=world.keyed.id)


def test_no_reader_sees_what_is_not_committed(world: World) -> None:
    store = world.store
    world.new, world.blocked, world.other = uuid7(), uuid7(), uuid7()

    def everything(session: Session) -> dict[str, Any]:
        return {name: read(store, session, world) for name, read in READS.items()}

    before = store.read(everything)
    seen: dict[str, Any] = {}
    reader = threading.Thread(target=lambda: seen.update(store.read(everything)))
    with pytest.raises(Undo), store.database.block() as session:
        _change_everything(world, session)
        inside = everything(session)
        assert {name for name in READS if inside[name] == before[name]} == set()
        reader.start()
        # In memory a reader waits for the end of the writer; elsewhere it must not.
        reader.join(0.05 if store.url == "sqlite:///:memory:" else 30)
        assert reader.is_alive() is (store.url == "sqlite:///:memory:")
        raise Undo
    reader.join(30)
    assert {name for name in READS if seen[name] != before[name]} == set()


def test_a_users_own_reads_see_their_own_writes(store: Store) -> None:
    with store.database.block() as session:
        chain = store.start("a", 5, conn=session.raw)
        assert store.reader.chain(chain.id, None, session.raw).input == 5
        assert store.history.stats(None, 10, session.raw).by_status[Status.PENDING] == 1
    assert store.reader.chain(uuid7(), None, None) is None

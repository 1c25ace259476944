"""Listings: filters, order, and cursors that neither skip nor repeat, also where all times are equal."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.store import Store

from queuert.errors import ChainNotFoundError, InvalidCursorError, JobNotFoundError
from queuert.ids import uuid7
from queuert.model import Status

pytestmark = pytest.mark.conformance

EVERYTHING = {
    "types": None,
    "statuses": None,
    "job_ids": None,
    "chain_ids": None,
    "since": None,
    "until": None,
    "error_codes": None,
}
SAME = "2020-05-05T05:05:05.050505Z"


def jobs(store: Store, **options: Any) -> Any:
    given = {**EVERYTHING, "chain_types": None, "order": "desc", "cursor": None, "limit": 50, "conn": None, **options}
    return store.lister.list_jobs(**given)


def chains(store: Store, **options: Any) -> Any:
    given = {**EVERYTHING, "root_only": False, "order": "desc", "cursor": None, "limit": 50, "conn": None, **options}
    return store.lister.list_chains(**given)


def pages(listing: Any, store: Store, **options: Any) -> list[list[str]]:
    """The ids of all pages, one after another."""
    found, cursor = [], None
    while True:
        page = listing(store, cursor=cursor, **options)
        found.append([item.id for item in page])
        cursor = page.next_cursor
        if cursor is None:
            return found


def flat(found: list[list[str]]) -> list[str]:
    return [identity for page in found for identity in page]


def at_the_same_time(store: Store) -> None:
    store.sql("UPDATE {job} SET created_at = :at, chain_created_at = :at", at=SAME)


@pytest.fixture
def populated(store: Store) -> Store:
    """Chains in each state: some with continuations, some blocked."""
    for number in range(4):
        for name in ("a", "b", "c"):
            store.start(name, number, priority=number)
    for job in store.claim(4, ["a", "b"]):
        store.proceed(job, "c", input=0) if job.type_name == "a" else store.complete(job)
    for job in store.claim(2, ["b"]):
        store.fail(job)
    victims = [job.id for job in jobs(store, types=["c"], statuses=["pending"])][:2]
    store.chains.cancel([store.job(v).chain_id for v in victims], None)
    root = store.start("a", "blocker")
    store.start("b", blockers=[root])
    store.claim(1, ["c"])
    return store


def expected_jobs(store: Store, test: Any, *, order: str) -> list[str]:
    rows = store.sql("SELECT created_at, id, type_name, status, chain_type_name FROM {job}")
    kept = sorted(row[:2] for row in rows if test(*row[2:]))
    return [str(identity) for _, identity in (kept if order == "asc" else reversed(kept))]


def expected_chains(store: Store, test: Any, *, order: str) -> list[str]:
    rows = store.sql("SELECT chain_created_at, chain_id, chain_type_name, status FROM {job} WHERE continued_to IS NULL")
    kept = sorted(row[:2] for row in rows if test(*row[2:]))
    return [str(identity) for _, identity in (kept if order == "asc" else reversed(kept))]


TYPE_FILTERS = [None, ["a"], ["c", "a"], ["nothing"]]
STATUS_FILTERS = [None, ["completed"], ["failed", "pending"], ["running", "blocked", "cancelled"]]


@pytest.mark.parametrize("same_time", [False, True], ids=["times differ", "times equal"])
def test_every_filter_order_and_page_size_gives_each_record_once(populated: Store, same_time: bool) -> None:
    store = populated
    if same_time:
        at_the_same_time(store)
    for types in TYPE_FILTERS:
        for statuses in STATUS_FILTERS:
            for order in ("asc", "desc"):
                wanted = expected_jobs(
                    store,
                    lambda t, s, _, types=types, statuses=statuses: (
                        (types is None or t in types) and (statuses is None or s in statuses)
                    ),
                    order=order,
                )
                whole = expected_chains(
                    store,
                    lambda t, s, types=types, statuses=statuses: (
                        (types is None or t in types) and (statuses is None or s in statuses)
                    ),
                    order=order,
                )
                for limit in (3, 50):
                    filters = {"types": types, "statuses": statuses, "order": order, "limit": limit}
                    found = pages(jobs, store, **filters)
                    assert flat(found) == wanted
                    assert all(len(page) == limit for page in found[:-1])
                    assert flat(pages(chains, store, **filters)) == whole


def test_chain_types_filter_jobs_by_their_chain(populated: Store) -> None:
    store = populated
    for chain_types in (["a"], ["b", "c"], []):
        wanted = expected_jobs(store, lambda _, __, chain, names=chain_types: chain in names, order="desc")
        assert flat(pages(jobs, store, chain_types=chain_types, limit=2)) == wanted


def test_named_jobs_and_chains_are_listed_with_the_same_filters(populated: Store) -> None:
    store = populated
    at_the_same_time(store)
    every = expected_jobs(store, lambda *_: True, order="desc")
    some = every[::2]
    assert flat(pages(jobs, store, job_ids=[*some, uuid7()], limit=2)) == some
    assert flat(pages(jobs, store, job_ids=some, limit=2, order="asc")) == some[::-1]
    pending = [i for i in some if store.job(i).status is Status.PENDING]
    assert flat(pages(jobs, store, job_ids=some, statuses=["pending"])) == pending
    assert flat(pages(jobs, store, job_ids=some, types=["c"])) == [i for i in some if store.job(i).type_name == "c"]
    roots = expected_chains(store, lambda *_: True, order="desc")
    assert flat(pages(chains, store, chain_ids=roots[1::2], limit=2)) == roots[1::2]
    owners = {store.job(i).chain_id for i in some}
    assert flat(pages(chains, store, job_ids=some, limit=3)) == [i for i in roots if i in owners]
    members = sorted(i for i in every if store.job(i).chain_id in roots[:3])
    assert sorted(flat(pages(jobs, store, chain_ids=roots[:3], limit=2))) == members
    continuation = next(i for i in every if store.job(i).chain_index)
    assert flat(pages(chains, store, chain_ids=[continuation])) == []


def test_empty_filters_list_nothing(populated: Store) -> None:
    for name in ("types", "statuses", "job_ids", "chain_ids"):
        assert jobs(populated, **{name: []}).items == []
        assert chains(populated, **{name: []}).items == []


@pytest.mark.parametrize("named", [False, True])
def test_since_is_inclusive_and_until_exclusive(store: Store, named: bool) -> None:
    created = store.start_many(5)
    start = datetime(2022, 2, 2, 2, 2, 2, 222222, tzinfo=timezone.utc)
    for number, chain in enumerate(created):
        at = (start + timedelta(microseconds=number)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        store.sql("UPDATE {job} SET created_at = :at, chain_created_at = :at WHERE id = :id", at=at, id=chain.id)
    window = {"since": start + timedelta(microseconds=1), "until": start + timedelta(microseconds=3), "order": "asc"}
    if named:
        window["chain_ids"] = [chain.id for chain in created]
    assert flat(pages(jobs, store, **window, limit=1)) == [chain.id for chain in created[1:3]]
    assert flat(pages(chains, store, **window, limit=1)) == [chain.id for chain in created[1:3]]


def test_error_codes_choose_what_carries_one_or_one_of_its_category(store: Store) -> None:
    codes = ["TIMEOUT:A", "TIMEOUT:B", "TIMEOUTS:A", None]
    created = [store.start("a") for _ in codes]
    for chain, code in zip(created, codes, strict=True):
        store.sql("UPDATE {job} SET error_code = :code, status = 'failed' WHERE id = :id", code=code, id=chain.id)
    ids = [chain.id for chain in created]
    for wanted, found in (
        (["TIMEOUT:A"], ids[:1]),
        (["TIMEOUT:"], ids[:2]),
        (["TIMEOUT:B", "TIMEOUTS:"], ids[1:3]),
        (["TIME"], []),
    ):
        for named in ({}, {"chain_ids": ids}):
            for listing in (jobs, chains):
                assert flat(pages(listing, store, error_codes=wanted, order="asc", limit=1, **named)) == found
    assert jobs(store, error_codes=[]).items == []
    assert jobs(store, error_codes=["TIMEOUT:A"], statuses=["pending"]).items == []
    for listing in (jobs, chains):
        for bad in ("TIMEOUT:A", [7]):
            with pytest.raises(TypeError):
                listing(store, error_codes=bad)


def test_root_only_leaves_out_chains_that_were_ever_blockers(store: Store) -> None:
    blocker, free = store.start("b"), store.start("b")
    waiting = store.start("a", blockers=[blocker])
    assert {c.id for c in chains(store, root_only=True)} == {free.id, waiting.id}
    store.finish(blocker)
    assert {c.id for c in chains(store, root_only=True)} == {free.id, waiting.id}
    every = [blocker.id, free.id, waiting.id]
    assert {c.id for c in chains(store, root_only=True, chain_ids=every)} == {free.id, waiting.id}


def test_new_and_deleted_records_do_not_disturb_the_pages(store: Store) -> None:
    created = [chain.id for chain in store.start_many(9)]
    at_the_same_time(store)
    first = jobs(store, order="asc", limit=3)
    assert [job.id for job in first] == created[:3]
    store.chains.delete([created[1], created[2], created[4]], None)
    store.start()
    second = jobs(store, order="asc", limit=3, cursor=first.next_cursor)
    assert [job.id for job in second] == [created[3], created[5], created[6]]


def test_the_last_full_page_has_no_next(store: Store) -> None:
    store.start_many(4)
    page = jobs(store, limit=2)
    assert jobs(store, limit=2, cursor=page.next_cursor).next_cursor is None


def test_a_cursor_belongs_to_its_listing_and_order(store: Store) -> None:
    store.start_many(3)
    cursor = jobs(store, limit=1).next_cursor
    with pytest.raises(InvalidCursorError):
        chains(store, cursor=cursor)
    with pytest.raises(InvalidCursorError):
        jobs(store, cursor=cursor, order="asc")
    for bad in ("", "x", "é", cursor[:-4], "W10", "bnVsbA"):
        with pytest.raises(InvalidCursorError):
            jobs(store, cursor=bad)


def test_the_jobs_of_a_chain_are_in_its_order(store: Store) -> None:
    chain = store.start("a", 0)
    other = store.start("c", 0)
    for _ in range(6):
        (job,) = store.claim(1, ["a", "b"])
        store.proceed(job, "b", input=1)
    at_the_same_time(store)

    def listing(_: Store, *, cursor: str | None, order: str, limit: int) -> Any:
        return store.lister.list_chain_jobs(chain.id, order, cursor, limit, None)

    for order in ("asc", "desc"):
        found = flat(pages(listing, store, order=order, limit=2))
        indexes = [store.job(i).chain_index for i in found]
        assert indexes == (list(range(7)) if order == "asc" else list(range(6, -1, -1)))
    assert other.id not in found
    with pytest.raises(ChainNotFoundError):
        store.lister.list_chain_jobs(uuid7(), "asc", None, 5, None)


def test_blocked_jobs_are_those_that_wait_for_the_chain_now(store: Store) -> None:
    blocker, other = store.start("b"), store.start("b")
    waiting = [store.start("a", blockers=[blocker, other]).id for _ in range(5)]
    store.start("a", blockers=[other])
    gone = store.start("a", blockers=[blocker])
    store.chains.cancel([gone.id], None)
    at_the_same_time(store)

    def listing(_: Store, *, cursor: str | None, order: str, limit: int) -> Any:
        return store.lister.list_blocked_jobs(blocker.id, order, cursor, limit, None)

    assert flat(pages(listing, store, order="asc", limit=2)) == waiting
    assert flat(pages(listing, store, order="desc", limit=2)) == waiting[::-1]
    store.finish(blocker)
    # They are still blocked, and not by this one any more.
    assert store.job(waiting[0]).status is Status.BLOCKED
    assert flat(pages(listing, store, order="asc", limit=2)) == []


def test_records_are_found_by_id(store: Store) -> None:
    chain = store.start("a", 5)
    (job,) = store.claim()
    following = store.proceed(job, "b", input=6)
    found = store.reader.chain(chain.id, None, None)
    assert (found.input, found.tail_id, found.tail_type_name, found.status) == (5, following.id, "b", "pending")
    assert store.reader.chain(following.id, None, None) is None
    assert store.reader.job(following.id, None, None).input == 6
    assert store.reader.job(uuid7(), None, None) is None
    tails = store.read(lambda session: store.repository.get_tails(session, [chain.id, following.id, uuid7()]))
    assert {key: tail.id for key, tail in tails.items()} == {chain.id: following.id}


def test_blockers_attempts_and_timeline_of_nobody(store: Store) -> None:
    for look in (store.reader.job_blockers, store.history.attempts, store.history.timeline):
        with pytest.raises(JobNotFoundError):
            look(uuid7(), None)
    chain = store.start()
    assert store.reader.job_blockers(chain.id, None) == []
    assert store.history.attempts(chain.id, None) == []


def test_attempts_and_events_come_oldest_first(store: Store) -> None:
    chain = store.start(max_attempts=None)
    for number in range(12):
        (job,) = store.claim()
        store.end(job, after=0, code=f"X:{number}")
    store.chains.cancel([chain.id], None)
    store.chains.retry([chain.id], None)
    store.chains.trigger([chain.id], None)
    assert [a.error_code for a in store.attempts(chain)] == [f"X:{n}" for n in range(12)]
    assert store.events(chain) == ["CANCELLED", "RETRIED", "TRIGGERED"]


def test_events_keep_actor_and_detail(store: Store) -> None:
    chain = store.start()
    items = [{"job_id": chain.id, "event": "NOTED", "actor": None, "detail": '{"why": "ü"}'}]
    store.write(lambda session: store.repository.add_events(session, items))
    ((event, at, actor, detail),) = store.read(lambda session: store.repository.list_events(session, chain.id))
    assert (event, actor, detail) == ("NOTED", None, {"why": "ü"})
    assert at.utcoffset() == timedelta(0)

"""Finding what no index knows: by worker, by key, by input, what is stranded; and the id that a part of it means."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.waiting import eventually

from queuert import (
    AmbiguousIdError,
    Backoff,
    Chain,
    Continuation,
    Dedup,
    InvalidJobIdError,
    JobNotFoundError,
    Limit,
    NewChain,
    Page,
    Queuert,
    RunningJob,
)
from queuert.chains import listing


def ids(page: Page[Any]) -> set[str]:
    return {item.id for item in page}


def every(read: Callable[..., Page[Any]], **options: Any) -> Iterator[Page[Any]]:
    """All pages, also those on which nothing was found."""
    cursor = None
    while True:
        page = read(**options, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


@pytest.fixture
def orders(app: Queuert) -> list[Chain]:
    app.declare("order")
    app.declare("other")
    inputs: list[Any] = [
        {"order_id": 7, "customer": {"name": "Änne", "vip": True}},
        {"order_id": 7.5, "customer": {"name": "Bob", "vip": False}},
        {"order_id": "7", "note": None},
        {"order_id": 70, 'qu"ote': 1, "a.b": "dot"},
        ["order_id", 7],
        "order_id",
        None,
    ]
    return app.start_chains([NewChain("order", each) for each in inputs])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"order_id": 7}, [0]),
        ({"order_id": 7.0}, [0]),
        ({"order_id": 7.5}, [1]),
        ({"order_id": "7"}, [2]),
        ({"order_id": True}, []),
        ({"note": None}, [2]),
        ({"customer": {"name": "Änne"}}, [0]),
        ({"customer": {"name": "Änne", "vip": True}}, [0]),
        ({"customer": {"vip": False}, "order_id": 7.5}, [1]),
        ({"customer": {"vip": False}, "order_id": 7}, []),
        ({"customer": {"vip": 1}}, []),
        ({"customer": "Bob"}, []),
        ({'qu"ote': 1}, [3]),
        ({"a.b": "dot"}, [3]),
        ({"a": {"b": "dot"}}, []),
        ({"missing": None}, []),
    ],
)
def test_jobs_and_chains_are_found_by_fields_of_their_input(
    app: Queuert, orders: list[Chain], wanted: dict[str, Any], found: list[int]
) -> None:
    expected = {orders[n].id for n in found}
    jobs, chains = app.list_jobs(input=wanted), app.list_chains(input=wanted)
    assert ids(jobs) == ids(chains) == expected
    assert (jobs.looked_at, jobs.next_cursor) == (7, None)
    assert ids(app.list_jobs(input=wanted, types=["other"])) == set()
    assert ids(app.list_jobs(input=wanted, job_ids=[orders[0]])) == expected & {orders[0].id}
    assert ids(app.list_chains(input=wanted, chain_ids=orders)) == expected


def test_a_chain_is_found_by_its_own_input_and_not_that_of_its_newest_job(app: Queuert) -> None:
    @app.job("first")
    def first(job: RunningJob[Any]) -> Continuation:
        return job.continue_with("second", {"n": 2})

    app.declare("second", entry=False)
    chain = app.start_chain("first", {"n": 1})
    app.start_chain("first", {"n": 3}, after=60)
    app.drain(types=["first"])
    assert ids(app.list_chains(input={"n": 1})) == ids(app.list_chains(input={"n": 1}, statuses=["pending"])) == {chain.id}
    assert ids(app.list_chains(input={"n": 2})) == set()
    assert [job.type_name for job in app.list_jobs(input={"n": 2})] == ["second"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_looks_no_further_than_its_limit_and_the_cursor_goes_on(
    app: Queuert, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(listing, "LOOKED_AT", 10)
    app.declare("order")
    app.declare("other")
    made = app.start_chains([NewChain(("order", "other")[n % 2], {"n": n % 25}) for n in range(60)])
    expected = {made[n].id for n in (3, 28, 53)}
    for read in (app.list_jobs, app.list_chains):
        pages = list(every(read, input={"n": 3}, order=order))
        assert [page.looked_at for page in pages] == [10] * 6 + [0]
        assert sorted(i for page in pages for i in ids(page)) == sorted(expected)
        small = list(every(read, input={"n": 3}, order=order, limit=1))
        assert sorted(i for page in small for i in ids(page)) == sorted(expected)
        assert all(len(page) <= 1 for page in small)
        assert sum(page.looked_at or 0 for page in small) == 60


def test_a_full_page_goes_on_behind_its_last_item(app: Queuert) -> None:
    app.declare("order")
    made = app.start_chains([NewChain("order", {"n": 1}) for _ in range(5)])
    pages = list(every(app.list_jobs, input={"n": 1}, limit=2))
    assert [len(page) for page in pages] == [2, 2, 1]
    assert {i for page in pages for i in ids(page)} == {chain.id for chain in made}


def test_what_is_stranded_is_found(app: Queuert) -> None:
    @app.job("bad", max_attempts=1)
    def bad(job: RunningJob[Any]) -> None:
        raise ValueError

    for name in ("join", "good"):
        app.declare(name)
    failed, waiting = app.start_chain("bad"), app.start_chain("good", after=60)
    app.drain(types=["bad"])
    stranded = app.start_chain("join", blockers=[failed, waiting])
    app.start_chain("join", blockers=[waiting])
    app.start_chain("join", blockers=[failed, waiting], blockers_until="closed")
    assert ids(app.list_jobs(stranded=True)) == ids(app.list_chains(stranded=True)) == {stranded.id}
    assert ids(app.list_jobs(stranded=True, statuses=["blocked", "failed"])) == {stranded.id}
    assert ids(app.list_jobs(stranded=True, statuses=["failed"])) == set()
    app.retry_chain(failed)
    assert ids(app.list_jobs(stranded=True)) == set()


def test_jobs_are_found_by_the_worker_that_has_or_tried_them(app: Queuert) -> None:
    app.declare("idle")

    @app.job("quick")
    def quick(job: RunningJob[Any]) -> None: ...

    @app.job("bad", backoff=Backoff(initial=1000, jitter=0))
    def bad(job: RunningJob[Any]) -> None:
        raise ValueError

    entered, leave = threading.Event(), threading.Event()

    @app.job("slow")
    def slow_(job: RunningJob[Any]) -> None:
        entered.set()
        leave.wait(30)

    slow, done, tried = app.start_chain("slow"), app.start_chain("quick"), app.start_chain("bad")
    app.start_chain("idle")
    with app.worker(name="east", concurrency=3) as worker:
        app.wait_for(done, timeout=30)
        assert entered.wait(30)
        eventually(lambda: app.attempts(tried.id))
        for name in ("east", worker.id):
            assert ids(app.list_jobs(worker=name, statuses=["running"])) == {slow.id}
        leave.set()
        app.wait_for(slow, timeout=30)
    all_of_it = {slow.id, done.id, tried.id}
    assert ids(app.list_jobs(worker="east")) == ids(app.list_chains(worker=worker.id)) == all_of_it
    assert ids(app.list_jobs(worker="eas")) == ids(app.list_jobs(worker="west")) == set()


def test_jobs_and_chains_are_found_by_deduplication_key(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job("first")
    def first(job: RunningJob[Any]) -> Continuation:
        return job.continue_with("second")

    for name in ("second", "third"):
        app.declare(name)
    one = app.start_chain("first", dedup=Dedup("order-7"))
    two = app.start_chain("third", {"n": 1}, dedup=Dedup("order-7"))
    app.start_chain("third", dedup=Dedup("order-70"))
    app.drain(types=["first"])
    for most in (listing.MOST_KEYED, 1):  # through the index, and where too many have it
        monkeypatch.setattr(listing, "MOST_KEYED", most)
        assert ids(app.list_chains(key="order-7")) == {one.id, two.id}
        assert [job.chain_id for job in app.list_jobs(key="order-7", order="asc", types=["first", "second"])] == [one.id] * 2
        assert ids(app.list_chains(key="order-7", types=["third"])) == {two.id}
        assert ids(app.list_chains(key="order-7", input={"n": 1})) == {two.id}
        assert ids(app.list_jobs(key="order-7", statuses=["completed"])) == {one.id}
        assert ids(app.list_jobs(key="order")) == set()


def test_jobs_and_chains_are_found_by_limit_key(app: Queuert) -> None:
    @app.job("call", limit=Limit(1, key="account"))
    def call(job: RunningJob[Any]) -> None: ...

    one = app.start_chain("call", {"account": "a7"})
    app.start_chain("call", {"account": "a8"})
    for _ in range(2):
        assert ids(app.list_jobs(key="a7")) == ids(app.list_chains(key="a7")) == {one.id}
        app.drain()


@pytest.mark.parametrize(
    "options",
    [
        {"worker": ""},
        {"worker": 7},
        {"key": ""},
        {"key": b"k"},
        {"stranded": 1},
        {"input": []},
        {"input": {}},
        {"input": "a=b"},
        {"input": {1: 2}},
        {"input": {"a": [1]}},
        {"input": {"a": {}}},
        {"input": {"a": float("nan")}},
        {"input": {"a": object()}},
        {"input": {"a\0": 1}},
        {"key": "a\0"},
    ],
)
def test_what_cannot_be_looked_for_is_refused(app: Queuert, options: dict[str, Any]) -> None:
    for read in (app.list_jobs, app.list_chains):
        with pytest.raises((TypeError, ValueError)):
            read(**options)


def test_a_part_of_an_id_stands_for_it(app: Queuert) -> None:
    app.declare("order")
    one = "01901111-2222-7333-8444-aaaaaaaaaaaa"
    two = "01901111-2222-7333-8555-bbbbbbbbaaaa"
    for identity in (one, two):
        app.start_chain("order", id=identity)
    whole = [one, one.upper(), one.replace("-", ""), f"  {one} ", uuid.UUID(one)]
    parts = ["01901111-2222-7333-8444", "019011112222733384", "aaaaaa", "AAAAAA", "44-aaaaaaaaaaaa", "73338444aaaaaaaaaaaa"]
    for text in [*whole, *parts]:
        assert app.find_id(text) == one  # type: ignore[arg-type]
    assert app.find_id("bbbbaaaa") == two
    with app.transaction() as tx:
        assert app.find_id("bbbbaaaa", conn=tx) == two


def test_a_part_that_several_ids_have_is_refused_with_some_of_them(app: Queuert) -> None:
    app.declare("order")
    made = sorted(f"01901111-2222-7333-8444-{n:06x}abcdef" for n in range(8))
    app.start_chains([NewChain("order", id=identity) for identity in made])
    for part in ("019011", "abcdef"):
        with pytest.raises(AmbiguousIdError) as caught:
            app.find_id(part)
        assert len(caught.value.candidates) == 5
        assert set(caught.value.candidates) < set(made)
        assert caught.value.part == part
    assert app.find_id("000003abcdef") == made[3]


@pytest.mark.parametrize("text", ["abcdef", "ffff0000", "0190111122227333844400000fff", str(uuid.uuid4())])
def test_a_part_that_no_id_has_is_not_found(app: Queuert, text: str) -> None:
    app.declare("order")
    app.start_chain("order", id="01901111-2222-7333-8444-aaaaaaaaaaaa")
    with pytest.raises(JobNotFoundError):
        app.find_id(text)


@pytest.mark.parametrize("text", ["", "abcde", "hello-world", "0190111122227333844400000ffff00000000", None, 7])
def test_what_is_part_of_no_id_is_refused(app: Queuert, text: Any) -> None:
    with pytest.raises(InvalidJobIdError):
        app.find_id(text)


def test_an_end_is_looked_for_among_the_newest(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.chains.finding.FURTHEST", 2)
    app.declare("order")
    made = [f"01901111-2222-7333-8444-{n:06x}abcdef" for n in range(3)]
    app.start_chains([NewChain("order", id=identity) for identity in made])
    with pytest.raises(JobNotFoundError):
        app.find_id("000000abcdef")
    assert app.find_id("000002abcdef") == made[2]
    assert app.find_id("01901111-2222-7333-8444-000000") == made[0]  # the index knows beginnings


def test_parts_of_text_ids_are_found_too(empty_target: str) -> None:
    app = Queuert(empty_target, id_type="text")
    app.migrate()
    app.declare("order")
    for identity in ("order/2026/0001", "order/2027/0001-Ä"):
        app.start_chain("order", id=identity)
    assert app.find_id("order/2026") == app.find_id("6/0001") == "order/2026/0001"
    assert app.find_id("0001-Ä") == "order/2027/0001-Ä"
    with pytest.raises(AmbiguousIdError):
        app.find_id("order/")
    with pytest.raises(JobNotFoundError):
        app.find_id("ORDER/2026")

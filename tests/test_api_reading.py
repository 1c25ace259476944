"""Reading: single records, pages with filters, orders and cursors."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.clocks import make_older
from support.handlers import held

from queuert import (
    Chain,
    ChainNotFoundError,
    Continuation,
    InvalidCursorError,
    InvalidJobIdError,
    Job,
    JobTypeMismatchError,
    NewChain,
    Page,
    Queuert,
    RunningJob,
    Status,
)

UNKNOWN = "0190a0b0-0000-7000-8000-000000000009"


def ids(page: Page[Any]) -> list[str]:
    return [item.id for item in page]


def everything(read: Callable[..., Page[Any]], **options: Any) -> list[str]:
    """All pages, one after the other."""
    found: list[str] = []
    cursor = None
    while True:
        page = read(**options, cursor=cursor)
        found += ids(page)
        if page.next_cursor is None:
            return found
        assert len(page) == options.get("limit", 50)
        cursor = page.next_cursor


@pytest.fixture
def chains(app: Queuert) -> list[Chain]:
    """Seven chains of two types, the middle ones of one age."""
    for name in ("mail", "report"):
        app.declare(name)
    made = [app.start_chain(name, n) for n, name in enumerate(["mail", "report", "mail"])]
    made += app.start_chains([NewChain("report", 3), NewChain("mail", 4)])
    made += [app.start_chain(name, n) for n, name in enumerate(["mail", "report"], 5)]
    for age, chain in enumerate(reversed(made)):
        if age not in (2, 3):
            make_older(app, chain.id, timedelta(minutes=age))
    for chain in (made[3], made[4]):
        make_older(app, chain.id, timedelta(minutes=2, seconds=30))
    return [found for chain in made if (found := app.get_chain(chain.id))]


# Single records


def test_a_record_is_found_by_its_id_in_any_spelling(app: Queuert, chains: list[Chain]) -> None:
    chain = chains[0]
    identity = uuid.UUID(chain.id)
    for spelling in (chain.id, chain.id.upper(), identity, identity.hex, f"{{{chain.id}}}", identity.urn):
        assert app.get_chain(spelling) == chain
        found = app.get_job(spelling)
        assert found is not None
        assert found.id == chain.id, "the canonical spelling comes back"
    assert app.get_chain(chain) == chain


def test_what_is_not_there_is_none(app: Queuert) -> None:
    assert app.get_job(UNKNOWN) is None
    assert app.get_chain(UNKNOWN) is None


@pytest.mark.parametrize("bad", ["", "nonsense", "1234", 5, None, b"x", ["a"], UNKNOWN[:-1] + "g", UNKNOWN + "0", " " * 32])
def test_a_malformed_id_is_refused_wherever_one_is_taken(bad: Any) -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.migrate()
        app.declare("work")
        calls: list[Callable[[], Any]] = [
            lambda: app.get_job(bad),
            lambda: app.get_chain(bad),
            lambda: app.get_job_blockers(bad),
            lambda: app.connected_chains(bad),
            lambda: app.list_chain_jobs(bad),
            lambda: app.list_blocked_jobs(bad),
            lambda: app.list_jobs(job_ids=[bad]),
            lambda: app.list_jobs(chain_ids=[bad]),
            lambda: app.list_chains(chain_ids=[bad]),
            lambda: app.list_chains(job_ids=[bad]),
            lambda: app.wait_for(bad, timeout=1),
            lambda: app.attempts(bad),
            lambda: app.timeline(bad),
            lambda: app.cancel_chain(bad),
            lambda: app.cancel_chains([bad]),
            lambda: app.retry_chain(bad),
            lambda: app.trigger_job(bad),
            lambda: app.trigger_jobs([UNKNOWN, bad]),
            lambda: app.delete_chain(bad),
            lambda: app.delete_chains([bad]),
            lambda: app.complete_chain(bad).__enter__(),
            lambda: app.start_chain("work", blockers=[bad]),
        ]
        if bad is not None:
            calls.append(lambda: app.start_chain("work", id=bad))
        for call in calls:
            with pytest.raises(InvalidJobIdError):
                call()
        assert app.list_chains().items == []


def test_a_type_that_was_asked_for_is_checked(app: Queuert, chains: list[Chain]) -> None:
    mail = chains[0]
    assert app.get_chain(mail.id, type_name="mail") == mail
    assert app.get_job(mail.id, type_name=app.types.get("mail")) is not None
    for read in (app.get_chain, app.get_job):
        with pytest.raises(JobTypeMismatchError) as raised:
            read(mail.id, type_name="report")
        assert (raised.value.id, raised.value.expected, raised.value.actual) == (mail.id, "report", "mail")
        assert read(UNKNOWN, type_name="report") is None


def test_the_type_of_a_chain_is_that_of_its_first_job(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("second")

    app.declare("second")
    chain = app.start_chain(first)
    app.drain()
    found = app.get_chain(chain.id, type_name="first")
    assert found is not None
    assert found.tail_type_name == "second"
    tail = app.get_job(found.tail_id, type_name="second")
    assert tail is not None
    assert tail.chain_type_name == "first"


# Pages


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_hold_everything_once_in_order(app: Queuert, chains: list[Chain], order: str) -> None:
    expected = [c.id for c in sorted(chains, key=lambda c: (c.created_at, c.id), reverse=order == "desc")]
    named = {"chain_ids": [c.id for c in chains]}
    for limit in (1, 2, 3, 6, 7, 8):
        for read in (app.list_chains, app.list_jobs):
            assert everything(read, order=order, limit=limit) == expected
            assert everything(read, order=order, limit=limit, **named) == expected


def test_the_newest_come_first_by_default_fifty_at_a_time(app: Queuert) -> None:
    app.declare("work")
    app.start_chains([NewChain("work", n) for n in range(60)])
    page = app.list_chains()
    assert len(page) == len(page.items) == 50
    assert page.next_cursor is not None
    assert [c.id for c in page] == sorted((c.id for c in page), reverse=True)
    assert len(app.list_chains(cursor=page.next_cursor)) == 10
    assert len(app.list_chains(limit=1_000)) == 60


def test_pages_stay_stable_while_rows_come_and_go(app: Queuert, chains: list[Chain]) -> None:
    first = app.list_chains(limit=3)
    app.start_chain("mail", "new")
    app.delete_chain(first.items[2].id)
    rest = app.list_chains(limit=10, cursor=first.next_cursor)
    expected = sorted(chains, key=lambda c: (c.created_at, c.id), reverse=True)
    assert ids(first) + ids(rest) == [c.id for c in expected]


def test_chains_are_filtered(app: Queuert, chains: list[Chain]) -> None:
    app.cancel_chain(chains[0].id)
    with app.complete_chain(chains[1].id) as tail:
        tail.finish()
    asc: dict[str, Any] = {"order": "asc"}
    assert ids(app.list_chains(types=["report"], **asc)) == [chains[n].id for n in (1, 3, 6)]
    assert ids(app.list_chains(types=[app.types.get("mail"), "report"], limit=2, **asc)) == [chains[0].id, chains[1].id]
    assert ids(app.list_chains(statuses=["cancelled", Status.COMPLETED], **asc)) == [chains[0].id, chains[1].id]
    assert ids(app.list_chains(statuses=["completed"], types=["mail"])) == []
    assert ids(app.list_chains(types=["nobody"])) == []
    assert ids(app.list_chains(chain_ids=[chains[5].id, chains[2], UNKNOWN], **asc)) == [chains[2].id, chains[5].id]
    assert ids(app.list_chains(chain_ids=[c.id for c in chains], types=["report"], statuses=["pending"], **asc)) == [
        chains[3].id,
        chains[6].id,
    ]
    assert ids(app.list_chains(types=iter(["report"]), statuses={"completed"})) == [chains[1].id]


def test_an_empty_filter_lets_nothing_through(app: Queuert, chains: list[Chain]) -> None:
    for name in ("types", "statuses", "chain_ids", "job_ids"):
        nothing: dict[str, Any] = {name: []}
        assert app.list_chains(**nothing) == Page([], None)
        assert app.list_jobs(**nothing) == Page([], None)
    assert app.list_jobs(chain_types=[]) == Page([], None)


def test_since_is_inclusive_and_until_exclusive(app: Queuert, chains: list[Chain]) -> None:
    at = chains[2].created_at
    after = [chains[n].id for n in range(2, 7)]
    assert sorted(ids(app.list_chains(since=at))) == sorted(after)
    assert ids(app.list_chains(until=at, order="asc")) == [chains[0].id, chains[1].id]
    assert sorted(ids(app.list_jobs(since=at, until=chains[6].created_at))) == sorted(after[:-1])
    elsewhere = at.astimezone(timezone(timedelta(hours=9)))
    assert ids(app.list_jobs(since=elsewhere, until=chains[3].created_at, types=["mail"])) == [chains[2].id]
    assert ids(app.list_chains(since=at, until=at)) == []
    assert ids(app.list_chains(chain_ids=chains, since=at, until=at + timedelta(microseconds=1))) == [chains[2].id]


def test_jobs_are_filtered(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[int]) -> Continuation:
        return job.continue_with("second", job.input)

    app.declare("second")
    chains = [app.start_chain(first, n) for n in range(3)]
    app.drain()
    direct = app.start_chain("second", 9)
    tails = [found.tail_id for chain in chains if (found := app.get_chain(chain.id))]
    assert set(ids(app.list_jobs(types=["second"]))) == {*tails, direct.id}
    assert set(ids(app.list_jobs(types=["second"], chain_types=["first"]))) == set(tails)
    assert set(ids(app.list_jobs(chain_types=["second"]))) == {direct.id}
    assert set(ids(app.list_jobs(chain_types=[first], statuses=["completed"]))) == {chain.id for chain in chains}
    assert set(ids(app.list_jobs(chain_ids=[chains[0], chains[1].id]))) == {
        chains[0].id,
        chains[1].id,
        tails[0],
        tails[1],
    }
    assert ids(app.list_jobs(job_ids=[tails[2], UNKNOWN])) == [tails[2]]
    assert ids(app.list_jobs(job_ids=[tails[2], chains[2].id], statuses=["pending"])) == [tails[2]]
    assert ids(app.list_chains(job_ids=[tails[1]])) == [chains[1].id], "the chain of a job"


def test_both_kinds_of_ids_must_fit(app: Queuert) -> None:
    app.declare("work")
    one, two = app.start_chain("work"), app.start_chain("work")
    with app.complete_chain(one.id) as tail:
        tail.continue_with("work")
    found = app.get_chain(one.id)
    assert found is not None
    assert ids(app.list_jobs(chain_ids=[one], job_ids=[found.tail_id, two.id])) == [found.tail_id]
    assert ids(app.list_chains(chain_ids=[one, two], job_ids=[found.tail_id])) == [one.id]
    assert ids(app.list_chains(chain_ids=[two], job_ids=[found.tail_id])) == []
    assert ids(app.list_chains(chain_ids=[two], job_ids=[])) == []


def test_every_status_can_be_asked_for(app: Queuert) -> None:
    app.declare("work")
    blocker = app.start_chain("work")
    app.start_chain("work", blockers=[blocker])
    app.cancel_chain(app.start_chain("work").id)
    done = app.start_chain("work")
    with app.complete_chain(done.id) as tail:
        tail.finish()

    @app.job
    def broken(job: RunningJob[None]) -> None:
        job.fail("NO:GOOD")

    app.start_chain(broken)
    app.drain()
    with held(app):
        for status in Status:
            for page in (app.list_chains(statuses=[status]), app.list_jobs(statuses=[status.value])):
                assert [item.status for item in page] == [status]
        assert len(app.list_chains(statuses=list(Status))) == 6


def test_the_jobs_of_a_chain_are_listed_in_its_order(app: Queuert) -> None:
    @app.job
    def count(job: RunningJob[int]) -> int | Continuation:
        return job.continue_with(count, job.input + 1) if job.input < 6 else job.input

    chain = app.start_chain(count, 0)
    app.drain()
    for order in ("asc", "desc"):
        expected = list(range(7)) if order == "asc" else list(range(6, -1, -1))
        found: list[Job] = []
        cursor = None
        while True:
            page = app.list_chain_jobs(chain.id, order=order, cursor=cursor, limit=3)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        assert [job.input for job in found] == expected
    with pytest.raises(ChainNotFoundError):
        app.list_chain_jobs(UNKNOWN)
    with pytest.raises(ChainNotFoundError):
        app.list_chain_jobs(found[0].id)


def test_blocked_jobs_come_in_pages_too(app: Queuert) -> None:
    app.declare("work")
    blocker = app.start_chain("work")
    waiting = app.start_chains([NewChain("work", n, blockers=[blocker]) for n in range(5)])
    expected = [c.id for c in sorted(waiting, key=lambda c: (c.created_at, c.id))]

    def read(**options: Any) -> Page[Job]:
        return app.list_blocked_jobs(blocker.id, **options)

    assert everything(read, order="asc", limit=2) == expected
    assert everything(read, limit=2) == expected[::-1]


# Cursors, limits and other bad input


def test_a_cursor_belongs_to_its_listing_and_order(app: Queuert, chains: list[Chain]) -> None:
    cursor = app.list_chains(limit=1).next_cursor
    assert cursor is not None
    for call in (
        lambda: app.list_jobs(cursor=cursor),
        lambda: app.list_chains(order="asc", cursor=cursor),
        lambda: app.list_chain_jobs(chains[0].id, cursor=cursor),
        lambda: app.list_blocked_jobs(chains[0].id, cursor=cursor),
    ):
        with pytest.raises(InvalidCursorError):
            call()


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


CORRUPTED = [
    "",
    "x",
    "!!!!",
    "é",
    "A" * 10_000,
    encoded(None),
    encoded([]),
    encoded(["chains-desc"]),
    encoded(["chains-desc", "2024-01-01T00:00:00.000000Z", "nonsense"]),
    encoded(["chains-desc", "yesterday", UNKNOWN]),
    encoded(["chains-desc", 5, UNKNOWN]),
    encoded(["chains-desc", None, UNKNOWN]),
    encoded(["chains-desc", True, UNKNOWN]),
    encoded(["chains-desc", {"a": 1}, UNKNOWN]),
    encoded(["chains-desc", "2024-01-01", UNKNOWN]),
    encoded(["chains-desc", "2024-01-01T00:00:00+00:00", UNKNOWN]),
    encoded(["chains-desc", "2024-01-01T00:00:00.000000Z", UNKNOWN, 1]),
    encoded({"a": 1, "b": 2, "c": 3}),
    encoded("abc"),
    base64.urlsafe_b64encode(b"[" * 5_000).decode(),
    base64.urlsafe_b64encode(b"\xff\xfe\x00").decode(),
]


def test_a_corrupted_cursor_is_a_clear_error(app: Queuert) -> None:
    app.declare("work")
    app.start_chain("work")
    for cursor in CORRUPTED:
        with pytest.raises(InvalidCursorError):
            app.list_chains(cursor=cursor)


def test_every_change_to_a_cursor_is_refused_or_harmless(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as tail:
        tail.continue_with("work")
    pages = {
        "chains": lambda cursor: app.list_chains(limit=1, cursor=cursor),
        "jobs": lambda cursor: app.list_jobs(limit=1, cursor=cursor),
        "chain jobs": lambda cursor: app.list_chain_jobs(chain.id, limit=1, cursor=cursor),
    }
    app.start_chain("work")
    for read in pages.values():
        cursor = read(None).next_cursor
        assert cursor is not None
        for position in range(0, len(cursor), 3):
            changed = cursor[:position] + ("A" if cursor[position] != "A" else "B") + cursor[position + 1 :]
            with suppress(InvalidCursorError):
                read(changed)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": -1}, ValueError),
        ({"limit": 1_001}, ValueError),
        ({"limit": 1.5}, TypeError),
        ({"limit": True}, TypeError),
        ({"limit": None}, TypeError),
        ({"order": "up"}, ValueError),
        ({"order": None}, ValueError),
        ({"cursor": 5}, TypeError),
        ({"types": "mail"}, TypeError),
        ({"types": [5]}, TypeError),
        ({"types": 5}, TypeError),
        ({"statuses": "pending"}, TypeError),
        ({"statuses": ["waiting"]}, ValueError),
        ({"statuses": [None]}, ValueError),
        ({"chain_ids": UNKNOWN}, TypeError),
        ({"job_ids": UNKNOWN}, TypeError),
        ({"since": datetime(2024, 1, 1)}, ValueError),
        ({"until": datetime(2024, 1, 1)}, ValueError),
        ({"since": "2024-01-01"}, TypeError),
    ],
)
def test_bad_filters_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with Queuert("sqlite:///:memory:") as app:
        app.migrate()
        for read in (app.list_chains, app.list_jobs):
            with pytest.raises(error):
                read(**options)


def test_reads_take_a_connection_and_see_its_own_writes(app: Queuert) -> None:
    app.declare("work")
    with app.transaction() as tx:
        blocker = app.start_chain("work", conn=tx)
        chain = app.start_chain("work", blockers=[blocker], conn=tx)
        assert app.get_chain(chain.id, conn=tx) == chain
        assert app.get_job(chain.id, conn=tx) is not None
        assert len(app.list_chains(conn=tx)) == 2
        assert len(app.list_jobs(conn=tx)) == 2
        assert ids(app.list_chain_jobs(chain.id, conn=tx)) == [chain.id]
        assert ids(app.list_blocked_jobs(blocker.id, conn=tx)) == [chain.id]
        assert app.get_job_blockers(chain.id, conn=tx) == [blocker]
        assert app.connected_chains(blocker.id, conn=tx) == [chain]
        assert app.attempts(chain.id, conn=tx) == []
        assert [entry.event for entry in app.timeline(chain.id, conn=tx)] == ["ENQUEUED", "BLOCKED"]
        assert app.stats(conn=tx).by_status["blocked"] == 1

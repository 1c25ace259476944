"""Many chains in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.clocks import database_now
from support.refusals import refused

from queuert import (
    Chain,
    ChainNotFoundError,
    Dedup,
    DuplicateJobIdError,
    NewChain,
    Queuert,
    RunningJob,
    UnknownJobTypeError,
)


def new_id(number: int) -> str:
    return f"0190a0b0-0000-7000-8000-{number:012d}"


def test_ten_thousand_chains_of_all_kinds_start_in_one_call(app: Queuert) -> None:
    for name in ("mail", "report", "join"):
        app.declare(name)
    existing = app.start_chain("report", "old", dedup=Dedup("report-0"))
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    batch: list[NewChain] = []
    for n in range(2_500):
        batch += [
            NewChain("mail", n, id=new_id(n), priority=n % 100),
            NewChain("report", n, dedup=Dedup(f"report-{n // 2}")),
            NewChain("join", n, blockers=[existing, new_id(n)]),
            NewChain("mail", n, at=tomorrow) if n % 2 else NewChain("mail", n, after=timedelta(days=1)),
        ]
    chains = app.start_chains(batch)

    assert len(chains) == 10_000
    mails, reports, joins, later = (chains[kind::4] for kind in range(4))
    assert [chain.id for chain in mails] == [new_id(n) for n in range(2_500)]
    assert {chain.status for chain in mails} == {"pending"}
    # The first two carry the key of the chain that was there; of the other pairs the second gets the first.
    assert [chain.deduplicated for chain in reports] == [True, True, *[False, True] * 1_249]
    assert reports[0].id == reports[1].id == existing.id
    assert all(first.id == second.id for first, second in zip(reports[2::2], reports[3::2], strict=True))
    assert [chain.input for chain in reports[2:6]] == [2, 2, 4, 4]
    assert {chain.status for chain in joins} == {"blocked"}
    counted = app.stats(count_limit=None)
    assert counted.by_type == {
        "mail": {"pending": 5_000},
        "report": {"pending": 1_250},
        "join": {"blocked": 2_500},
    }
    scheduled = app.list_jobs(job_ids=later[:10])
    assert all(job.scheduled_at > database_now(app) + timedelta(hours=23) for job in scheduled)
    for chain in (joins[0], joins[-1]):
        blockers = app.get_job_blockers(chain.id)
        assert [blocker.id for blocker in blockers] == [existing.id, new_id(chain.input)]


def test_the_answers_are_in_the_order_of_the_batch(app: Queuert) -> None:
    for name in ("a", "b"):
        app.declare(name)
    chains = app.start_chains(NewChain("ab"[n % 2], n) for n in range(500))
    assert [(chain.type_name, chain.input) for chain in chains] == [("ab"[n % 2], n) for n in range(500)]
    assert [app.get_chain(chain.id) for chain in chains[:20]] == chains[:20]


def test_a_batch_is_all_or_nothing(app: Queuert) -> None:
    app.declare("number", input=int)
    taken = app.start_chain("number", 0, id=new_id(1))
    attempts: list[tuple[list[NewChain], type[Exception]]] = [
        ([NewChain("number", 1), NewChain("number", 2, id=taken.id)], DuplicateJobIdError),
        ([NewChain("number", 1), NewChain("nobody")], UnknownJobTypeError),
        ([NewChain("number", 1), NewChain("number", 2, blockers=[new_id(9)])], ChainNotFoundError),
        ([NewChain("number", 1, dedup=Dedup("k")), NewChain("number", 2, after=-1)], ValueError),
    ]
    for batch, error in attempts:
        with pytest.raises(error):
            app.start_chains(batch)
    with refused("invalid_input"):
        app.start_chains([NewChain("number", 1), NewChain("number", "no")])
    assert [chain.id for chain in app.list_chains()] == [taken.id]


def test_a_batch_may_hold_blockers_of_each_other_in_any_order(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[int]) -> list[Any]:
        return [blocker.output for blocker in job.blockers] or [job.input]

    chains = app.start_chains(
        [
            NewChain(work, 1, id=new_id(1), blockers=[new_id(3), new_id(2)]),
            NewChain(work, 2, id=new_id(2), blockers=[new_id(3)]),
            NewChain(work, 3, id=new_id(3)),
        ]
    )
    assert [chain.status for chain in chains] == ["blocked", "blocked", "pending"]
    app.drain()
    assert app.wait_for(chains[0], timeout=5).output == [[3], [[3]]]


def test_chains_of_a_batch_cannot_wait_for_each_other_in_a_circle(app: Queuert) -> None:
    app.declare("work")
    with refused("invalid_blockers"):
        app.start_chains(
            [
                NewChain("work", id=new_id(1), blockers=[new_id(2)]),
                NewChain("work", id=new_id(2), blockers=[new_id(3)]),
                NewChain("work", id=new_id(3), blockers=[new_id(1)]),
            ]
        )
    with refused("invalid_blockers"):
        app.start_chains([NewChain("work", id=new_id(1), blockers=[new_id(1)])])
    assert app.list_chains().items == []


def test_only_new_chains_make_a_batch(app: Queuert) -> None:
    app.declare("work")
    wrong: list[Any] = [["work"], [("work", 1)], [app.start_chain("work")], [None]]
    for batch in wrong:
        with pytest.raises(TypeError):
            app.start_chains(batch)
    with pytest.raises(TypeError):
        app.start_chains(NewChain("work"))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(("linked", "most"), [(False, 1), (True, 8)])
def test_a_batch_is_a_constant_number_of_statements_on_postgres(pg_url: str, linked: bool, most: int) -> None:
    with Queuert(pg_url) as app:
        app.declare("work")
        blocker = app.start_chain("work")

        def sent(size: int) -> int:
            batch = [NewChain("work", n, id=new_id(1_000 * size + n)) for n in range(size)]
            if linked:
                batch = [NewChain("work", n, blockers=[blocker], dedup=Dedup(f"{size}-{n}")) for n in range(size)]
            with app.transaction() as tx, statements(tx) as seen:
                app.start_chains(batch, conn=tx)
            return len(seen)

        assert sent(2) == sent(400) <= most


@contextmanager
def statements(conn: Any) -> Iterator[list[str]]:
    """What is sent to the server on a psycopg connection, as libpq's trace tells."""
    seen: list[str] = []
    with tempfile.TemporaryFile() as trace:
        conn.pgconn.trace(trace.fileno())
        try:
            yield seen
        finally:
            conn.pgconn.untrace()
            trace.seek(0)
            lines = trace.read().decode(errors="replace").splitlines()
            seen += [line for line in lines if "\tF\t" in line and ("\tExecute\t" in line or "\tQuery\t" in line)]


def test_chains_may_be_named_by_their_records_as_blockers(app: Queuert) -> None:
    app.declare("work")
    first = app.start_chain("work")
    chains: list[Chain] = app.start_chains([NewChain("work", blockers=[first]), NewChain("work", blockers=[first.id])])
    assert [app.get_job_blockers(chain.id) for chain in chains] == [[first], [first]]

"""Every hot or listing query keeps to its index and reads a bounded number of rows, however large the backlog is."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
from support.operations import OPERATIONS
from support.planning import Cost
from support.seeding import closed_chains_of_one_key, job_id
from support.store import Store

pytestmark = pytest.mark.slow

Planner = Callable[..., AbstractContextManager[Any]]

# PostgreSQL compiles a query of which it expects more than this (jit_above_cost), and that takes a second.
COMPILED = 100_000

# A few rows: which process does a task, and when; what is paused; who works, and what they did in the last hour.
SMALL = {"queuert_singleton", "queuert_pause", "queuert_worker", "queuert_worker_rate"}


class Limit(NamedTuple):
    """What an operation may use: indexes, rows and buffers on PostgreSQL, steps on SQLite. About twice what was measured."""

    indexes: tuple[str, ...]
    rows: int
    buffers: int
    steps: int


# The first that matches. Buffers include what is written: an update touches every index of its row.
LIMITS: dict[str, Limit] = {
    "claim 10 of 1 type": Limit(("claim_idx",), 200, 1_000, 8_000),
    "claim 10 of 5 types": Limit(("claim_idx",), 900, 2_000, 17_000),
    "claim 10 of 20 types": Limit(("claim_idx",), 3_500, 5_000, 50_000),
    "claim 1 of 20 types": Limit(("claim_idx",), 500, 1_700, 16_000),
    "claim suspects": Limit(("claim_idx",), 50, 200, 2_000),
    "next due of 20": Limit(("claim_idx",), 320, 1_500, 18_000),
    "next due of 1": Limit(("claim_idx",), 16, 100, 1_200),
    "waiting keys": Limit(("limit_idx",), 50, 200, 2_000),
    "holders of a key": Limit(("limit_running_idx",), 20, 50, 500),
    "head of a key": Limit(("limit_order_idx",), 20, 50, 500),
    "failures without their chain": Limit(("failure_idx",), 20, 50, 500),
    "joins that nobody freed": Limit(("join_idx",), 20, 50, 500),
    "lock 100 expired": Limit(("lease_idx",), 200, 500, 32_000),
    "(renew|complete|continue|end|release) 100( claims| and sign)?$": Limit((), 1_200, 9_000, 100_000),
    "lock 2 closing now": Limit((), 600, 1_600, 500),  # a function: planning its statements reads the catalogue too
    "lock 100|lease states": Limit((), 200, 1_500, 20_000),
    "complete 2 chains": Limit(("blocker_chain_idx",), 800, 6_500, 55_000),
    "insert 100": Limit((), 10, 5_000, 42_000),
    "touch 50 keys": Limit((), 10, 1_200, 4_000),
    "find 50 open": Limit(("open_key_idx",), 100, 400, 6_000),
    "find 50": Limit(("deduplication_idx",), 100, 400, 6_000),
    "name 20 blockers": Limit(("job_chain_idx",), 120, 3_000, 20_000),
    "get 100 (chains|tails)": Limit(("job_chain_idx",), 600, 2_500, 14_000),
    "get 100 jobs": Limit((), 200, 800, 8_000),
    "count the blockers of a job": Limit(("job_chain_idx",), 20, 100, 1_000),
    "blockers of 100": Limit(("job_chain_idx",), 800, 2_500, 12_000),
    "waits for|blocker chains|missing blockers": Limit((), 20, 50, 500),
    "(waiting|connected) chains|waiting jobs|blocker references": Limit(("blocker_chain_idx",), 500, 1_500, 6_000),
    "(cancel|retry|trigger) 100": Limit((), 400, 7_000, 65_000),
    "lock 20 chains": Limit(("job_chain_idx",), 80, 400, 8_000),
    "delete 20 chains": Limit(("job_chain_idx", "blocker_chain_idx", "deduplication_idx"), 60, 500, 8_000),
    "expired chains, later": Limit(("tail_idx",), 800, 2_500, 24_000),
    "expired chains": Limit(("tail_idx",), 400, 1_200, 12_000),
    "chain types": Limit(("tail_idx",), 40, 150, 1_600),
    "job types": Limit(("listing_idx",), 40, 150, 1_600),
    "(take|finish) a task|attempts|events|jobs of a chain": Limit((), 10, 50, 400),
    "blocked jobs of a chain": Limit(("blocker_chain_idx",), 400, 600, 10_000),
    "list named": Limit(("job_chain_idx",), 2_000, 10_000, 60_000),
    # 100 for each of 20 types in each state, and their blockers
    "statistics": Limit(("listing_idx", "error_idx", "retry_idx", "claim_idx"), 40_000, 35_000, 480_000),
    "count retries": Limit(("retry_idx",), 100, 400, 40_000),
    # 100 for each of 20 types and 3 states, or of 7 codes
    "count (live|attempts)": Limit(("listing_idx",), 6_500, 10_000, 250_000),
    "count stranded": Limit(("listing_idx",), 10_000, 30_000, 180_000),
    "count errors": Limit(("error_idx",), 4_500, 4_000, 80_000),
    # 1,000 are running
    "longest running": Limit((), 5_000, 500, 20_000),
    # A page of 51 from each pair of 20 types and 6 states, and the page itself
    "list jobs all": Limit(("listing_idx",), 6_300, 12_000, 340_000),
    "list chains all": Limit(("tail_idx",), 6_300, 14_000, 340_000),
    "list jobs by status": Limit(("listing_idx",), 1_200, 2_600, 72_000),
    "list chains by status": Limit(("tail_idx",), 1_200, 3_000, 70_000),
    # All 1,000 that failed
    "list jobs by error code": Limit(("listing_idx",), 2_400, 5_000, 140_000),
    "list chains by error code": Limit(("tail_idx",), 2_400, 6_000, 140_000),
    "list jobs": Limit(("listing_idx",), 420, 1_000, 30_000),
    "list chains": Limit(("tail_idx",), 470, 1_500, 24_000),
}


def limit_of(name: str) -> Limit:
    return next(limit for pattern, limit in LIMITS.items() if re.match(pattern, name))


def run(name: str, store: Store, planned: Planner) -> Cost:
    with planned() as session:
        OPERATIONS[name](store, session)
        cost: Cost = session.cost
        return cost


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_uses_its_index_and_reads_no_more_than_it_must(name: str, big: Store, planned: Planner, kind: str) -> None:
    cost, limit = run(name, big, planned), limit_of(name)
    plan = "\n".join(cost.text)
    for index in limit.indexes:
        assert any(used.endswith(index) for used in cost.indexes), (index, cost.indexes, plan)
    if kind == "sqlite":
        assert 0 < cost.steps <= limit.steps, plan
    else:
        assert cost.scanned <= SMALL, plan
        assert cost.rows <= limit.rows, plan
        assert cost.buffers <= limit.buffers, plan
        assert cost.estimate < COMPILED, plan


@pytest.mark.parametrize("is_open", [False, True], ids=["none is open", "the oldest is open"])
def test_an_open_chain_of_a_key_is_found_however_many_closed_ones_it_has(
    is_open: bool, big: Store, planned: Planner, kind: str
) -> None:
    with planned() as session:
        session.raw.execute(closed_chains_of_one_key(big, 20_000))
        oldest = job_id(50_000_000 + 19_999)
        if is_open:
            session.raw.execute(f"UPDATE queuert_job SET status = 'pending' WHERE id = '{oldest}'")
        wanted = {"n": 0, "type_name": "t00", "key": "worn", "scope": "incomplete", "since": None, "exclude": []}
        assert big.repository.find_duplicates(session, [wanted]) == ({0: oldest} if is_open else {})
    assert "queuert_job_open_key_idx" in session.cost.indexes, session.cost.text
    if kind == "sqlite":
        assert session.cost.steps <= 400, session.cost.text
    else:
        assert session.cost.rows <= 10, session.cost.text
        assert session.cost.buffers <= 40, session.cost.text


def test_every_limit_is_for_some_operation() -> None:
    unused = [pattern for pattern in LIMITS if not any(limit_of(n) is LIMITS[pattern] for n in OPERATIONS)]
    assert unused == []


def test_every_index_of_the_schema_is_used_by_some_operation(big: Store, planned: Planner, kind: str) -> None:
    used = set().union(*(run(name, big, planned).indexes for name in OPERATIONS))
    if kind == "sqlite":
        rows = big.sql("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    else:
        rows = big.sql("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")
    known = {row[0] for row in rows}
    # The first is read when migrating; the second is what makes an event a row of its own. Of pauses and limits there are so
    # few that they are read whole, and no key of a limit is in use here.
    unread = {"queuert_migration_pkey", "queuert_job_event_pkey", "queuert_pause_pkey", "queuert_limit_pkey"}
    unread.add("queuert_limit_key_pkey")
    assert known - unread - used == set()

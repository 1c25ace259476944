"""A statement prepared while the tables are nearly empty keeps its plan while they grow: it must be a good one already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from support.planning import PostgresPlans
from support.store import Store

from queuert.model import Job

Work = Callable[[Store, Any, list[Job]], object]

ITEM: dict[str, Any] = {"worker": "w1", "status": "pending", "outcome": "failed", "code": "A:B", "detail": None, "error": None}
ITEM |= {"at": None, "after": 5, "forgive": 0, "waited": None}


def _ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


def _leases(jobs: list[Job], **more: Any) -> list[dict[str, Any]]:
    return [{"id": job.id, "token": job.lease_token, **more} for job in jobs]


OPERATIONS: dict[str, Work] = {
    "claim": lambda store, session, jobs: store.claim(10, session=session),
    "claim from the head": lambda store, session, jobs: store.claim_head(10, session=session),
    "renew": lambda store, session, jobs: store.repository.renew_leases(session, "w1", _leases(jobs, lease=60)),
    "lease states": lambda store, session, jobs: store.repository.lease_states(session, _ids(jobs)),
    "complete": lambda store, session, jobs: store.complete(*jobs, session=session),
    "complete one": lambda store, session, jobs: store.complete(jobs[0], session=session),
    "complete what is free": lambda store, session, jobs: store.complete(*jobs, wait=False, session=session),
    "end": lambda store, session, jobs: store.repository.end_attempts(session, _leases(jobs, **ITEM)),
    "give back": lambda store, session, jobs: store.repository.release_claims(session, "w1", _leases(jobs)),
    "lock": lambda store, session, jobs: store.repository.lock_jobs(session, _ids(jobs)),
    "lock what is free": lambda store, session, jobs: store.repository.lock_jobs(session, _ids(jobs), wait=False),
    "get": lambda store, session, jobs: store.repository.get_jobs(session, _ids(jobs)),
    "get chains": lambda store, session, jobs: store.repository.get_chains(session, _ids(jobs)),
    "get tails": lambda store, session, jobs: store.repository.get_tails(session, _ids(jobs)),
}


@pytest.fixture(scope="module")
def young(postgres_url: str) -> Iterator[tuple[Store, list[Job]]]:
    from support.postgres import temporary_database

    with temporary_database(postgres_url) as url:
        store = Store(url)
        store.migrate()
        blockers = store.start_many(3)
        store.start("b", blockers=blockers)
        store.start_many(200)
        yield store, store.claim(20)
        store.close()


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_job_is_looked_for_from_end_to_end(name: str, generic: bool, young: tuple[Store, list[Job]]) -> None:
    store, jobs = young
    with closing(store.database.open_listener()) as conn, conn.transaction(force_rollback=True):
        session = PostgresPlans(store.database.join(conn), generic=generic)
        assert OPERATIONS[name](store, session, jobs)
        assert "queuert_job" not in session.cost.scanned, session.cost.text


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_what_is_claimed_is_looked_up_by_its_key(generic: bool, young: tuple[Store, list[Job]]) -> None:
    """And not found by going through the index of all that is pending."""
    store, _ = young
    with closing(store.database.open_listener()) as conn, conn.transaction(force_rollback=True):
        session = PostgresPlans(store.database.join(conn), generic=generic)
        assert store.claim(10, session=session)
        assert '"Index Cond": "(id = candidate.id)"' in "".join(session.cost.text)


@pytest.fixture(scope="module", params=["analyzed", "never analyzed"])
def small(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Store]:
    """2,000 jobs of each type and state: the planner expects a handful where it does not know which span is asked for."""
    from support.postgres import temporary_database

    with temporary_database(postgres_url) as url:
        store = Store(url)
        store.migrate()
        store.sql(
            """INSERT INTO {job}
                (id, type_name, chain_id, chain_type_name, status, output, input, created_at, chain_created_at, scheduled_at)
            SELECT id, type, id, type, status::{job_status}, 'null', to_json(repeat('x', 100)), at, at, at
            FROM (
                SELECT
                    gen_random_uuid() AS id,
                    (ARRAY['a', 'b', 'c', 'd', 'e'])[mod(i, 5) + 1] AS type,
                    CASE WHEN i < 10000 THEN 'pending' ELSE 'completed' END AS status,
                    now() - i * interval '1 second' AS at
                FROM generate_series(1, 20000) AS i
            ) AS made"""
        )
        if request.param == "analyzed":
            store.sql("ANALYZE {job}")
        yield store
        store.close()


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("listing", ["jobs", "chains"])
def test_a_page_is_read_in_the_order_of_the_index_not_sorted(listing: str, order: str, generic: bool, small: Store) -> None:
    filters: dict[str, Any] = {"types": ["a", "b", "c", "d", "e"], "statuses": ["completed"], "error_codes": None}
    filters |= {"since": None, "until": None, "at": None, "id": None, "limit": 51}
    filters |= {"chain_types": None} if listing == "jobs" else {"root_only": False}
    with closing(small.database.open_listener()) as conn, conn.transaction(force_rollback=True):
        session = PostgresPlans(small.database.join(conn), generic=generic)
        assert len(getattr(small.repository, f"list_{listing}")(session, order, **filters)) == 51
        assert session.cost.sorted <= 5 * 51, session.cost.text

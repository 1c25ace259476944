"""A claim on SQLite looks first and takes then, and another process may come between."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inside import database_of, repository_of

from queuert import NewChain, Queuert
from queuert.storage.loader import Query
from queuert.storage.protocol import Params

CHANGES = {
    "claimed": "UPDATE queuert_job SET status = 'running', attempt = 1, leased_by = 'other', lease_token = 7 WHERE id = ?",
    "tried": "UPDATE queuert_job SET attempt = 1 WHERE id = ?",
    "rescheduled": "UPDATE queuert_job SET scheduled_at = '2999-01-01T00:00:00.000000Z' WHERE id = ?",
    "cancelled": "UPDATE queuert_job SET status = 'cancelled' WHERE id = ?",
    "deleted": "DELETE FROM queuert_job WHERE id = ?",
}


@pytest.fixture
def app(sqlite_path: Path) -> Iterator[Queuert]:
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.declare("work")
        yield app


class Interrupted:
    """A session in which something happens between the look and the taking."""

    def __init__(self, session: Any, act: Callable[[], None]) -> None:
        self._session = session
        self._act = act
        self.run = session.run

    def change(self, query: Query, params: Params) -> int:
        if query.name == "take_due":
            self._act()
        changed: int = self._session.change(query, params)
        return changed


def claim(app: Queuert, between: Callable[[], None] = lambda: None) -> list[Any]:
    repository = repository_of(app)
    options: dict[str, Any] = {"worker": "w", "token": 5, "leases": {"work": 60.0}, "limit": 10}
    return database_of(app).run(lambda session: repository.claim_jobs(Interrupted(session, between), **options), single=True)


def rows(app: Queuert) -> dict[str, tuple[Any, ...]]:
    with app.transaction() as tx:
        found = tx.execute("SELECT id, status, attempt, leased_by, lease_token FROM queuert_job").fetchall()
    return {row[0]: row[1:] for row in found}


@pytest.mark.parametrize("change", CHANGES)
def test_a_job_that_another_process_changes_after_the_look_is_left_alone(app: Queuert, sqlite_path: Path, change: str) -> None:
    first, second, third = app.start_chains([NewChain("work") for _ in range(3)])

    def act() -> None:
        other = sqlite3.connect(sqlite_path, isolation_level=None)
        other.execute(CHANGES[change], (second.id,))
        changed.extend(
            other.execute("SELECT id, status, attempt, leased_by, lease_token FROM queuert_job WHERE id = ?", (second.id,))
        )
        other.close()

    changed: list[tuple[Any, ...]] = []
    jobs = claim(app, between=act)
    assert {job.id for job in jobs} == {first.id, third.id}
    assert {(job.attempt, job.status, job.lease_token) for job in jobs} == {(1, "running", 5)}
    after = rows(app)
    assert after[first.id] == after[third.id] == ("running", 1, "w", 5)
    assert [(identity, *after[identity]) for identity in after if identity == second.id] == changed


def test_what_a_claim_tells_is_what_the_row_says(app: Queuert) -> None:
    chain = app.start_chain("work", priority=3)
    [job] = claim(app)
    stored = app.get_job(chain.id)
    assert stored is not None
    assert {**job.__dict__, "input": None} == stored.__dict__

"""What must be true of a database when all work on it is done, whatever happened meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

from queuert import Queuert
from support.clocks import is_postgres


def rows(app: Queuert, query: str, *params: object) -> list[tuple[Any, ...]]:
    """Of a query of the test's own; ids as text."""
    with app.transaction() as tx:
        found = tx.execute(query.replace("?", "%s") if is_postgres(app) else query, params).fetchall()
        return [tuple(str(value) if type(value).__name__ == "UUID" else value for value in row) for row in found]


def unfinished(app: Queuert) -> int:
    """How many jobs are not closed yet."""
    ((number,),) = rows(app, "SELECT count(*) FROM queuert_job WHERE status IN ('pending', 'running', 'blocked')")
    return int(number)


def statuses(app: Queuert) -> dict[str, int]:
    return dict(rows(app, "SELECT status, count(*) FROM queuert_job GROUP BY status"))


def ledger(app: Queuert) -> Counter[str]:
    """How often each job has written in `complete()`."""
    return Counter(job_id for (job_id,) in rows(app, "SELECT job_id FROM ledger"))


def outcomes(app: Queuert) -> dict[str, list[str]]:
    """How the attempts of each job ended, in order."""
    found: dict[str, list[str]] = {}
    for job_id, outcome in rows(app, "SELECT job_id, outcome FROM queuert_job_attempt ORDER BY job_id, attempt"):
        found.setdefault(job_id, []).append(outcome)
    return found


def check_no_orphans(app: Queuert) -> None:
    """Every row belongs to something, and nothing is held by anybody."""
    job = "SELECT id FROM queuert_job"
    assert not rows(app, "SELECT id FROM queuert_job WHERE leased_by IS NOT NULL OR leased_until IS NOT NULL")
    assert not rows(app, "SELECT id FROM queuert_job WHERE open_blockers <> 0")
    assert not rows(app, f"SELECT id FROM queuert_job WHERE continued_to IS NOT NULL AND continued_to NOT IN ({job})")
    assert not rows(app, f"SELECT id FROM queuert_job WHERE chain_id NOT IN ({job})")
    for table, column in (
        ("attempt", "job_id"),
        ("event", "job_id"),
        ("blocker", "job_id"),
        ("blocker", "blocked_by_chain_id"),
    ):
        assert not rows(app, f"SELECT {column} FROM queuert_job_{table} WHERE {column} NOT IN ({job})")
    tails = "SELECT chain_id FROM queuert_job WHERE continued_to IS NULL GROUP BY chain_id HAVING count(*) <> 1"
    assert not rows(app, tails)


def check_attempts(app: Queuert) -> None:
    """Every attempt that was begun has one row, numbered without gaps."""
    query = """
        SELECT j.id, j.attempt, count(a.attempt), coalesce(max(a.attempt), 0)
        FROM queuert_job j LEFT JOIN queuert_job_attempt a ON a.job_id = j.id
        GROUP BY j.id, j.attempt
    """
    assert [row for row in rows(app, query) if not row[1] == row[2] == row[3]] == []

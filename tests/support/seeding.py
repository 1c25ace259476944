"""A large backlog, for tests of query plans: made once, in SQL, with the indexes built after the rows are in.

Of jobs over 20 types: 50,000 pending and due at three priorities, 50,000 pending far in the future at a high one, 50,000
blocked (50 for each of 1,000 pending chains), 50,000 completed (40,000 chains of one, 5,000 of two), 1,000 running (half
of their leases over), 1,000 failed and 1,000 cancelled.
"""

from __future__ import annotations

from typing import Any

from queuert.storage.loader import functions, migrations
from support.store import Store

TYPES = tuple(f"t{number:02}" for number in range(20))
SHARE = 50_000
RUNNING = FAILED = CANCELLED = 1_000
BLOCKERS = 1_000

# The first number of each kind's ids.
DUE, FUTURE, BLOCKED, DONE, HEAD, TAIL, BUSY, BROKEN, DROPPED = (kind * 1_000_000 for kind in range(1, 10))

TOKEN = 77


def job_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


class _Dialect:
    """The few words in which the two databases differ."""

    def __init__(self, dialect: str) -> None:
        self.postgres = dialect == "postgres"

    def numbers(self, count: int) -> str:
        if self.postgres:
            return f"generate_series(0, {count - 1}) AS n (i)"
        return f"(WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}) SELECT i FROM n) n"

    def id(self, number: str) -> str:
        if self.postgres:
            return f"('00000000-0000-7000-8000-' || lpad(to_hex({number}), 12, '0'))::uuid"
        return f"printf('00000000-0000-7000-8000-%012x', {number})"

    def ago(self, seconds: str) -> str:
        if self.postgres:
            return f"now() - ({seconds}) * interval '1 second'"
        return f"(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('-%.3f seconds', {seconds})) || '000Z')"

    def later(self, seconds: str) -> str:
        if self.postgres:
            return f"now() + ({seconds}) * interval '1 second'"
        return f"(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('+%.3f seconds', {seconds})) || '000Z')"

    @property
    def type_name(self) -> str:
        return "'t' || lpad((i % 20)::text, 2, '0')" if self.postgres else "printf('t%02d', i % 20)"

    @property
    def status(self) -> str:
        return "::queuert_job_status" if self.postgres else ""


def seed(store: Store, run: Any) -> None:
    """Make the tables, fill them, and index them. `run` executes one statement."""
    dialect = store.database.dialect
    scripts = [*migrations(dialect, store.names), *functions(dialect, store.names)]
    statements = [statement for script in scripts for statement in script.statements]
    indexes = [statement for statement in statements if "INDEX" in statement.split("(")[0]]
    for statement in statements:
        if statement not in indexes:
            run(statement)
    if store.dialect == "postgres":
        run("SET session_replication_role = replica")  # no foreign key is checked row by row
    for statement in _rows(_Dialect(store.dialect)):
        run(statement)
    if store.dialect == "postgres":
        run("RESET session_replication_role")
    for statement in indexes:
        run(statement)
    run("ANALYZE")


def closed_chains_of_one_key(store: Store, number: int) -> str:
    """A statement that makes so many, the newest of them now."""
    d = _Dialect(store.dialect)
    return (
        "INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, status, deduplication_key, chain_created_at) "
        f"SELECT {d.id('50000000 + i')}, 't00', {d.id('50000000 + i')}, 't00', 'completed'{d.status}, 'worn', {d.ago('i')} "
        f"FROM {d.numbers(number)}"
    )


def _rows(d: _Dialect) -> list[str]:
    def jobs(count: int, first: int, status: str, **columns: str) -> str:
        number = f"{first} + i"
        values = {
            "id": d.id(number),
            "type_name": d.type_name,
            "chain_id": d.id(number),
            "chain_type_name": d.type_name,
            "input": '\'{"order": 12345, "note": "about as long as inputs are"}\'',
            "status": f"'{status}'{d.status}",
            "created_at": d.ago("86400 + i * 0.1"),
            "chain_created_at": d.ago("86400 + i * 0.1"),
            "scheduled_at": d.ago("3600 - i * 0.05"),
            **columns,
        }
        names, chosen = ", ".join(values), ", ".join(values.values())
        return f"INSERT INTO queuert_job ({names}) SELECT {chosen} FROM {d.numbers(count)}"

    closed = {
        "attempt": "1",
        "created_at": d.ago("100000 + i * 60"),
        "chain_created_at": d.ago("100000 + i * 60"),
        "last_attempt_at": d.ago("99000 + i * 60"),
        "completed_at": d.ago("98000 + i * 60"),
    }
    lease = {
        "attempt": "1",
        "leased_by": "'w' || (i % 4)",
        "lease_token": str(TOKEN),
        "last_attempt_at": d.ago("100 + i"),
        "leased_until": f"CASE WHEN i % 2 = 0 THEN {d.ago('10 + i')} ELSE {d.later('600 + i')} END",
    }
    key = "CASE WHEN i % 10 = 0 THEN 'key ' || i END"
    tails = {
        "chain_id": d.id(f"{HEAD} + i"),
        "chain_index": "1",
        "type_name": d.type_name.replace("i % 20", "(i + 1) % 20"),
    }
    return [
        jobs(SHARE, DUE, "pending", priority="(i % 3) * 5 - 5", deduplication_key=key),
        jobs(SHARE, FUTURE, "pending", priority="10", scheduled_at=d.later("100000000 + i")),
        jobs(SHARE, BLOCKED, "blocked", open_blockers="1", blocker_count="1"),
        jobs(SHARE - 10_000, DONE, "completed", output="'{}'", deduplication_key=key, **closed),
        jobs(5_000, HEAD, "completed", continued_to=d.id(f"{TAIL} + i"), **closed),
        jobs(5_000, TAIL, "completed", output="'{}'", **{**closed, **tails}),
        jobs(RUNNING, BUSY, "running", **lease),
        jobs(FAILED, BROKEN, "failed", error_code="'NET:' || (i % 7)", **closed),
        jobs(CANCELLED, DROPPED, "cancelled", **closed),
        'INSERT INTO queuert_job_blocker (job_id, blocked_by_chain_id, "index") '
        f"SELECT {d.id(f'{BLOCKED} + i')}, {d.id(f'{DUE} + i % {BLOCKERS}')}, 0 FROM {d.numbers(SHARE)}",
        "INSERT INTO queuert_job_key (chain_type_name, deduplication_key) "
        "SELECT DISTINCT chain_type_name, deduplication_key FROM queuert_job WHERE deduplication_key IS NOT NULL",
        "INSERT INTO queuert_job_attempt (job_id, attempt, worker_id, claimed_at, finished_at, outcome) "
        "SELECT id, 1, 'w1', last_attempt_at, completed_at, 'succeeded' FROM queuert_job WHERE status = 'completed'",
        "INSERT INTO queuert_job_event (job_id, event) SELECT id, 'CANCELLED' FROM queuert_job WHERE status = 'cancelled'",
        "INSERT INTO queuert_job_event (job_id, event) SELECT id, 'NOTED' FROM queuert_job WHERE status = 'pending'",
    ]

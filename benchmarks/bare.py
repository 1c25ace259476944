"""The yardstick: the same durable writes on the same tables, by hand, in the fewest statements a good engineer would write.

No checks, no blockers, no continuations, no deduplication: one table row for a job, one for its attempt, the lease as
a fence in the WHERE. Columns that have the right default are left to it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Store
from queuert.ids import uuid7

WORKER = "bare"
LEASE = 60.0
BATCH_INSERTS = {"sqlite": ("executemany",), "postgres": ("COPY", "executemany")}

_NOW = "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')"
_tokens = itertools.count(random.getrandbits(40))

Claimed = tuple[Any, ...]
"""Id, type, input, attempt, when claimed, token."""


def bare(store: Store) -> BareSqlite | BarePostgres:
    return BareSqlite(store) if store.dialect == "sqlite" else BarePostgres(store)


class BareSqlite:
    """Statements on one sqlite3 connection in autocommit; a batch has BEGIN and COMMIT around it."""

    def __init__(self, store: Store) -> None:
        self.conn = store.connect()

    def insert_one(self, type_name: str, payload: object, conn: Any = None) -> None:
        identity = uuid7()
        (conn or self.conn).execute(_INSERT_SQLITE, (identity, type_name, identity, type_name, json.dumps(payload)))

    def insert_many(self, type_name: str, payloads: Sequence[object], how: str = "executemany") -> None:
        ids = [uuid7() for _ in payloads]
        rows = [(i, type_name, i, type_name, json.dumps(payload)) for i, payload in zip(ids, payloads, strict=True)]
        self.conn.execute("BEGIN")
        self.conn.executemany(_INSERT_SQLITE, rows)
        self.conn.execute("COMMIT")

    def claim(self, type_name: str, limit: int) -> list[Claimed]:
        token = next(_tokens)
        rows = self.conn.execute(_CLAIM_SQLITE, (WORKER, token, LEASE, type_name, limit)).fetchall()
        return [(*row, token) for row in rows]

    def complete_one(self, job: Claimed, output: object = None) -> int:
        self.conn.execute("BEGIN")
        changed = self.complete_within(self.conn, job, output)
        self.conn.execute("COMMIT")
        return changed

    def complete_within(self, conn: Any, job: Claimed, output: object) -> int:
        """In a transaction that is open already."""
        changed: int = conn.execute(_COMPLETE_SQLITE, (json.dumps(output), WORKER, job[0], WORKER, job[5])).rowcount
        conn.execute(_ATTEMPT_SQLITE, (job[0], job[3], WORKER, job[4], job[4]))
        return changed

    def complete_many(self, jobs: Sequence[Claimed], outputs: Sequence[object]) -> int:
        done = [(json.dumps(output), WORKER, job[0], WORKER, job[5]) for job, output in zip(jobs, outputs, strict=True)]
        attempts = [(job[0], job[3], WORKER, job[4], job[4]) for job in jobs]
        self.conn.execute("BEGIN")
        changed = self.conn.executemany(_COMPLETE_SQLITE, done).rowcount
        self.conn.executemany(_ATTEMPT_SQLITE, attempts)
        self.conn.execute("COMMIT")
        return changed


class BarePostgres:
    """One psycopg connection for durable writes and one, with asynchronous commit, for claims; both in autocommit."""

    def __init__(self, store: Store) -> None:
        self.conn = store.connect()
        self.claimer = store.connect(durable=False)

    def insert_one(self, type_name: str, payload: object, conn: Any = None) -> None:
        identity = uuid7()
        (conn or self.conn).execute(_INSERT_POSTGRES, (identity, type_name, identity, type_name, json.dumps(payload)))

    def insert_many(self, type_name: str, payloads: Sequence[object], how: str = "COPY") -> None:
        ids = [uuid7() for _ in payloads]
        rows = [(i, type_name, i, type_name, json.dumps(payload)) for i, payload in zip(ids, payloads, strict=True)]
        with self.conn.transaction(), self.conn.cursor() as cursor:
            if how == "executemany":
                cursor.executemany(_INSERT_POSTGRES, rows)
                return
            with cursor.copy(_COPY_POSTGRES) as copy:
                for row in rows:
                    copy.write_row(row)

    def claim(self, type_name: str, limit: int) -> list[Claimed]:
        token = next(_tokens)
        rows = self.claimer.execute(_CLAIM_POSTGRES, (type_name, limit, WORKER, token, LEASE)).fetchall()
        return [(*row, token) for row in rows]

    def complete_one(self, job: Claimed, output: object = None, conn: Any = None) -> int:
        values = (json.dumps(output), WORKER, job[0], WORKER, job[5], WORKER)
        changed: int = (conn or self.conn).execute(_COMPLETE_ONE_POSTGRES, values).rowcount
        return changed

    def complete_many(self, jobs: Sequence[Claimed], outputs: Sequence[object]) -> int:
        ids = [job[0] for job in jobs]
        texts = [json.dumps(output) for output in outputs]
        tokens = [job[5] for job in jobs]
        changed: int = self.conn.execute(_COMPLETE_MANY_POSTGRES, (WORKER, ids, texts, tokens, WORKER, WORKER)).rowcount
        return changed


_INSERT_SQLITE = "INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, input) VALUES (?, ?, ?, ?, ?)"

_CLAIM_SQLITE = f"""
UPDATE queuert_job
SET status = 'running', attempt = attempt + 1, last_attempt_at = {_NOW}, leased_by = ?, lease_token = ?,
    leased_until = strftime('%Y-%m-%dT%H:%M:%f', 'now', ? || ' seconds') || '000Z'
WHERE id IN (
    SELECT id
    FROM queuert_job
    WHERE status = 'pending' AND type_name = ? AND suspect = 0 AND scheduled_at <= {_NOW}
    ORDER BY priority DESC, scheduled_at
    LIMIT ?
)
RETURNING id, type_name, input, attempt, last_attempt_at
"""

_COMPLETE_SQLITE = f"""
UPDATE queuert_job
SET status = 'completed', output = ?, completed_at = {_NOW}, completed_by = ?, leased_by = NULL, leased_until = NULL
WHERE id = ? AND status = 'running' AND leased_by = ? AND lease_token = ?
"""

_ATTEMPT_SQLITE = f"""
INSERT INTO queuert_job_attempt (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
VALUES (?, ?, ?, ?, ?, {_NOW}, 'succeeded')
"""

_INSERT_POSTGRES = "INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, input) VALUES (%s, %s, %s, %s, %s)"

_COPY_POSTGRES = "COPY queuert_job (id, type_name, chain_id, chain_type_name, input) FROM STDIN"

_CLAIM_POSTGRES = """
WITH won AS MATERIALIZED (
    SELECT id
    FROM queuert_job
    WHERE status = 'pending' AND type_name = %s AND suspect = false AND scheduled_at <= now()
    ORDER BY priority DESC, scheduled_at
    LIMIT %s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE queuert_job j
SET status = 'running', attempt = attempt + 1, last_attempt_at = now(), leased_by = %s, lease_token = %s,
    leased_until = now() + make_interval(secs => %s)
FROM won
WHERE j.id = won.id
RETURNING j.id, type_name, input, attempt, last_attempt_at
"""

_COMPLETE_ONE_POSTGRES = """
WITH done AS (
    UPDATE queuert_job
    SET status = 'completed', output = %s, completed_at = now(), completed_by = %s, leased_by = NULL, leased_until = NULL
    WHERE id = %s AND status = 'running' AND leased_by = %s AND lease_token = %s
    RETURNING id, attempt, last_attempt_at
)
INSERT INTO queuert_job_attempt (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT id, attempt, %s, last_attempt_at, last_attempt_at, now(), 'succeeded' FROM done
"""

_COMPLETE_MANY_POSTGRES = """
WITH done AS (
    UPDATE queuert_job j
    SET status = 'completed', output = item.output::jsonb, completed_at = now(), completed_by = %s,
        leased_by = NULL, leased_until = NULL
    FROM unnest(%s::uuid[], %s::text[], %s::bigint[]) AS item (id, output, token)
    WHERE j.id = item.id AND j.status = 'running' AND j.leased_by = %s AND j.lease_token = item.token
    RETURNING j.id, j.attempt, j.last_attempt_at
)
INSERT INTO queuert_job_attempt (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT id, attempt, %s, last_attempt_at, last_attempt_at, now(), 'succeeded' FROM done
"""

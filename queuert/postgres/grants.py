"""What each kind of database role needs of our tables, and nothing beyond it.

One table says it. A new table of ours gets one line here, or its tests fail: they run as each role.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuert.postgres.dialect import FUNCTIONS, POSTGRES
from queuert.storage.names import TABLES, Names

ENQUEUE: Final = "enqueue"
WORKER: Final = "worker"
OPERATOR: Final = "operator"
READ: Final = "read"

ROLES: Final = {
    ENQUEUE: "starts chains, and waits for them",
    WORKER: "runs jobs, and does the housekeeping",
    OPERATOR: "cancels, retries, triggers, deletes, finishes and pauses",
    READ: "looks at everything, and changes nothing",
}

_ALL: Final = "SELECT, INSERT, UPDATE, DELETE"
# By table: what whoever starts chains, a worker, and an operator may do. All may read everything.
_WRITES: Final[dict[str, tuple[str, str, str]]] = {
    "job": ("SELECT, INSERT, UPDATE (status, open_blockers)", _ALL, _ALL),
    "job_blocker": ("SELECT, INSERT", "SELECT, INSERT, DELETE", "SELECT, INSERT, DELETE"),
    "job_key": ("SELECT, INSERT, UPDATE (deduplication_key)", _ALL, _ALL),
    "job_attempt": ("SELECT", "SELECT, INSERT, DELETE", "SELECT, INSERT, DELETE"),
    "job_event": ("SELECT", "SELECT, INSERT, DELETE", "SELECT, INSERT, DELETE"),
    "singleton": ("SELECT", "SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE"),
    "worker": ("SELECT", _ALL, "SELECT"),
    "worker_rate": ("SELECT", _ALL, "SELECT"),
    "pause": ("SELECT", "SELECT, DELETE", _ALL),
    "limit": ("SELECT", "SELECT", _ALL),
    "limit_key": ("SELECT", _ALL, "SELECT"),
    "migration": ("SELECT", "SELECT", "SELECT"),
}


def grants(names: Names, kind: str, role: str) -> Iterator[str]:
    """The statements that let a role do its part; run them as the owner of the tables, after each migration."""
    tokens = POSTGRES.tokens(names)
    who = '"' + role.replace('"', '""') + '"'
    yield f'GRANT USAGE ON SCHEMA "{names.schema}" TO {who}'
    yield f"GRANT USAGE ON TYPE {tokens['job_status']} TO {who}"
    column = {ENQUEUE: 0, WORKER: 1, OPERATOR: 2}.get(kind)
    for table in TABLES:
        yield f"GRANT {'SELECT' if column is None else _WRITES[table][column]} ON {tokens[table]} TO {who}"
    if kind in (WORKER, OPERATOR):
        for function in FUNCTIONS:
            yield f"GRANT EXECUTE ON FUNCTION {tokens[function]} TO {who}"

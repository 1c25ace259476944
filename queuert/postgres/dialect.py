"""How PostgreSQL spells what the SQL files leave open. Needs no driver: `queuert sql` prints the schema without one.

Lists come as arrays. The planner takes one for 10 rows, or for as many as it has. As long as the tables are small it would
rather read a whole table than look up so many, and it keeps to that plan while they grow. `{few}` is a limit that it cannot
see, so that it expects a tenth of the rows; after two of them it expects one, and looks up each by its key.
"""

from __future__ import annotations

from typing import Final

from queuert.storage.loader import Dialect
from queuert.storage.names import CLAIMED_COLUMNS, TABLES, Names

FUNCTIONS: Final = ("complete_job", "complete_jobs", "lock_jobs", "recount_blockers", "release_dependants")
# Of the release before this one, made by the first migration: its workers may still run.
OLD_FUNCTIONS: Final = ("complete", "complete_one", "release")


def _tokens(names: Names) -> dict[str, str]:
    ours = (*TABLES, *FUNCTIONS, *OLD_FUNCTIONS, "job_status")
    id_type, few = names.id_type or "uuid", "LIMIT (SELECT 1000000000)"
    return {
        **names.tokens(),
        **{name: f'"{names.schema}"."{names.prefix}{name}"' for name in ours},
        "id_type": id_type,
        "few": few,
        "ids": f"(SELECT i.id FROM (SELECT unnest(:ids::{id_type}[]) AS id {few}) i {few})",
        "now": "statement_timestamp()",
        "claimed_columns": ", ".join(f"j.{column}" for column in CLAIMED_COLUMNS),
    }


def _shifted_time(base: str, sign: str, seconds: str) -> str:
    return f"({base} {sign} make_interval(secs => {seconds}))"


POSTGRES: Final = Dialect("postgres", _tokens, _shifted_time, numbered=True, several_statements=False)

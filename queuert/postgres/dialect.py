"""How PostgreSQL spells what the SQL files leave open. Needs no driver: `queuert sql` prints the schema without one.

Lists come as arrays. The planner takes one for 10 rows, or for as many as it has. As long as the tables are small it would
rather read a whole table than look up so many, and it keeps to that plan while they grow. `{few}` is a limit that it cannot
see, so that it expects a tenth of the rows; after two of them it expects one, and looks up each by its key.
"""

from __future__ import annotations

import re
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


def _qualified(statement: str) -> str:
    """Name the schema of functions, and of operators that PostgreSQL has for any enum or array only.

    Queries run on connections with the user's `search_path`. Who may create in a schema of it could make a function or an
    operator for exactly the types that we use: it would be preferred to PostgreSQL's own, and run as whoever runs the query.
    """
    statement = _FUNCTION.sub(r"pg_catalog.\1(", statement)
    statement = _STATUS_LIST.sub(_status_list, statement)
    statement = _STATUS.sub(r"\1 OPERATOR(pg_catalog.\2)", statement)
    return statement.replace(" && ", " OPERATOR(pg_catalog.&&) ")


def _status_list(match: re.Match[str]) -> str:
    values = ",".join(re.findall(r"'(\w+)'", match[3]))
    return f"{match[1]} OPERATOR(pg_catalog.{'<>) ALL' if match[2] else '=) ANY'} ('{{{values}}}')"


# Written in small letters without a space before the parenthesis, and neither grammar nor the name of a type.
_FUNCTION: Final = re.compile(
    r"(?<![\w.\"$])(?!(?:coalesce|greatest|least|extract|nullif|char|character|varchar|varying|numeric|decimal|bit)\()([a-z]\w*)\("
)
_STATUS: Final = re.compile(r"(\b\w+\.status) (=|<>)(?= )")
_STATUS_LIST: Final = re.compile(r"(\b\w+\.status) (NOT )?IN \(([^()]*)\)")

POSTGRES: Final = Dialect("postgres", _tokens, _shifted_time, numbered=True, several_statements=False, finish=_qualified)

"""What the tables are called, the type of the ids in them, and which columns are read in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

from queuert.model import Job

TABLES: Final = (
    *("job", "job_blocker", "job_key", "job_attempt", "job_event", "singleton", "worker", "worker_rate", "pause"),
    *("limit", "limit_key"),
    "migration",
)
JOB_COLUMNS: Final = tuple(column.name for column in fields(Job))
# What a claim does not know already of the jobs it took.
CLAIMED_COLUMNS: Final = tuple(
    column
    for column in JOB_COLUMNS
    if column
    not in (
        *("output", "status", "completed_at", "completed_by", "leased_by", "lease_token", "heartbeat_at"),
        *("continued_to", "open_blockers", "suspect", "failure_chain_id", "limit_at"),
    )
)
# A chain is read through its first job, `r`, and its tail, `t`.
CHAIN_COLUMNS: Final = (
    *("r.id", "r.type_name", "t.status", "r.input", "t.output", "r.created_at", "t.completed_at"),
    *("t.id", "t.type_name", "t.error_code"),
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"(?:character varying|[A-Za-z_][A-Za-z0-9_]*)(?:\(\d+\))?")


@dataclass(frozen=True)
class Names:
    """The configured names, checked."""

    prefix: str = "queuert_"
    schema: str = "public"
    id_type: str | None = None
    id_default: str | None = None

    def __post_init__(self) -> None:
        for what, value, longest in (("table prefix", self.prefix, 30), ("schema", self.schema, 63)):
            if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or len(value) > longest:
                raise ValueError(
                    f"The {what} must be letters, digits and underscores, not starting with a digit, and at most "
                    f"{longest} characters, not {value!r}."
                )
        if self.id_type is not None and not (isinstance(self.id_type, str) and _TYPE.fullmatch(self.id_type)):
            raise ValueError(f"The id type must be a plain SQL type such as uuid or varchar(36), not {self.id_type!r}.")
        default = self.id_default
        if default is not None and not (
            isinstance(default, str) and default.strip() and not re.search(r";|--|/\*|\x00", default)
        ):
            raise ValueError(f"The id default must be one SQL expression without ';' or comments, not {default!r}.")

    @property
    def channel_prefix(self) -> str:
        """What the names of notification channels begin with."""
        return self.prefix.rstrip("_") or self.prefix

    def tokens(self) -> dict[str, str]:
        """What tokens in braces stand for in every dialect."""
        return {
            "prefix": self.prefix,
            "schema": self.schema,
            "id_default": f" DEFAULT ({self.id_default})" if self.id_default else "",
            "job_columns": ", ".join(JOB_COLUMNS),
            "j_columns": ", ".join(f"j.{column}" for column in JOB_COLUMNS),
            "chain_columns": ", ".join(CHAIN_COLUMNS),
            # The lease is still the one that the item names. Who lost it can change nothing.
            "fence": "j.status = 'running' AND j.leased_by = item.worker AND j.lease_token = item.token",
        }

"""How SQLite spells what the SQL files leave open."""

from __future__ import annotations

from typing import Final

from queuert.storage.loader import Dialect
from queuert.storage.names import CLAIMED_COLUMNS, TABLES, Names

# Text in ISO format, UTC, fixed width: it sorts as times do. `subsec` is NULL before SQLite 3.42.
_FORMAT: Final = "'%Y-%m-%dT%H:%M:%f'"
_NOW: Final = f"(strftime({_FORMAT}, 'now') || '000Z')"

# What a claim is going to change in the jobs that it has found.
_DUE: Final = {"attempt": "min(j.attempt, 2147483646) + 1", "last_attempt_at": _NOW, "leased_until": "won.until"}


def _tokens(names: Names) -> dict[str, str]:
    return {
        **names.tokens(),
        **{table: f'"{names.prefix}{table}"' for table in TABLES},
        "id_type": names.id_type or "text",
        "now": _NOW,
        "claimed_columns": ", ".join(_readable(column) for column in CLAIMED_COLUMNS),
        "due_columns": ", ".join(_DUE.get(column, _readable(column)) for column in CLAIMED_COLUMNS),
    }


def _readable(column: str) -> str:
    """A row that was inserted by hand may hold bytes, which JSON cannot: its job is to fail, and not the claim."""
    if column not in ("input", "deduplication_key", "chain_trace_context", "trace_context"):
        return f"j.{column}"
    return f"CASE typeof(j.{column}) WHEN 'blob' THEN 0 ELSE j.{column} END"


def _shifted_time(base: str, sign: str, seconds: str) -> str:
    base = "'now'" if base == _NOW else base
    return f"(strftime({_FORMAT}, {base}, printf('{'%+' if sign == '+' else '-%'}.3f seconds', {seconds})) || '000Z')"


SQLITE: Final = Dialect("sqlite", _tokens, _shifted_time, numbered=False, several_statements=True)

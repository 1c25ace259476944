"""What must not be shown: values of fields with telling names, in payloads and in the text of errors.

This guards against shoulders and screenshots. What a handler prints into an error in a form of its own cannot be known here;
an app that stores such things gives `create_app` a `redact` of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from queuert.cli.messages import hide_secrets

Kind = Literal["input", "output", "error"]
Redact = Callable[[Kind, str, Any], Any]

DEFAULT_NAMES: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "credential",
    "cookie",
    "session_id",
    "card_number",
    "cvv",
    "ssn",
)
HIDDEN: Final = "[redacted]"
MAX_DEPTH: Final = 200  # payloads go no deeper


def redact_by_name(names: Iterable[str] = DEFAULT_NAMES) -> Redact:
    """Hides the values of fields whose names contain one of these, whatever their case, dashes or underscores."""
    wanted = tuple(dict.fromkeys(_plain(name) for name in names))
    if not all(wanted):
        raise ValueError("A name to redact must have at least one letter or digit.")
    spellings = "|".join(r"[-_ ]?".join(map(re.escape, name)) for name in sorted(wanted, key=len, reverse=True))
    # `password=...`, `"api_key": "..."`, `Authorization: Bearer ...`, also in the repr of a dict.
    assigned = re.compile(
        rf"((?:{spellings})[\w-]*[\"']?\s*[=:]\s*(?:bearer\s+|basic\s+)?)(\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;)}}\]]+)",
        re.IGNORECASE,
    )

    def redact(kind: Kind, type_name: str, value: Any) -> Any:
        if kind == "error":
            return assigned.sub(rf"\1{HIDDEN}", hide_secrets(value)) if isinstance(value, str) and wanted else value
        return _walk(value, 0)

    def _walk(value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return HIDDEN
        if isinstance(value, dict):
            return {key: HIDDEN if hides(key) else _walk(entry, depth + 1) for key, entry in value.items()}
        if isinstance(value, list):
            return [_walk(entry, depth + 1) for entry in value]
        return value

    def hides(name: object) -> bool:
        plain = _plain(str(name))
        return any(each in plain for each in wanted)

    return redact


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())

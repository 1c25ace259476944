"""Errors as one line of text, without passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from queuert.cli.exits import CommandError
from queuert.errors import QueuertError
from queuert.storage.urls import safe_url, scrub

_SECRETIVE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://\S+|\b[A-Za-z_]*(?:password|secret)[A-Za-z_]*\s*=\s*(?:'[^']*'?|\S+)", re.IGNORECASE
)


def message_of(error: BaseException) -> str:
    """What to tell a person who did not write the code."""
    text = " ".join(str(error).split())
    if isinstance(error, (QueuertError, CommandError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def hide_secrets(text: str, urls: Sequence[str | None] = ()) -> str:
    """The text without the passwords of these URLs, of the environment's, and of any other that it quotes."""
    for url in (*urls, os.environ.get("QUEUERT_URL")):
        if url:
            text = scrub(text, url)
    return _SECRETIVE.sub(lambda match: safe_url(match[0]), text)

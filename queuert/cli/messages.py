"""Errors as one line of text, without passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from queuert.cli.exits import CommandError
from queuert.errors import QueuertError
from queuert.storage.urls import MASK, safe_url, scrub

# Each begins where a word does, and is bounded: messages quote text of any length.
_SECRETIVE = re.compile(
    r"\b[A-Za-z][A-Za-z0-9+.-]{0,40}://\S+|\b[A-Za-z_]{0,40}(?:passw|pwd|secret)[A-Za-z_]{0,40}\s*=\s*(?:'[^']*'?|\S+)",
    re.IGNORECASE,
)
_BARE_CREDENTIALS = re.compile(r"(?<!\S)(['\"]?[^\s:@/'\"]{1,64}):(?!//)\S{1,1000}@")


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
    return _BARE_CREDENTIALS.sub(rf"\1:{MASK}@", _SECRETIVE.sub(lambda match: safe_url(match[0]), text))

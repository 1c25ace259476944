"""What an act tells the page that comes after it. The address carries only which act and how many, never a text."""

from __future__ import annotations

from typing import Final

from werkzeug.datastructures import MultiDict

DONE: Final = {
    "retry": "Retried",
    "cancel": "Cancelled",
    "delete": "Deleted",
    "trigger": "Triggered",
    "finish": "Finished",
    "pause": "Paused",
    "resume": "Resumed",
    "start": "Started",
    "limit": "The limit is set",
    "reset": "The limit is the code's again",
}


def done_text(args: MultiDict[str, str]) -> str | None:
    """The sentence about what was just done, if anything was."""
    word = DONE.get(args.get("done", ""))
    if word is None:
        return None
    number, skipped = _number(args.get("number")), _number(args.get("skipped"))
    text = word if number is None else f"{word} {number:,}"
    if skipped:
        text += f"; {skipped:,} had moved on and were left alone"
    return f"{text}."


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None

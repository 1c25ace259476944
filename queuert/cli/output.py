"""What commands print: tables, facts and lines for people, or JSON for programs.

On a terminal tables fit its width: ids are shortened to their distinctive end, columns without content are left out, the
last column is wrapped between words. Types and error codes stay whole, whatever that costs; a column for which there is no
room is named below. Colours need `rich`. Into a pipe or file the same content is plain text, unshortened, a row a line, so
that `grep` and `awk` find what they look for; a `COLUMNS` in the environment asks for the narrow form there too.

Text that comes from jobs is shown with its control characters spelled out: an error message must not be able to move the
cursor of the person who reads it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TextIO, Union

from queuert.cli.layout import Column, lay_out
from queuert.model import Status

STYLES: Final = {
    Status.BLOCKED: "magenta",
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}

SHORT_ID: Final = 8  # characters of the end: among a million jobs one in 4,000 shares them with another
LONGEST_ID: Final = 12  # what is no longer than this is shown whole

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Cell(NamedTuple):
    """A piece of text with a style, as `rich` names them."""

    text: str
    style: str = ""


Content = Union[str, int, float, None, Cell]


def status_cell(status: Status) -> Cell:
    return Cell(status.value, STYLES[status])


def clean(text: str) -> str:
    """The text with control characters spelled out, but for tabs and line ends."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def one_line(text: str, longest: int = 200) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class Output:
    """Prints to one stream."""

    def __init__(self, stream: TextIO | None = None, *, terminal: bool | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.terminal = is_terminal(self.stream) if terminal is None else terminal
        self._console = _rich_console(self.stream) if self.terminal else None
        # Columns to fit tables into; None where nobody looks at them line by line.
        self.width = _width(self.terminal)

    @property
    def draws(self) -> bool:
        """Whether the terminal can show more than ASCII."""
        return (getattr(self.stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")

    def line(self, *parts: Content) -> None:
        if self._console is not None:
            self._console.print(_rich_text(parts), soft_wrap=True)
        else:
            self._write("".join(_text(part) for part in parts))

    def heading(self, text: str) -> None:
        self.line()
        self.line(Cell(text, "bold"))

    def facts(self, pairs: Iterable[tuple[str, Content]]) -> None:
        """Names and values, aligned; a value of several lines is indented."""
        shown = [(name, value) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            cell = value if isinstance(value, Cell) else Cell(_text(value))
            first, *rest = self._lines(cell.text, width + 2)
            self.line(Cell(f"{name:<{width}}  ", "dim"), Cell(first, cell.style))
            for line in rest:
                self.line(" " * (width + 2) if line else "", Cell(line, cell.style))

    def _lines(self, text: str, indent: int) -> list[str]:
        """The lines of a text, wrapped between words where there is little room."""
        lines = text.split("\n")
        if self.width is None:
            return lines
        room = max(20, self.width - indent)
        return [
            part
            for line in lines
            for part in textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
            or [""]
        ]

    def id(self, identity: str | None, style: str = "") -> Cell:
        """An id for a table: its end, where there is little room. All commands take it so."""
        text = identity or ""
        return Cell(text if self.width is None or len(text) <= LONGEST_ID else text[-SHORT_ID:], style)

    def wrapped(self, text: str, style: str = "") -> None:
        """A paragraph."""
        for line in [text] if self.width is None else textwrap.wrap(text, self.width, break_long_words=False):
            self.line(Cell(line, style))

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Content]],
        *,
        right: Sequence[str] = (),
        optional: Sequence[str] = (),
    ) -> None:
        """A row a line. Where there is too little room the `optional` columns go first, in this order."""
        cells = [[_cell(content) for content in row] for row in rows]
        shown = [Column(name, [row[n] for row in cells], name in right) for n, name in enumerate(columns)]
        lines, left_out = lay_out(shown, self.width, optional, Cell)
        for line in lines:
            self.line(*line)
        if left_out:
            self.line(Cell(f"No room for: {', '.join(left_out)} (--json has all).", "dim"))

    def items(self, items: Sequence[Any], next_cursor: str | None = None, **more: Any) -> None:
        """A list as JSON: every list has this shape."""
        self.json({"items": list(items), "next_cursor": next_cursor, **more})

    def json(self, value: Any) -> None:
        """One JSON document, and nothing else."""
        text = json.dumps(value, indent=2, ensure_ascii=not self.draws, allow_nan=False)
        self._write(re.sub(r"[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text))

    def _write(self, text: str) -> None:
        self.stream.write(f"{text}\n")


def is_terminal(stream: TextIO) -> bool:
    return hasattr(stream, "isatty") and stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def _width(terminal: bool) -> int | None:
    if terminal:
        return max(20, terminal_size()[0])
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) >= 20 else None


def _cell(content: Content) -> Cell:
    style = content.style if isinstance(content, Cell) else ""
    return Cell(_text(content).replace("\n", " "), style)


def _text(part: Content) -> str:
    if isinstance(part, Cell):
        part = part.text
    return "" if part is None else clean(str(part))


def _rich_console(stream: TextIO) -> Any:
    try:
        from rich.console import Console
    except ImportError:
        return None
    # It sees NO_COLOR by itself.
    return Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)


def _rich_text(parts: Iterable[Content]) -> Any:
    from rich.text import Text

    text = Text()
    for part in parts:
        text.append(_text(part), style=part.style if isinstance(part, Cell) else "")
    return text

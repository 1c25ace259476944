"""What commands print: tables, facts and lines for people, or JSON for programs.

On a terminal `rich` draws them if it is installed. Without it, or into a pipe or file, the same content is plain text: no
colours, no lines, nothing cut off, so that `grep` and `awk` find what they look for.

Text that comes from jobs is shown with its control characters spelled out: an error message must not be able to move the
cursor of the person who reads it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TextIO, Union

from queuert.model import Status

STYLES: Final = {
    Status.BLOCKED: "magenta",
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}

IDS: Final = ("id", "job", "example")

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
            text = cell.text.replace("\n", "\n" + " " * (width + 2))
            self.line(Cell(f"{name:<{width}}  ", "dim"), Cell(text, cell.style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Content]], *, right: Sequence[str] = ()) -> None:
        content = [list(row) for row in rows]
        if self._console is not None:
            self._console.print(_rich_table(columns, content, right))
            return
        texts = [[_text(cell).replace("\n", " ") for cell in row] for row in content]
        widths = [max(len(column), *(len(row[n]) for row in texts), 0) for n, column in enumerate(columns)]
        for row in [[column.upper() for column in columns], *texts]:
            cells = [
                cell.rjust(width) if column in right else cell.ljust(width)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            self._write("  ".join(cells).rstrip())

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


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[Content]], right: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        # An id is there to be copied: the others give way.
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in IDS)
    for row in rows:
        table.add_row(*(_rich_text([cell]) for cell in row))
    return table

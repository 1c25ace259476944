"""Lays out a table in a given number of columns, without breaking a word.

What has to give way, in this order: columns without content; the width of the last column, which is wrapped between words;
its place, since it goes below the row; the columns that the caller can do without. If even then the rest is too wide, because
of a type with a very long name, that name gets a line of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

GAP: Final = "  "
LEAST: Final = 12  # a column of text that is narrower than this goes below the row instead


class Styled(Protocol):
    """A piece of text with a style."""

    @property
    def text(self) -> str: ...

    @property
    def style(self) -> str: ...


class Column(NamedTuple):
    """A column: what stands above it, and its cells from the top down."""

    name: str
    cells: Sequence[Styled]
    right: bool

    @property
    def width(self) -> int:
        return max([cell_width(self.name), *(cell_width(cell.text) for cell in self.cells)])

    @property
    def longest_word(self) -> int:
        words = [word for cell in self.cells for word in cell.text.split()]
        return max([cell_width(self.name), *(cell_width(word) for word in words)])


Line = list[Any]
Make = Callable[[str, str], Any]


def lay_out(columns: Sequence[Column], width: int | None, optional: Sequence[str], make: Make) -> tuple[list[Line], list[str]]:
    """The lines of a table, each of pieces that `make` made of text and style; and the columns that there is no room for."""
    if width is None:
        return _rows(columns, None, make), []
    shown = [column for column in columns if not column.cells or any(cell.text for cell in column.cells)]
    left_out: list[str] = []
    for name in optional:
        if _fits(shown, width) or _fits_below(shown, width):
            break
        left_out += [column.name for column in shown if column.name == name]
        shown = [column for column in shown if column.name != name]
    if _fits(shown, width):
        return _rows(shown, width, make), left_out
    return _stacked(shown, width, make), left_out


def cell_width(text: str) -> int:
    """How many places the text takes on a screen."""
    if text.isascii():
        return len(text)
    try:
        from rich.cells import cell_len
    except ImportError:
        return len(text)
    return int(cell_len(text))


def _fits(columns: Sequence[Column], width: int) -> bool:
    """Whether each row is a line, with the last column wrapped if need be."""
    if not columns:
        return True
    last = columns[-1]
    return _taken(columns) + min(last.width, max(last.longest_word, LEAST)) <= width


def _fits_below(columns: Sequence[Column], width: int) -> bool:
    """Whether each row is a line, with the last column below it."""
    return not columns[-1].right and _taken(columns) - len(GAP) <= width


def _taken(columns: Sequence[Column]) -> int:
    """Places before the last column."""
    return sum(column.width + len(GAP) for column in columns[:-1])


def _rows(columns: Sequence[Column], width: int | None, make: Make) -> list[Line]:
    if not columns:
        return []
    before, last = columns[:-1], columns[-1]
    room = None if width is None else width - _taken(columns)
    lines = [_line(before, -1, _title(last, room), make)]
    for number in range(len(last.cells)):
        cell = last.cells[number]
        first, *rest = _wrap(cell.text, room) or [""]
        shown = _pad(first, last, room) if last.right else first
        lines.append(_line(before, number, make(shown, cell.style), make))
        lines += [[make(" " * _taken(columns), ""), make(text, cell.style)] for text in rest]
    return lines


def _title(column: Column, room: int | None) -> str:
    title = column.name.upper()
    return _pad(title, column, room) if column.right else title


def _line(columns: Sequence[Column], number: int, end: Any, make: Make) -> Line:
    """Row `number`, or the titles; without the spaces that nobody would see."""
    pieces: Line = []
    for column in columns:
        text, style = (column.name.upper(), "") if number < 0 else (column.cells[number].text, column.cells[number].style)
        pieces.append(make(_pad(text, column), style))
        pieces.append(make(GAP, ""))
    pieces.append(make(end, "") if isinstance(end, str) else end)
    while pieces and not pieces[-1].text.strip():
        pieces.pop()
    if pieces:
        pieces[-1] = make(pieces[-1].text.rstrip(), pieces[-1].style)
    return pieces


def _stacked(columns: Sequence[Column], width: int, make: Make) -> list[Line]:
    """Each row with its text below it; and if that does not help, with its widest cell above it."""
    before, last = columns[:-1], columns[-1]
    lead: Column | None = None
    if not _fits_below(columns, width):
        wide = list(before) if not last.right else list(columns)
        lead = max(wide, key=lambda column: column.width)
        before = [column for column in wide if column is not lead]
    indent = "" if lead is None else GAP
    lines: list[Line] = [] if lead is None else [[make(lead.name.upper(), "")]]
    head = [make(indent, ""), *_line(before, -1, "", make)]
    if not last.right and lead is None:
        head += [make(GAP, ""), make(last.name.upper(), "")] if _line_width(head) + 2 + cell_width(last.name) <= width else []
    lines.append(head)
    for number in range(len(last.cells)):
        if lead is not None:
            lines.append([make(lead.cells[number].text, lead.cells[number].style)])
        lines.append([make(indent, ""), *_line(before, number, "", make)])
        if not last.right:
            cell = last.cells[number]
            lines += [[make(GAP + indent, ""), make(text, cell.style)] for text in _wrap(cell.text, width - 4)]
    return lines


def _line_width(line: Line) -> int:
    return sum(cell_width(piece.text) for piece in line)


def _pad(text: str, column: Column, room: int | None = None) -> str:
    width = column.width if room is None else min(column.width, room)
    space = " " * max(0, width - cell_width(text))
    return space + text if column.right else text + space


def _wrap(text: str, room: int | None) -> list[str]:
    if room is None or cell_width(text) <= room:
        return [text] if text else []
    return textwrap.wrap(text, max(1, room), break_long_words=False, break_on_hyphens=False)

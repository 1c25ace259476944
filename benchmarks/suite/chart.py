"""Horizontal bars as plain SVG: few enough that no plotting library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL, ROW, TITLE, GAP = 860, 230, 22, 30, 18
OURS, BARE, OTHER = "#2563eb", "#64748b", "#cbd5e1"


@dataclass
class Chart:
    title: str
    unit: str
    values: dict[str, float]

    @property
    def height(self) -> int:
        return TITLE + ROW * len(self.values) + GAP


def draw(charts: Sequence[Chart]) -> str:
    """All charts, one below the other."""
    parts, top = [], 10
    for chart in charts:
        parts.append(_chart(chart, top))
        top += chart.height
    style = (
        "text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; font-size: 13px; fill: #1e293b } "
        ".title { font-weight: bold } .unit { fill: #64748b; font-weight: normal }"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="#ffffff"/>\n{"".join(parts)}</svg>\n'
    )


def _chart(chart: Chart, top: int) -> str:
    largest = max(chart.values.values(), default=0) or 1
    title = f'{escape(chart.title)} <tspan class="unit">({escape(chart.unit)})</tspan>'
    rows = [f'<text class="title" x="10" y="{top + 18}">{title}</text>\n']
    for number, (name, value) in enumerate(chart.values.items()):
        y = top + TITLE + number * ROW
        length = max(1.0, value / largest * (WIDTH - LABEL - 90))
        text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        rows.append(
            f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{LABEL}" y="{y + 2}" width="{length:.1f}" height="{ROW - 6}" rx="2" fill="{_colour(name)}"/>'
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 14}">{text}</text>\n'
        )
    return "".join(rows)


def _colour(name: str) -> str:
    return OURS if name.startswith("queuert") else BARE if name.startswith("bare") else OTHER

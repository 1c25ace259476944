"""The results as files: tables in Markdown, a chart, and the numbers for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Table
from benchmarks.suite.chart import draw
from benchmarks.suite.context import Context


def write(directory: Path, context: Context, about: Sequence[str], tables: Sequence[Table]) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "results.md": "\n\n".join([*about, *(table.markdown().rstrip() for table in tables)]) + "\n",
        "results.svg": draw(context.charts),
        "results.json": json.dumps(
            {
                "about": list(about),
                "lines": context.findings.as_json(),
                "medians": {chart.title: chart.values for chart in context.charts},
                "rounds": context.rounds,
            },
            indent=2,
            ensure_ascii=False,
        ),
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in files]

"""All measurements, for all contenders.

    python -m benchmarks
    python -m benchmarks drain enqueue --quick --postgres-url postgresql://localhost/postgres --out results

Prints each table as soon as it is there, and at the end which of the lines are reached; `--out` says where Markdown, a chart
and the numbers go.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Options, Stores, Table, add_options, read_options
from benchmarks.peers import versions
from benchmarks.suite.context import Context
from benchmarks.suite.parts import PARTS, Part
from benchmarks.suite.progress import Bar
from benchmarks.suite.report import write


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a part failed. A missed line is a result, not a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure the library, the bare driver and its peers."
    )
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(names)} (all)")
    add_options(parser)
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"), help="a directory for the results")
    parser.add_argument("--no-peers", action="store_true", help="only the library and the bare driver")
    parser.add_argument("--memory", action="store_true", help="run the part 'memory' to its end: 1,000,000 jobs")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    wanted = [*given.parts, *(["memory"] if given.memory and given.parts else [])]
    return run([part for part in PARTS if part.name in wanted or not wanted], read_options(given), given.out, given.memory)


def run(parts: Sequence[Part], options: Options, out: Path, memory_in_full: bool) -> int:
    tables: list[Table] = []
    failed: list[str] = []
    bar, begun = Bar(parts), time.monotonic()
    with Stores(options) as stores:
        context = Context(options, stores, memory_in_full=memory_in_full)
        about = [
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores. {stores.describe()}.",
            f"Peers: {versions()}.",
        ]
        print("\n".join(about), flush=True)
        for part in parts:
            with bar.part(part):
                try:
                    for table in part.run(context):
                        bar.print(table.text())
                        tables.append(table)
                except Exception:
                    traceback.print_exc()
                    failed.append(part.name)
                except KeyboardInterrupt:
                    failed += [left.name for left in parts[parts.index(part) :]]
                    break
    lines = context.findings.table(whole=len(parts) == len(PARTS))
    if options.quick or options.smoke:
        lines.notes.append("Sizes were small: growth, memory and the snapshot say little, and start-up counts for much.")
    if failed:
        lines.notes.append(f"Failed, or not measured to the end: {', '.join(failed)}.")
    if lines.rows or lines.notes:
        bar.print(lines.text())
        tables.insert(0, lines)
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    about.append(f"Measured in {minutes} minutes and {seconds} seconds{', quick' if options.quick else ''}.")
    for path in write(out, context, about, tables):
        print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server and the files go too
    sys.exit(main())

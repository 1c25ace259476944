"""What a worker with nothing to do costs. All contenders of a database idle at the same time, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.drain import CONCURRENCY
from benchmarks.harness import Table, progress
from benchmarks.suite.context import OURS, Context
from benchmarks.suite.lines import NAMES
from benchmarks.suite.serving import Served, served, wait_for


def idle(context: Context) -> Iterator[Table]:
    seconds = context.options.size(15, 5, 1)
    for dialect in context.options.databases:
        progress(f"idle for {seconds} seconds, {dialect}")
        table = Table(f"A worker with {CONCURRENCY} slots and nothing to do, {NAMES[dialect]}", ("contender", "% of a core"))
        classes, notes = context.peers(dialect)
        running: dict[str, Served] = {}
        with ExitStack() as stack:
            store = stack.enter_context(context.stores.open(dialect))
            running[OURS] = stack.enter_context(served(None, store.url, CONCURRENCY))
            for peer in classes:
                url = stack.enter_context(context.stores.database(dialect))
                running[peer.name] = stack.enter_context(served(peer, url, CONCURRENCY))
            wait_for(running, notes)
            time.sleep(seconds)
            for name, worker in running.items():
                used = 100 * worker.stop()
                table.add(name, f"{used:.2f}")
                if name == OURS:
                    context.findings.add(dialect, "idle", used)
        if dialect == "postgres":
            table.notes.append("Of the worker's process; what the server does for it is not in it.")
        table.notes += notes
        yield table

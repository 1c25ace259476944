"""What `migrate()` costs those who work beside it, on a large database of the first release.

    python -m benchmarks.migrate --quick

The database has the first migration and what it began with, a tenth of its jobs still to do, all with a deduplication key. One
connection claims a job and completes it, again and again, as a worker of that release does on it. On PostgreSQL the longest
time between two claims while `migrate()` runs is compared with a second. On SQLite nobody writes while a migration runs, and
the table says for how long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Options, Store, Stores, Table, progress, run, seed_jobs
from queuert import Queuert
from queuert.app import context_of
from queuert.storage.loader import migrations
from queuert.storage.migrations import migrate as apply

JOBS, FEW_JOBS = 1_000_000, 100_000
AT_MOST = 1.0
"""Seconds between two claims."""
BEFORE = 3.0
"""Seconds of claims before the migration."""
PAUSE = 0.001
"""Seconds between a completion and the next claim: SQLite's write lock is not fair, and others must have a chance."""
KEYED = {"deduplication_key": "'key-' || id"}
CLOSED = {"status": "'completed'", "completed_at": "at", **KEYED}

CLAIM = """UPDATE queuert_job SET status = 'running', attempt = attempt + 1 WHERE id = (
        SELECT id FROM queuert_job WHERE type_name = 'open' AND status = 'pending'
        ORDER BY priority DESC, scheduled_at LIMIT 1{lock}
    )"""
COMPLETE = (
    "UPDATE queuert_job SET status = 'completed', completed_at = created_at WHERE type_name = 'open' AND status = 'running'"
)


class Claims:
    """A thread that claims and completes, and notes when."""

    def __init__(self, store: Store) -> None:
        self.times: list[float] = []
        self._conn: Any = store.connect()
        self._claim = CLAIM.format(lock="" if store.dialect == "sqlite" else " FOR UPDATE SKIP LOCKED")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claims")

    def __enter__(self) -> Claims:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._conn.execute(self._claim)
            self._conn.execute(COMPLETE)
            self.times.append(time.perf_counter())
            time.sleep(PAUSE)

    def longest_gap(self, start: float, end: float) -> float:
        """Between two claims, of which at least one was between the two times."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max(later - earlier for earlier, later in pairs if later >= start and earlier <= end)


def beside_a_migration(stores: Stores, dialect: str, options: Options) -> Table:
    jobs = options.size(JOBS, FEW_JOBS, 2_000)
    table = Table(
        f"migrate() with {jobs:,} jobs, {dialect} (seconds)",
        ("migrations", "took", "longest gap before", "longest gap meanwhile", "line"),
    )
    with stores.database(dialect) as url, Queuert(url) as app:
        first = _first_release(app)
        store = Store(dialect, url, app)
        progress(f"making {jobs:,} jobs")
        typed = {**CLOSED, "status": "'completed'::queuert_job_status"} if dialect == "postgres" else CLOSED
        seed_jobs(store, jobs - jobs // 10, types=["closed"], columns=typed)
        seed_jobs(store, jobs // 10, types=["open"], first=100_000_000, columns=KEYED)
        store.settle()
        with Claims(store) as claims:
            begun = time.perf_counter()
            time.sleep(BEFORE)
            start = time.perf_counter()
            applied = [name for name in app.migrate().applied if name not in first]
            end = time.perf_counter()
            count = len(claims.times)
            while len(claims.times) <= count:
                time.sleep(0.01)
        before, meanwhile = claims.longest_gap(begun, start), claims.longest_gap(start, end)
        verdict = "" if dialect == "sqlite" else f"{'ok' if meanwhile <= AT_MOST else 'MISSED'} (≤ {AT_MOST:g})"
        table.add(", ".join(applied), f"{end - start:.2f}", f"{before:.3f}", f"{meanwhile:.3f}", verdict)
        store.close()
    return table


def _first_release(app: Queuert) -> tuple[str, ...]:
    """Have the database as that made it."""
    context = context_of(app)
    known = migrations(context.database.dialect, context.repository.names)
    return apply(context.database, context.repository.names, known[:1]).applied


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        yield beside_a_migration(stores, dialect, options)


if __name__ == "__main__":
    run("Migrating a large database beside claims.", measure)

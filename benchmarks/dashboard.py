"""What an open dashboard costs a large database: the overview and the first pages, beside few jobs and beside a million.

    python -m benchmarks.dashboard --quick

Each page is asked for as a browser would ask, with nothing kept from the time before, in milliseconds; on PostgreSQL also in
rows that the server read for it. Live work is the same on both sides: what grows is what is completed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.cleanup import KEEP, _fill
from benchmarks.harness import Options, Store, Stores, Table, median, progress, run
from queuert.dashboard import Dashboard, create_app

COMPLETED = (10_000, 100_000, 1_000_000)
"""Completed jobs: the first against the last, with --quick against the second."""
AT_MOST = 1.5
"""How many times as long, and as many rows, a page may take beside the larger number."""
TIMES = 20
PAGES = ("/", "/chains", "/jobs", "/jobs?status=failed", "/jobs?status=completed", "/types", "/workers")
FLUSHED = 1.2
"""Seconds after which a server tells what its sessions have read."""
ROWS = """SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables)
    + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes)"""


def pages(stores: Stores, dialect: str, options: Options) -> Table:
    """Every page beside few and beside many completed jobs."""
    sizes = (COMPLETED[0], COMPLETED[1 if options.quick else 2])
    columns = [f"{size:,} jobs" for size in sizes]
    table = Table(
        f"Pages of the dashboard, {dialect} (milliseconds, median of {TIMES}; rows read)", ("page", *columns, "×", "line")
    )
    found: dict[str, list[tuple[float, float | None]]] = {page: [] for page in PAGES}
    for size in sizes:
        progress(f"{dialect}: {size:,} completed jobs")
        with stores.open(dialect, retention=KEEP, pool_size=1) as store:
            _fill(store, size)
            dashboard = create_app(store.app)
            for page in PAGES:
                found[page].append(_ask(store, dashboard, page))
    for page, ((few, few_rows), (many, many_rows)) in found.items():
        more = [many / few]
        if few_rows is not None and many_rows is not None:
            more.append((many_rows + 1) / (few_rows + 1))
        verdict = f"{'ok' if max(more) <= AT_MOST else 'MISSED'} (≤ {AT_MOST:g})"
        table.add(page, _said(few, few_rows), _said(many, many_rows), " ".join(f"{each:.2f}" for each in more), verdict)
    return table


def _said(seconds: float, rows: float | None) -> str:
    return f"{seconds * 1000:.1f}" + ("" if rows is None else f" ({rows:,.0f})")


def _ask(store: Store, dashboard: Dashboard, page: str) -> tuple[float, float | None]:
    """How long a page takes, and how many rows the server read for it."""
    from werkzeug.test import Client

    client, taken = Client(dashboard), []
    before = _rows(store)
    for _ in range(TIMES):
        dashboard.forget()
        start = time.perf_counter()
        answer = client.get(page)
        taken.append(time.perf_counter() - start)
        assert answer.status_code == 200, (page, answer.status)
    if before is None:
        return median(taken), None
    time.sleep(FLUSHED)
    dashboard.forget()
    client.get(page)
    after = _rows(store)
    assert after is not None
    return median(taken), (after - before) / (TIMES + 1)


def _rows(store: Store) -> float | None:
    if store.dialect != "postgres":
        return None
    conn = store.connect()
    try:
        return float(conn.execute(ROWS).fetchone()[0])
    finally:
        conn.close()


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        yield pages(stores, dialect, options)


if __name__ == "__main__":
    run("What an open dashboard costs a large database.", measure)

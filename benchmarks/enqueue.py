"""Starting chains against the bare driver inserting the same rows, commits included.

    python -m benchmarks.enqueue --quick

Once in the user's own transaction (`conn=`), as an application does it that writes its own rows with the job, and once
without. The bare driver on PostgreSQL has two ways to insert many rows; the faster one is the line.

Sixteen threads that start chains at once, while somebody listens, must be as fast with notifications as without.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.bare import BATCH_INSERTS, bare
from benchmarks.harness import PAYLOAD, RATIO_COLUMNS, Contender, Options, Store, Stores, Table, progress, race, run
from queuert import NewChain, Queuert

SINGLE, BATCH, TOLD = 0.7, 0.6, 0.9
"""The least ratios: to the bare driver for one and many, and with notifications to without."""
THREADS = 16


def enqueue(store: Store, options: Options) -> Table:
    app, theirs = store.app, bare(store)
    job_type = app.declare("noop")
    table = Table(f"Starting chains, {store.dialect} (jobs a second)", RATIO_COLUMNS)
    users, plain = store.connect(autocommit=False), store.connect(autocommit=False)
    app.configure_connection(users)
    rounds, turns = options.rounds, 10 if options.quick else 30
    ways = BATCH_INSERTS[store.dialect]
    payloads = [PAYLOAD] * 1_000

    def start_in_transaction() -> None:
        app.start_chain(job_type, PAYLOAD, conn=users)
        users.commit()

    def start_with_hooks() -> None:
        with app.hooks():
            app.start_chain(job_type, PAYLOAD, conn=users)
            users.commit()

    def insert_in_transaction() -> None:
        theirs.insert_one("noop", PAYLOAD, plain)
        plain.commit()

    def start_many(conn: Any) -> int:
        started = app.start_chains([NewChain(job_type, payload) for payload in payloads], conn=conn)
        if conn is not None:
            conn.commit()
        return len(started)

    progress("one, in the user's transaction")
    ones = race(
        [
            Contender("conn=", repeat(start_in_transaction)),
            Contender("conn=, hooks()", repeat(start_with_hooks)),
            Contender("BEGIN, INSERT, COMMIT", repeat(insert_in_transaction)),
        ],
        rounds=rounds,
        turns=turns,
    )
    table.add_ratio("start_chain(conn=)", ones, "conn=", "BEGIN, INSERT, COMMIT", SINGLE)
    table.add_ratio("start_chain(conn=) in hooks()", ones, "conn=, hooks()", "BEGIN, INSERT, COMMIT", SINGLE)

    progress("one, in its own transaction")
    alone = race(
        [
            Contender("own", repeat(lambda: app.start_chain(job_type, PAYLOAD))),
            Contender("INSERT", repeat(lambda: theirs.insert_one("noop", PAYLOAD))),
        ],
        rounds=rounds,
        turns=turns,
    )
    table.add_ratio("start_chain()", alone, "own", "INSERT", SINGLE)

    progress("1,000 at once")
    batches = race(
        [
            Contender("conn=", lambda: start_many(users)),
            Contender("own", lambda: start_many(None)),
            *(Contender(way, lambda way=way: theirs.insert_many("noop", payloads, way) or 1_000) for way in ways),
        ],
        rounds=rounds,
        turns=max(3, turns // 5),
    )
    for name, label in (("conn=", "start_chains(1,000, conn=)"), ("own", "start_chains(1,000)")):
        for way in ways:
            table.add_ratio(label, batches, name, way, BATCH if way == batches.fastest(ways) else None)
    return table


def enqueue_together(store: Store, options: Options) -> Table:
    """Many threads at once, each in transactions of its own."""
    table = Table(f"Starting chains from {THREADS} threads, {store.dialect} (jobs a second)", RATIO_COLUMNS)
    progress(f"from {THREADS} threads")
    each = 10 if options.quick else 30
    with (
        Queuert(store.url, pool_size=THREADS) as telling,
        Queuert(store.url, pool_size=THREADS, notify="none") as silent,
        Queuert(store.url) as listening,
    ):
        for app in (telling, silent):
            app.declare("noop")
        listening.job("other")(lambda job: None)
        with listening.worker(concurrency=1):
            result = race(
                [
                    Contender("told", lambda: from_threads(telling, each)),
                    Contender("untold", lambda: from_threads(silent, each)),
                ],
                rounds=options.rounds,
                turns=3 if options.quick else 6,
            )
    table.add_ratio("start_chain(), with notifications against without", result, "told", "untold", TOLD)
    return table


def from_threads(app: Queuert, each: int) -> int:
    threads = [threading.Thread(target=repeat(lambda: app.start_chain("noop", PAYLOAD), each)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * each


def repeat(call: Callable[[], object], times: int = 20) -> Callable[[], int]:
    def run_all() -> int:
        for _ in range(times):
            call()
        return times

    return run_all


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        with stores.open(dialect) as store:
            table = enqueue(store, options)
            table.notes.append(f"Payloads of {len(json.dumps(PAYLOAD))} bytes.")
            yield table
            yield enqueue_together(store, options)


if __name__ == "__main__":
    run("Starting chains against the bare driver.", measure)

"""Chains of five jobs, and jobs that wait for a hundred others.

The bare driver's tables and rows are the same; it claims 100 and writes what follows from them in one transaction.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.bare import Claimed, bare
from benchmarks.drain import Draining
from benchmarks.harness import PAYLOAD, Contender, Store, Table, Timed, progress, race
from benchmarks.suite.context import FAILURES, OURS, Context
from queuert import Continuation, NewChain, Queuert, RunningJob
from queuert.ids import uuid7

LENGTH = 5
FAN = 100


def define_types(app: Queuert) -> None:
    names = [f"step-{number}" for number in range(LENGTH)]
    for name, following in itertools.zip_longest(names, names[1:]):
        _define_step(app, name, following)

    @app.job("part")
    def part(job: RunningJob[dict[str, Any]]) -> int:
        return 1

    @app.job("whole")
    def whole(job: RunningJob[dict[str, Any]]) -> int:
        return sum(chain.output for chain in job.blockers)


def _define_step(app: Queuert, name: str, following: str | None) -> None:
    @app.job(name)
    def step(job: RunningJob[dict[str, Any]]) -> Continuation | None:
        return None if following is None else job.continue_with(following, job.input)


STEPS = [f"step-{number}" for number in range(LENGTH)]
KINDS = {"Chains of 5": STEPS, "Fan-in of 100": ["part", "whole"]}


def chains(context: Context) -> Iterator[Table]:
    for dialect in context.options.databases:
        with ExitStack() as stack:
            stores = {OURS: stack.enter_context(context.stores.open(dialect))}
            stores[FAILURES] = stack.enter_context(context.stores.open(dialect, history="failures"))
            for store in stores.values():
                define_types(store.app)
            for title, types in KINDS.items():
                progress(f"{title.lower()}, {dialect}")
                yield _measure(context, stores, title, types)


def _measure(context: Context, stores: dict[str, Store], title: str, types: Sequence[str]) -> Table:
    chains_count = context.options.size(500, 200, 20)
    fans = context.options.size(25, 10, 1)

    def fill(app: Queuert) -> None:
        if types is STEPS:
            app.start_chains([NewChain(types[0], PAYLOAD) for _ in range(chains_count)])
            return
        for _ in range(fans):
            parts = app.start_chains([NewChain("part", PAYLOAD) for _ in range(FAN)])
            app.start_chain("whole", PAYLOAD, blockers=parts)

    theirs = Bare(stores[OURS])
    result = race(
        [
            *(_ours(name, store, types, fill) for name, store in stores.items()),
            Contender("bare", lambda: theirs.drain(types), lambda: fill(stores[OURS].app)),
        ],
        rounds=context.options.rounds,
        turns=1,
        warm_up=0,
    )
    jobs = chains_count * LENGTH if types is STEPS else fans * (FAN + 1)
    return context.compare(title, stores[OURS].dialect, result, [], [f"{jobs:,} jobs a run."])


def _ours(name: str, store: Store, types: Sequence[str], fill: Callable[[Queuert], None]) -> Contender:
    draining, watcher = Draining(store, types, counted=False), store.connect()
    names = ", ".join(f"'{name}'" for name in types)
    completed = f"SELECT count(*) FROM queuert_job WHERE type_name IN ({names}) AND status = 'completed'"

    def run() -> Timed:
        """Jobs come into being as others end, so that what is done is counted afterwards."""
        before = watcher.execute(completed).fetchone()[0]
        begun = time.perf_counter()
        draining.run()
        seconds = time.perf_counter() - begun
        return Timed(watcher.execute(completed).fetchone()[0] - before, seconds)

    return Contender(name, run, lambda: fill(store.app), draining.stop)


class Bare:
    """Claims 100, completes 100, and writes what follows from them, in one transaction."""

    def __init__(self, store: Store) -> None:
        self._bare: Any = bare(store)
        self._follow = self._follow_sqlite if store.dialect == "sqlite" else self._follow_postgres

    def drain(self, types: Sequence[str]) -> int:
        done = 0
        for name, following in itertools.zip_longest(types, types[1:]):
            while claimed := self._bare.claim(name, 100):
                done += self._follow(claimed, name, following)
        return done

    def _follow_sqlite(self, jobs: Sequence[Claimed], name: str, following: str | None) -> int:
        conn, done = self._bare.conn, 0
        conn.execute("BEGIN")
        for job in jobs:
            done += self._bare.complete_within(conn, job, 1)
        if name == "part":
            conn.executemany(_UNBLOCK_SQLITE, [(job[0],) for job in jobs])
        elif following is not None:
            nexts = [(uuid7(), following, job[0]) for job in jobs]
            conn.executemany(_NEXT_SQLITE, nexts)
            conn.executemany("UPDATE queuert_job SET continued_to = ? WHERE id = ?", [(new, old) for new, _, old in nexts])
        conn.execute("COMMIT")
        return done

    def _follow_postgres(self, jobs: Sequence[Claimed], name: str, following: str | None) -> int:
        conn, ids = self._bare.conn, [job[0] for job in jobs]
        with conn.transaction():
            done: int = self._bare.complete_many(jobs, [1] * len(jobs))
            if name == "part":
                conn.execute(_UNBLOCK_POSTGRES, (ids,))
            elif following is not None:
                conn.execute(_NEXT_POSTGRES, (ids, [uuid7() for _ in ids], following))
        return done


_NEXT_SQLITE = """
INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, chain_index, input, chain_created_at)
SELECT ?, ?, chain_id, chain_type_name, chain_index + 1, input, chain_created_at FROM queuert_job WHERE id = ?
"""

_NEXT_POSTGRES = """
WITH item AS (
    SELECT * FROM unnest(%s::uuid[], %s::uuid[]) AS item (old, new)
), continued AS (
    UPDATE queuert_job j SET continued_to = new FROM item WHERE j.id = old
)
INSERT INTO queuert_job (id, type_name, chain_id, chain_type_name, chain_index, input, chain_created_at)
SELECT new, %s, chain_id, chain_type_name, chain_index + 1, input, chain_created_at
FROM item JOIN queuert_job j ON j.id = old
"""

_UNBLOCK_SQLITE = """
UPDATE queuert_job
SET open_blockers = open_blockers - 1, status = CASE open_blockers WHEN 1 THEN 'pending' ELSE status END
WHERE id IN (SELECT job_id FROM queuert_job_blocker WHERE blocked_by_chain_id = ?) AND status = 'blocked'
"""

_UNBLOCK_POSTGRES = """
UPDATE queuert_job j
SET open_blockers = open_blockers - freed.n,
    status = CASE WHEN open_blockers = freed.n THEN 'pending' ELSE status END
FROM (
    SELECT job_id, count(*) AS n FROM queuert_job_blocker WHERE blocked_by_chain_id = ANY (%s::uuid[]) GROUP BY job_id
) AS freed
WHERE j.id = freed.job_id AND j.status = 'blocked'
"""

"""Draining: plain handlers, and handlers with a write of their own inside `complete()`.

Each turn of a contender begins settled: nothing is left to do from what was enqueued, or from the turn before, by autovacuum or
a checkpoint.

The library's time counts from the start of its worker, a peer's from the start of its first handler; both end when the
database has no open job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from benchmarks.drain import CONCURRENCY, EFFECT_TABLE, SECONDS, Draining, Runs, define_types
from benchmarks.harness import PAYLOAD, Contender, Store, Table, Timed, progress, race, settle
from benchmarks.peers.base import Peer, handled
from benchmarks.suite.context import FAILURES, OURS, Context


def drain(context: Context) -> Iterator[Table]:
    for dialect in context.options.databases:
        with ExitStack() as stack:
            peers, notes = stack.enter_context(context.open_peers(dialect, ["durability", "worker"]))
            stores = {OURS: stack.enter_context(context.stores.open(dialect))}
            stores[FAILURES] = stack.enter_context(context.stores.open(dialect, history="failures"))
            for store in stores.values():
                define_types(store.app, dialect)
                store.script(EFFECT_TABLE[dialect])
            yield plain(context, stores, peers, notes)
            yield writing(context, stores)


def plain(context: Context, stores: dict[str, Store], peers: Sequence[Peer], notes: Sequence[str]) -> Table:
    jobs, dialect = context.options.size(20_000, 2_000, 200), stores[OURS].dialect
    progress(f"drain, plain handlers, {dialect}")
    runs = Runs(stores[OURS], jobs)
    result = race(
        [
            *(ours(name, store, "plain", jobs) for name, store in stores.items()),
            bare(runs, "plain", runs.bare_batches),
            *(PeerDrain(peer, context.options.size(peer.jobs, peer.jobs // 5, 100)).contender() for peer in peers),
        ],
        rounds=context.options.rounds,
        turns=1,
        warm_up=0,
    )
    context.against(dialect, "drain", result, ["bare", *(peer.name for peer in peers)])
    note = f"Up to {jobs:,} jobs a run, {CONCURRENCY} slots. The bare driver claims 100 and completes 100 on one connection."
    return context.compare("Drain, plain handlers", dialect, result, peers, [note, *notes])


def writing(context: Context, stores: dict[str, Store]) -> Table:
    jobs, dialect = context.options.size(5_000, 500, 100), stores[OURS].dialect
    progress(f"drain, a write inside complete(), {dialect}")
    runs = Runs(stores[OURS], jobs)
    result = race(
        [
            *(ours(name, store, "writing", jobs) for name, store in stores.items()),
            bare(runs, "writing", runs.bare_threads),
        ],
        rounds=context.options.rounds,
        turns=1,
        warm_up=0,
    )
    context.against(dialect, "writing", result, ["bare"])
    note = f"{jobs:,} jobs a run. The bare driver has {CONCURRENCY} threads, each job in a transaction of its own."
    return context.compare("Drain, a write inside complete()", dialect, result, [], [note])


def ours(name: str, store: Store, type_name: str, jobs: int) -> Contender:
    draining, runs = Draining(store, [type_name]), Runs(store, jobs)
    return Contender(name, draining.run, lambda: runs.fill_and_settle(type_name), draining.stop)


def bare(runs: Runs, type_name: str, run: Callable[[str], int]) -> Contender:
    return Contender("bare", lambda: run(type_name), lambda: runs.fill_and_settle(type_name))


class PeerDrain:
    """Runs of a peer's worker."""

    def __init__(self, peer: Peer, jobs: int) -> None:
        self._peer = peer
        self._jobs = jobs

    def contender(self) -> Contender:
        return Contender(self._peer.name, self.run, self.prepare, may_fail=True)

    def prepare(self) -> None:
        self._peer.fill(PAYLOAD, self._jobs)
        settle(self._peer.url)

    def run(self) -> Timed:
        expected = self._peer.count_open()
        handled.reset()
        deadline = time.monotonic() + SECONDS
        with self._peer.worker(CONCURRENCY):
            while time.monotonic() < deadline and handled.count < expected:
                time.sleep(0.01)
            while (left := self._peer.count_open()) and time.monotonic() < deadline:
                time.sleep(0.01)
            end = time.perf_counter()
        if handled.first is None:
            raise RuntimeError("No handler began.")
        return Timed(expected - left, end - handled.first)

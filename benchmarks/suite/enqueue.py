"""Enqueueing: one by one, each in a transaction of its own, and 1,000 at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.bare import BATCH_INSERTS, bare
from benchmarks.enqueue import repeat
from benchmarks.harness import PAYLOAD, Contender, Race, Store, Table, progress, race
from benchmarks.peers.base import Peer
from benchmarks.suite.context import OURS, Context
from queuert import NewChain

ONES, MANY = 20, 1_000


def enqueue(context: Context) -> Iterator[Table]:
    for dialect in context.options.databases:
        with context.stores.open(dialect) as store, context.open_peers(dialect, ["durability"]) as (peers, notes):
            durable = [peer.name for peer in peers if peer.durable]

            progress(f"enqueue one by one, {dialect}")
            ones = race_ones(context, store, peers)
            context.against(dialect, "enqueue one", ones, ["bare"])
            context.against_fastest(dialect, "enqueue one/peers", ones, durable)
            yield context.compare("Enqueue one by one", dialect, ones, peers, notes)

            progress(f"enqueue 1,000 at once, {dialect}")
            many = race_many(context, store, peers)
            bare_ways = [f"bare {way}" for way in BATCH_INSERTS[dialect]]
            context.against_fastest(dialect, "enqueue 1,000/bare", many, bare_ways)
            context.against_fastest(dialect, "enqueue 1,000/peers", many, durable)
            context.against(dialect, "enqueue 1,000", many, ["huey"])
            yield context.compare("Enqueue 1,000 at once", dialect, many, peers, notes)


def race_ones(context: Context, store: Store, peers: Sequence[Peer]) -> Race:
    job_type, theirs = store.app.declare("one"), bare(store)

    def by_peer(peer: Peer) -> int:
        peer.enqueue_each([PAYLOAD] * ONES)
        return ONES

    return race(
        [
            Contender(OURS, repeat(lambda: store.app.start_chain(job_type, PAYLOAD), ONES)),
            Contender("bare", repeat(lambda: theirs.insert_one("one", PAYLOAD), ONES)),
            *(Contender(peer.name, partial(by_peer, peer), may_fail=True) for peer in peers),
        ],
        rounds=context.options.rounds,
        turns=context.options.size(20, 5, 1),
    )


def race_many(context: Context, store: Store, peers: Sequence[Peer]) -> Race:
    job_type, theirs = store.app.declare("many"), bare(store)
    payloads = [PAYLOAD] * MANY

    def by_peer(peer: Peer) -> int:
        peer.enqueue_batch(payloads)
        return MANY

    def by_hand(way: str) -> int:
        theirs.insert_many("many", payloads, way)
        return MANY

    return race(
        [
            Contender(OURS, lambda: len(store.app.start_chains([NewChain(job_type, payload) for payload in payloads]))),
            *(Contender(f"bare {way}", partial(by_hand, way)) for way in BATCH_INSERTS[store.dialect]),
            *(Contender(peer.name, partial(by_peer, peer), may_fail=True) for peer in peers),
        ],
        rounds=context.options.rounds,
        turns=context.options.size(4, 2, 1),
        warm_up=1,
    )

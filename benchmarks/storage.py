"""The hot operations of the repository against the bare driver, the claim under a growing backlog, and what indexes cost.

    python -m benchmarks.storage --quick
    python -m benchmarks.storage --database postgres --url postgresql://localhost/postgres

A ratio of 1.0 means: as many jobs a second as the bare driver, commits included.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from benchmarks.bare import BATCH_INSERTS, BarePostgres, BareSqlite, bare
from benchmarks.harness import (
    PAYLOAD,
    RATIO_COLUMNS,
    Contender,
    Options,
    Store,
    Stores,
    Table,
    median,
    progress,
    race,
    run,
    seed_jobs,
)
from queuert.chains.complete import Completion, complete
from queuert.hooks import Hooks
from queuert.ids import uuid7
from queuert.model import Job
from queuert.sqlite.session import SqliteSession

SINGLE, BATCH = 0.7, 0.6
"""The least ratios."""
MORE_BUFFERS, MORE_TIME = 1.3, 1.6
"""How much a claim may grow from the smallest backlog to the largest."""
TYPES = [f"type-{number:02}" for number in range(20)]
TIMES = 5
WARM_UP = 12
"""Runs after which psycopg has prepared a statement and the server has settled on a plan for it."""
INDEXES = ("job_tail_idx", "job_listing_idx", "job_deduplication_idx", "job_error_idx")
WORKER = "bench"

T = TypeVar("T")

_tokens = itertools.count(random.getrandbits(40))


class Ours:
    """The operations as the app and the worker run them, each in its own transaction."""

    def __init__(self, store: Store) -> None:
        context = store.app._context
        self._context = context
        self._database = context.database
        self._repository = context.repository

    def run(self, work: Callable[[Any], T], *, single: bool) -> T:
        return self._database.run(work, single=single)

    def insert(self, type_name: str, payloads: Sequence[object]) -> int:
        return self._database.run(lambda session: self.insert_on(session, type_name, payloads), single=True)

    def insert_on(self, session: Any, type_name: str, payloads: Sequence[object]) -> int:
        items = [new_item(type_name, payload) for payload in payloads]
        self._repository.insert_chains(session, items)
        return len(items)

    def claim(self, types: Sequence[str], limit: int) -> list[Job]:
        return self._database.run(lambda session: self.claim_on(session, types, limit), single=True)

    def claim_on(self, session: Any, types: Sequence[str], limit: int) -> list[Job]:
        leases = dict.fromkeys(types, 60.0)
        return self._repository.claim_jobs(session, worker=WORKER, token=next(_tokens), leases=leases, limit=limit)

    def complete(self, jobs: Sequence[Job]) -> int:
        """With the locks before and the release of dependants after; on PostgreSQL that is one statement."""
        return self._database.run(
            lambda session: self.complete_on(session, jobs), single=self._repository.completes_in_one_statement
        )

    def complete_on(self, session: Any, jobs: Sequence[Job]) -> int:
        completions = [Completion(job, json.dumps(None), job.lease_token, None, 0.0) for job in jobs]
        return len(complete(self._context, session, WORKER, completions).ids)

    def complete_statement(self, jobs: Sequence[Job]) -> int:
        """The statement alone."""
        items = [done_item(job) for job in jobs]
        done = self._database.run(lambda session: self._repository.complete_jobs(session, WORKER, items), single=True)
        return len(done.ids)


def new_item(type_name: str, payload: object) -> dict[str, Any]:
    return {
        "id": uuid7(),
        "type_name": type_name,
        "input": json.dumps(payload),
        "priority": 0,
        "at": None,
        "after": None,
        "max_attempts": 25,
        "key": None,
        "blockers": 0,
        "trace": None,
    }


def done_item(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "chain_id": job.chain_id,
        "token": job.lease_token,
        "output": "null",
        "outcome": "succeeded",
        "holder": job.leased_by,
        "waited": 0.0,
        "next_blockers": 0,
    }


# Ratios


def ratios(store: Store, options: Options) -> Table:
    """Every hot operation against the bare driver."""
    table = Table(f"Hot operations, {store.dialect} (jobs a second)", RATIO_COLUMNS)
    ours, theirs = Ours(store), bare(store)
    rounds, turns = options.rounds, 10 if options.quick else 30

    def seed(jobs: int, *types: str) -> None:
        for type_name in types:
            for start in range(0, jobs, 5_000):
                theirs.insert_many(type_name, [PAYLOAD] * min(5_000, jobs - start))
        store.settle()

    def repeat(times: int, call: Callable[[], object]) -> int:
        for _ in range(times):
            call()
        return times

    progress("insert 1")
    single = race(
        [
            Contender("queuert", lambda: repeat(20, lambda: ours.insert("insert", [PAYLOAD]))),
            Contender("bare", lambda: repeat(20, lambda: theirs.insert_one("insert", PAYLOAD))),
        ],
        rounds=rounds,
        turns=turns,
    )
    table.add_ratio("insert 1", single, "queuert", "bare", SINGLE)

    progress("insert 1,000")
    payloads = [PAYLOAD] * 1_000
    ways = BATCH_INSERTS[store.dialect]
    batch = race(
        [
            Contender("queuert", lambda: ours.insert("insert", payloads)),
            *(Contender(way, lambda way=way: theirs.insert_many("insert", payloads, way) or 1_000) for way in ways),
        ],
        rounds=rounds,
        turns=max(3, turns // 5),
    )
    for way in ways:
        table.add_ratio("insert 1,000", batch, "queuert", way, BATCH if way == batch.fastest(ways) else None)

    progress("claim 100")
    seed(100 * (rounds * turns + 2), "claim-ours", "claim-bare")
    claims = race(
        [
            Contender("queuert", lambda: len(ours.claim(["claim-ours"], 100))),
            Contender("bare", lambda: len(theirs.claim("claim-bare", 100))),
        ],
        rounds=rounds,
        turns=turns,
    )
    table.add_ratio("claim 100", claims, "queuert", "bare", BATCH)

    for size, least in ((100, BATCH), (1, SINGLE)):
        progress(f"complete {size}")
        times = 1 if size > 1 else 10
        seed(size * times * (rounds * turns + 2), *("whole", "statement", "bare"))
        table_rows = _completions(ours, theirs, size, times)
        completions = race(table_rows, rounds=rounds, turns=turns)
        table.add_ratio(f"complete {size}", completions, "queuert", "bare", least)
        table.add_ratio(f"complete {size}, the statement alone", completions, "statement", "bare", least)
    return table


def _completions(ours: Ours, theirs: BareSqlite | BarePostgres, size: int, times: int) -> list[Contender]:
    """Completions of `size` jobs each; what they complete is claimed before, untimed."""
    claimed: dict[str, list[Any]] = {}

    def claim(name: str, call: Callable[[], list[Any]]) -> Callable[[], None]:
        def prepare() -> None:
            jobs = call()
            claimed[name] = [jobs[start : start + size] for start in range(0, len(jobs), size)]

        return prepare

    def complete(name: str, call: Callable[[list[Any]], int]) -> Callable[[], int]:
        return lambda: sum(call(jobs) for jobs in claimed[name])

    def complete_bare(jobs: list[Any]) -> int:
        return theirs.complete_one(jobs[0]) if size == 1 else theirs.complete_many(jobs, [None] * len(jobs))

    limit = size * times
    return [
        Contender("queuert", complete("whole", ours.complete), claim("whole", lambda: ours.claim(["whole"], limit))),
        Contender(
            "statement",
            complete("statement", ours.complete_statement),
            claim("statement", lambda: ours.claim(["statement"], limit)),
        ),
        Contender("bare", complete("bare", complete_bare), claim("bare", lambda: theirs.claim("bare", limit))),
    ]


# Growth


def growth(stores: Stores, dialect: str, options: Options) -> Table:
    """Hot operations under 10,000 to 1,000,000 pending jobs of 20 types, the sizes taking turns."""
    sizes = (10_000, 100_000) if options.quick else (10_000, 100_000, 1_000_000)
    what = "VM steps" if dialect == "sqlite" else "buffers"
    table = Table(
        f"Growth with the backlog, {dialect} ({what} and milliseconds for 100 jobs, median of {TIMES})",
        ("operation", *(f"{size:,} pending" for size in sizes), f"× {what}", "× time", "line"),
    )
    with ExitStack() as stack:
        queues = []
        for size in sizes:
            progress(f"{size:,} pending jobs")
            store = stack.enter_context(stores.open(dialect))
            seed_jobs(store, size, types=TYPES)
            store.settle()
            queues.append(Queue(store))
        for name, costs in hot_costs(queues).items():
            more = [costs[-1][part] / costs[0][part] for part in (0, 1)]
            good = more[0] <= MORE_BUFFERS and more[1] <= MORE_TIME
            cells = [f"{work:,.0f} · {seconds * 1000:.2f}" for work, seconds in costs]
            verdict = f"{'ok' if good else 'MISSED'} (≤ {MORE_BUFFERS}, ≤ {MORE_TIME})"
            table.add(name, *cells, f"{more[0]:.2f}", f"{more[1]:.2f}", verdict)
    return table


class Queue:
    """A backlog of one size, and what is measured on it."""

    def __init__(self, store: Store) -> None:
        self.ours = Ours(store)
        self.meter = Meter(store)
        self.held: list[Job] = []

    def warm_up(self) -> None:
        """Not on the backlog: the smallest has just enough jobs of one type for what is measured."""
        for _ in range(WARM_UP):
            self.ours.claim(["other"], 100)
            self.ours.insert("other", [PAYLOAD] * 100)
            self.ours.complete(self.ours.claim(["other"], 100))

    def hold(self) -> None:
        self.held = self.ours.claim(TYPES, 100)

    def claim(self, session: Any, types: Sequence[str]) -> None:
        self.ours.claim_on(session, types, 100)

    def complete(self, session: Any) -> None:
        self.ours.complete_on(session, self.held)

    def insert(self, session: Any) -> None:
        self.ours.insert_on(session, TYPES[0], [PAYLOAD] * 100)

    def timed(self, work: Callable[[Queue, Any], None], prepare: Callable[[Queue], None], *, single: bool) -> float:
        prepare(self)
        start = time.perf_counter()
        self.ours.run(lambda session: work(self, session), single=single)
        return time.perf_counter() - start


def hot_costs(queues: Sequence[Queue]) -> dict[str, list[tuple[float, float]]]:
    """Work and seconds of each operation, by size."""
    found: dict[str, list[tuple[float, float]]] = {}

    def measure(
        name: str, work: Callable[[Queue, Any], None], prepare: Callable[[Queue], None], *, single: bool = True
    ) -> None:
        progress(name)
        counted = []
        for queue in queues:
            prepare(queue)
            counted.append(queue.meter.count(partial(work, queue)))
        times: list[list[float]] = [[] for _ in queues]
        for _ in range(TIMES):
            for queue, own in zip(queues, times, strict=True):
                own.append(queue.timed(work, prepare, single=single))
        found[name] = [(count, median(own)) for count, own in zip(counted, times, strict=True)]

    for queue in queues:
        queue.warm_up()
    for types in (TYPES[-1:], TYPES[:5], TYPES):
        label = f"claim 100 of {len(types)} type{'s' if len(types) > 1 else ''}"
        measure(label, partial(Queue.claim, types=types), lambda queue: None)
    measure("complete 100", Queue.complete, Queue.hold, single=False)
    measure("insert 100", Queue.insert, lambda queue: None)
    return found


class Meter:
    """A session that counts the work of what is run on it: pages touched on PostgreSQL, steps of the virtual machine on
    SQLite. All of it is undone."""

    def __init__(self, store: Store) -> None:
        self.dialect = store.dialect
        self.hooks = Hooks()
        self.raw = store.connect()
        self.changed = 0
        self._work = 0.0

    def count(self, work: Callable[[Any], object]) -> float:
        self._work = 0.0
        self.raw.execute("BEGIN")
        try:
            work(self)
        finally:
            self.raw.execute("ROLLBACK")
            self.hooks.discard()
        return self._work

    def run(self, query: Any, params: Mapping[str, Any]) -> list[Any]:
        if self.dialect == "sqlite":
            return self._steps(query, params)
        # A long-lived connection comes to use a plan that does not know the values: the worse of the two counts.
        modes = ("force_custom_plan", "force_generic_plan")
        self._work += max(self._buffers(query.parts[0], params, mode) for mode in modes)
        cursor = self.raw.execute(query.parts[0], params)
        return [tuple(str(v) if isinstance(v, uuid.UUID) else v for v in row) for row in cursor] if cursor.description else []

    def _steps(self, query: Any, params: Mapping[str, Any]) -> list[Any]:
        def count() -> int:
            self._work += 1
            return 0

        self.raw.set_progress_handler(count, 1)
        try:
            session = SqliteSession(self.raw)
            rows = session.run(query, params)
            self.changed = session.changed
            return rows
        finally:
            self.raw.set_progress_handler(None, 0)

    def _buffers(self, text: str, params: Mapping[str, Any], mode: str) -> float:
        from psycopg import sql

        names = [name for name in params if f"%({name})s" in text]
        for number, name in enumerate(names, 1):
            text = text.replace(f"%({name})s", f"${number}")
        types = ", ".join(_postgres_type(params[name]) for name in names)
        values = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
        with self.raw.transaction(force_rollback=True):
            self.raw.execute(f"SET LOCAL plan_cache_mode = {mode}")
            self.raw.execute(f"PREPARE measured ({types}) AS {text.replace('%%', '%')}")
            explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE measured ({})").format(values)
            plan = self.raw.execute(explain).fetchone()[0][0]["Plan"]
            self.raw.execute("DEALLOCATE measured")
        # What nobody reads, such as an INSERT without RETURNING in a CTE, runs after the rest and is not in its sum.
        return max(_touched(plan), sum(_touched(part) for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"))


def _touched(plan: Mapping[str, Any]) -> float:
    return float(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _postgres_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {int: "bigint", float: "double precision"}.get(type(value), "text")


# Indexes


def indexes(stores: Stores, dialect: str, options: Options) -> Table:
    """What each listing index costs: the same operations on a database that lacks it."""
    operations = ("insert 1", "insert 1,000", "claim 100", "complete 100", "complete 1")
    table = Table(
        f"What an index costs, {dialect} (time with it, compared to without)",
        ("index", *operations),
    )
    for index in INDEXES:
        progress(f"without {index}")
        with ExitStack() as stack:
            whole, lacking = (stack.enter_context(stores.open(dialect)) for _ in range(2))
            lacking.script(f'DROP INDEX "queuert_{index}"')
            costs = _index_costs(Ours(whole), Ours(lacking), options)
        table.add(index, *(f"{(1 / costs[name] - 1) * 100:+.0f} %" for name in operations))
    table.notes.append("Differences of a few per cent are noise.")
    return table


def _index_costs(whole: Ours, lacking: Ours, options: Options) -> dict[str, float]:
    """The rate with the index over the rate without, by operation."""
    payloads = [PAYLOAD] * 1_000
    held: dict[Ours, list[Job]] = {}

    def hold(ours: Ours, limit: int) -> None:
        ours.insert("type", [PAYLOAD] * limit)
        held[ours] = ours.claim(["type"], limit)

    def insert_singly(ours: Ours) -> int:
        return sum(ours.insert("other", [PAYLOAD]) for _ in range(20))

    def complete_singly(ours: Ours) -> int:
        return sum(ours.complete([job]) for job in held[ours])

    def compare(work: Callable[[Ours], int], turns: int, prepare: Callable[[Ours], object] | None = None) -> float:
        contenders = [
            Contender(name, partial(work, ours), prepare and partial(prepare, ours))
            for name, ours in (("with", whole), ("without", lacking))
        ]
        return race(contenders, rounds=options.rounds, turns=turns).ratio("with", "without")

    turns = 5 if options.quick else 15
    return {
        "insert 1": compare(insert_singly, turns),
        "insert 1,000": compare(lambda ours: ours.insert("other", payloads), max(3, turns // 3)),
        "claim 100": compare(
            lambda ours: len(ours.claim(["type"], 100)), turns, lambda ours: ours.insert("type", payloads[:100])
        ),
        "complete 100": compare(lambda ours: ours.complete(held[ours]), turns, lambda ours: hold(ours, 100)),
        "complete 1": compare(complete_singly, turns, lambda ours: hold(ours, 10)),
    }


def measure(options: Options, stores: Stores) -> Iterator[Table]:
    for dialect in options.databases:
        with stores.open(dialect) as store:
            yield ratios(store, options)
    for dialect in options.databases:
        yield growth(stores, dialect, options)
    for dialect in options.databases:
        yield indexes(stores, dialect, options)


if __name__ == "__main__":
    run("The repository against the bare driver.", measure)

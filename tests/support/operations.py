"""Every hot or listing query, as calls on a repository with a large backlog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuert.model import Status
from support.seeding import BLOCKED, BROKEN, BUSY, DONE, DROPPED, DUE, FUTURE, HEAD, TOKEN, TYPES, job_id
from support.store import Store

Operation = Callable[[Store, Any], Any]

STATUSES = tuple(status.value for status in Status)
PAGE = 51


def claim(types: int, limit: int = 10) -> Operation:
    leases = dict.fromkeys(TYPES[:types], 60.0)
    return lambda store, session: store.repository.claim_jobs(session, worker="new", token=5, leases=leases, limit=limit)


def held(store: Store, session: Any, number: int) -> list[dict[str, Any]]:
    """Jobs that worker w1 is running."""
    ids = [job_id(BUSY + 1 + 4 * n) for n in range(number)]
    return [{"id": identity, "chain_id": identity, "token": TOKEN} for identity in ids]


def complete(store: Store, session: Any, number: int) -> Any:
    items = [
        {**item, "output": "1", "outcome": "succeeded", "holder": None, "waited": 0.0, "next_blockers": 0}
        for item in held(store, session, number)
    ]
    return store.repository.complete_jobs(session, "w1", items)


def complete_from_outside(store: Store, session: Any, ids: list[str]) -> Any:
    values: dict[str, Any] = {"token": None, "output": "1", "outcome": None, "holder": None, "waited": None, "next_blockers": 0}
    return store.repository.complete_jobs(session, None, [{**values, "id": i, "chain_id": i} for i in ids])


def continue_(store: Store, session: Any, number: int) -> Any:
    following = {"next_type": "t00", "next_input": "1", "next_priority": None, "next_at": None, "next_after": None}
    following |= {"next_max_attempts": 3, "next_trace": None}
    items = [
        {
            **item,
            **following,
            "output": None,
            "outcome": "succeeded",
            "holder": None,
            "waited": 0.0,
            "next_blockers": 0,
            "next_id": job_id(20_000_000 + n),
        }
        for n, item in enumerate(held(store, session, number))
    ]
    return store.repository.complete_jobs(session, "w1", items)


def end(store: Store, session: Any, number: int) -> Any:
    values = {"worker": "w1", "status": "pending", "outcome": "failed", "code": "A:B", "detail": None, "error": None}
    values |= {"at": None, "after": 5, "forgive": 0, "waited": None}
    return store.repository.end_attempts(session, [{**item, **values} for item in held(store, session, number)])


def insert(store: Store, session: Any, number: int) -> Any:
    values = {"type_name": "t03", "input": "1", "priority": 0, "at": None, "after": None, "max_attempts": 3}
    items = [{**values, "id": job_id(30_000_000 + n), "key": f"new {n}", "blockers": 0, "trace": None} for n in range(number)]
    return store.repository.insert_chains(session, items)


def duplicates(store: Store, session: Any, scope: str) -> Any:
    common = {"scope": scope, "since": 10_000_000.0 if scope == "any" else None, "exclude": []}
    items = [{**common, "n": n, "type_name": TYPES[n * 10 % 20], "key": f"key {n * 10}"} for n in range(50)]
    return store.repository.find_duplicates(session, items)


def name_blockers(store: Store, session: Any) -> Any:
    insert(store, session, 20)
    links = [{"job_id": job_id(30_000_000 + n), "chain_id": job_id(DUE + n), "index": 0, "trace": None} for n in range(20)]
    store.repository.insert_blockers(session, links)
    return store.repository.settle_blockers(session, [link["job_id"] for link in links])


def listing(what: str, order: str, *, types: Any, statuses: Any, deep: bool, codes: Any = None) -> Operation:
    """A page of jobs or chains; `deep` is one in the middle of them."""
    filters = {
        "types": TYPES if types is None else types,
        "statuses": STATUSES if statuses is None else statuses,
        "error_codes": codes,
        "since": None,
        "until": None,
        "limit": PAGE,
        **({"chain_types": None} if what == "jobs" else {"root_only": False}),
    }

    def run(store: Store, session: Any) -> Any:
        position = {"at": None, "id": None}
        if deep:
            # Two days ago stand thousands of completed ones on either side.
            query = store.query("SELECT created_at, id FROM {job} WHERE id = :id")
            ((at, identity),) = session.run(query, {"id": job_id(DONE + 20_000)})
            position = {"at": at if isinstance(at, str) else at.isoformat(), "id": str(identity)}
        call = getattr(store.repository, f"list_{what}")
        found = call(session, order, **filters, **position)
        assert len(found) == PAGE
        return found

    return run


def listings() -> dict[str, Operation]:
    found: dict[str, Operation] = {}
    for what in ("jobs", "chains"):
        for name, types, statuses in (
            ("all", None, None),
            ("by type", ["t05"], None),
            ("by status", None, ["completed"]),
            ("by both", ["t05"], ["completed"]),
            ("pending of two types", ["t05", "t06"], ["pending"]),
        ):
            for order in ("asc", "desc"):
                found[f"list {what} {name} {order}"] = listing(what, order, types=types, statuses=statuses, deep=False)
            if statuses != ["pending"]:
                found[f"list {what} {name} desc, deep"] = listing(what, "desc", types=types, statuses=statuses, deep=True)
        failed = listing(what, "desc", types=None, statuses=["failed"], deep=False, codes=["NET:"])
        found[f"list {what} by error code"] = failed
    return found


def named(what: str) -> Operation:
    ids = [job_id(DONE + 7 * n) for n in range(200)]
    roots = [job_id(HEAD + 7 * n) for n in range(200)]
    filters = {
        "types": None,
        "statuses": None,
        "error_codes": None,
        "since": None,
        "until": None,
        "at": None,
        "id": None,
        "limit": PAGE,
    }
    if what == "jobs":
        return lambda store, session: store.repository.list_jobs(
            session, "desc", **filters, chain_types=None, job_ids=ids, chain_ids=roots
        )
    return lambda store, session: store.repository.list_chains(
        session, "desc", **filters, root_only=True, job_ids=ids, chain_ids=roots
    )


def jobs_of(number: int, first: int) -> list[str]:
    return [job_id(first + n) for n in range(number)]


def graph(name: str, first: int = DUE) -> Operation:
    return lambda store, session: getattr(store.repository, name)(session, [job_id(first + 3)])


SIGN = {"name": "w", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "busy": 0, "waiting": 0, "zombies": 0}
SIGN |= {"stopping": False, "types": list(TYPES)}
LIVE = ["blocked", "pending", "running"]

OPERATIONS: dict[str, Operation] = {
    "claim 10 of 1 type": claim(1),
    "claim 10 of 5 types": claim(5),
    "claim 10 of 20 types": claim(20),
    "claim 1 of 20 types": claim(20, 1),
    "claim suspects of 20 types": lambda store, session: store.repository.claim_jobs(
        session, worker="new", token=5, leases=dict.fromkeys(TYPES, 60.0), limit=1, suspect=True
    ),
    "next due of 20 types": lambda store, session: store.repository.next_due(session, TYPES),
    "next due of 1 type": lambda store, session: store.repository.next_due(session, TYPES[:1]),
    "waiting keys": lambda store, session: store.repository.waiting_keys(
        session, TYPES[0], suspect=False, after=("", ""), window=100
    ),
    "holders of a key": lambda store, session: store.repository.key_holders(session, "api", "a", 20),
    "head of a key": lambda store, session: store.repository.head_of_key(session, "api", "a"),
    "failures without their chain": lambda store, session: store.repository.unstarted_failures(session, 100),
    "joins that nobody freed": lambda store, session: store.repository.overdue_joins(session, 100),
    "lock 100 expired": lambda store, session: store.repository.lock_expired(session, store.repository.clock(session), 100),
    "renew 100": lambda store, session: store.repository.renew_leases(
        session, "w1", [{**item, "lease": 60.0} for item in held(store, session, 100)]
    ),
    "renew 100 and sign": lambda store, session: store.repository.renew_and_sign(
        session,
        "w1",
        [{**item, "lease": 60.0} for item in held(store, session, 100)],
        SIGN,
        [{"type_name": name, "part": part, "completed": 5, "failed": 1} for name in TYPES for part in (0, 1)],
    ),
    "lease states of 100": lambda store, session: store.repository.lease_states(session, jobs_of(100, BUSY)),
    "complete 100": lambda store, session: complete(store, session, 100),
    "continue 100": lambda store, session: continue_(store, session, 100),
    "end 100": lambda store, session: end(store, session, 100),
    "release 100 claims": lambda store, session: store.repository.release_claims(session, "w1", held(store, session, 100)),
    "lock 100 closing": lambda store, session: store.repository.lock_closing(session, jobs_of(100, BUSY)),
    "lock 100 closing now": lambda store, session: store.repository.lock_closing(session, jobs_of(100, BUSY), wait=False),
    "lock 2 closing now with 50 dependants each": lambda store, session: store.repository.lock_closing(
        session, jobs_of(2, DUE), wait=False
    ),
    "lock 100 jobs": lambda store, session: store.repository.lock_jobs(session, jobs_of(100, BUSY)),
    "lock 100 jobs now": lambda store, session: store.repository.lock_jobs(session, jobs_of(100, BUSY), wait=False),
    "complete 2 chains with 100 dependants": lambda store, session: complete_from_outside(store, session, jobs_of(2, DUE)),
    "insert 100": lambda store, session: insert(store, session, 100),
    "touch 50 keys": lambda store, session: store.repository.touch_keys(
        session, [{"type_name": TYPES[n * 10 % 20], "key": f"key {n * 10}"} for n in range(50)]
    ),
    "find 50 open duplicates": lambda store, session: duplicates(store, session, "incomplete"),
    "find 50 duplicates": lambda store, session: duplicates(store, session, "any"),
    "name 20 blockers": name_blockers,
    "get 100 jobs": lambda store, session: store.repository.get_jobs(session, jobs_of(100, DONE)),
    "get 100 chains": lambda store, session: store.repository.get_chains(session, jobs_of(100, HEAD)),
    "get 100 tails": lambda store, session: store.repository.get_tails(session, jobs_of(100, HEAD)),
    "count the blockers of a job": lambda store, session: store.repository.count_blockers(session, jobs_of(1, BLOCKED)[0]),
    "blockers of 100": lambda store, session: store.repository.get_blockers(session, jobs_of(100, BLOCKED)),
    "waits for": graph("waits_for", BLOCKED),
    "waiting chains": graph("waiting_chains"),
    "waiting jobs": graph("waiting_jobs"),
    "blocker chains": graph("blocker_chains", BLOCKED),
    "connected chains": graph("connected_chains"),
    "missing blockers": graph("missing_blockers", BLOCKED),
    "blocker references": graph("blocker_references"),
    "cancel 100": lambda store, session: store.repository.cancel_tails(session, jobs_of(100, BUSY), None),
    "retry 100": lambda store, session: store.repository.retry_tails(session, jobs_of(100, BROKEN), None),
    "trigger 100": lambda store, session: store.repository.trigger_jobs(session, jobs_of(100, FUTURE), None),
    "lock 20 chains": lambda store, session: store.repository.lock_chains(session, jobs_of(20, HEAD)),
    "delete 20 chains": lambda store, session: store.repository.delete_chains(session, jobs_of(20, DONE)),
    "expired chains": lambda store, session: store.repository.expired_chains(session, "t05", "completed", 86_400.0, None, 200),
    "expired chains, later batch": lambda store, session: store.repository.expired_chains(
        session,
        "t05",
        "completed",
        86_400.0,
        store.repository.expired_chains(session, "t05", "completed", 86_400.0, None, 200)[-1][1::-1],
        200,
    ),
    "chain types": lambda store, session: store.repository.chain_types(session),
    "job types": lambda store, session: store.repository.job_types(session),
    "take a task": lambda store, session: store.repository.take_singleton(session, "task", "me", 60.0),
    "finish a task": lambda store, session: store.repository.finish_singleton(session, "task", "me", next_in=5.0),
    "attempts": lambda store, session: store.repository.list_attempts(session, job_id(DONE + 5)),
    "events": lambda store, session: store.repository.list_events(session, job_id(DROPPED + 5)),
    "jobs of a chain": lambda store, session: store.repository.list_chain_jobs(
        session, "desc", chain_id=job_id(HEAD + 5), index=None, limit=PAGE
    ),
    "blocked jobs of a chain": lambda store, session: store.repository.list_blocked_jobs(
        session, "desc", chain_id=job_id(DUE + 5), at=None, id=None, limit=PAGE
    ),
    "list named jobs": named("jobs"),
    "list named chains": named("chains"),
    "statistics": lambda store, session: store.history._stats(session, None, 2_000, 100),
    "count live jobs up to 100": lambda store, session: store.repository.count_jobs(session, TYPES, LIVE, 100),
    "count attempts up to 100": lambda store, session: store.repository.count_attempts(
        session, TYPES, ["running", "failed"], 100
    ),
    "count retries up to 100": lambda store, session: store.repository.count_retries(session, TYPES, 100),
    "count errors up to 100": lambda store, session: store.repository.count_errors(session, TYPES, 100),
    "count stranded up to 100": lambda store, session: store.repository.count_stranded(session, TYPES, 100),
    "longest running": lambda store, session: store.repository.longest_running(session, TYPES, 20),
    **listings(),
}

"""Random sequences of operations against a plain Python model of the state machine, on every database.

After each operation every table must say what the model says: states, attempts used and forgiven, open blockers, leases,
keys, history. Times are left out, except for whether there is one and whether a job is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from support.store import TYPES, Store

from queuert.chains.complete import Completion
from queuert.chains.new_chain import NewChain
from queuert.errors import BlockerReferenceError, JobAlreadyCompletedError, JobNotTriggerableError, JobStateError
from queuert.options import Dedup

pytestmark = pytest.mark.conformance

OPEN = ("blocked", "pending", "running")
CLOSED = ("completed", "failed", "cancelled")


@dataclass(eq=False)
class ModelJob:
    """What a job's row should say."""

    id: str
    type: str
    chain: str
    chain_type: str
    index: int
    priority: int
    key: str | None
    max_attempts: int | None
    due: bool
    status: str = "pending"
    attempt: int = 0
    forgiven: int = 0
    open_blockers: int = 0
    blocker_count: int = 0
    blockers: list[str] = field(default_factory=list)
    worker: str | None = None
    token: int | None = None
    expired: bool = False
    suspect: bool = False
    code: str | None = None
    output: str | None = None
    completed_by: str | None = None
    continued_to: str | None = None
    attempts: list[tuple[int, str | None, str, str | None, bool]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    @property
    def used(self) -> int:
        return self.attempt - self.forgiven

    def row(self) -> tuple[Any, ...]:
        return (
            *(self.id, self.type, self.chain, self.chain_type, self.index, self.status, self.priority, self.key),
            *(self.max_attempts, self.attempt, self.forgiven, self.open_blockers, self.blocker_count, self.suspect),
            *(self.worker, self.token if self.status == "running" else None, self.code, self.output),
            *(self.completed_by, self.continued_to, self.status in CLOSED, self.worker is not None),
        )


class Model:
    """The state machine in plain Python."""

    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.keys: set[tuple[str, str]] = set()

    def tail(self, chain: str) -> ModelJob:
        return max((job for job in self.jobs.values() if job.chain == chain), key=lambda job: job.index)

    @property
    def chains(self) -> list[str]:
        return sorted(job.id for job in self.jobs.values() if job.index == 0)

    def with_status(self, *statuses: str) -> list[ModelJob]:
        return sorted((job for job in self.jobs.values() if job.status in statuses), key=lambda job: job.id)

    def duplicates(self, type_name: str, key: str, scope: str) -> set[str]:
        found = {job.chain for job in self.jobs.values() if job.chain_type == type_name and job.key == key}
        return {chain for chain in found if scope == "any" or self.tail(chain).status in OPEN}

    def add(self, job: ModelJob) -> None:
        job.blocker_count = len(job.blockers)
        job.open_blockers = sum(self.tail(chain).status != "completed" for chain in job.blockers)
        job.status = "blocked" if job.open_blockers else "pending"
        self.jobs[job.id] = job

    def claimable(self, types: Iterable[str], suspect: bool) -> list[ModelJob]:
        found = [job for job in self.with_status("pending") if job.due and job.suspect is suspect and job.type in types]
        return sorted(found, key=lambda job: -job.priority)

    def end_lease(self, job: ModelJob) -> None:
        job.worker, job.token, job.expired = None, None, False

    def complete(self, job: ModelJob, worker: str | None, output: str | None, following: ModelJob | None) -> None:
        if job.status == "running":
            outcome = "cancelled" if worker is None else "succeeded"
            job.attempts.append((job.attempt, worker or job.worker, outcome, None, False))
        self.end_lease(job)
        job.status, job.output, job.completed_by, job.code, job.suspect = "completed", output, worker, None, False
        if following is not None:
            job.continued_to = following.id
            self.add(following)
            return
        for waiting in self.jobs.values():
            if job.chain in waiting.blockers:
                waiting.open_blockers -= 1
                if waiting.status == "blocked" and waiting.open_blockers <= 0:
                    waiting.status = "pending"
                    waiting.events.append("UNBLOCKED")

    def end(self, job: ModelJob, status: str, outcome: str, code: str | None, due: bool, forgive: int) -> None:
        job.attempts.append((job.attempt, job.worker, outcome, code, status == "pending"))
        self.end_lease(job)
        job.status, job.code, job.suspect = status, code, status == "pending" and outcome == "lost"
        job.forgiven += forgive
        if status == "pending":
            job.due = due

    def waiting_chains(self, chains: Iterable[str]) -> set[str]:
        found, left = set(chains), list(chains)
        while left:
            current = left.pop()
            if self.tail(current).status == "completed":
                continue
            for job in self.with_status("blocked"):
                if current in job.blockers and job.chain not in found:
                    found.add(job.chain)
                    left.append(job.chain)
        return found

    def blocker_chains(self, chains: Iterable[str]) -> set[str]:
        found, left = set(chains), list(chains)
        while left:
            current = left.pop()
            for job in self.jobs.values():
                if job.chain == current:
                    left += [blocker for blocker in job.blockers if blocker not in found]
                    found.update(job.blockers)
        return found

    def would_wait_for_itself(self, chain: str, blockers: Iterable[str]) -> bool:
        found, left = set(blockers), list(blockers)
        while left:
            current = left.pop()
            for job in self.with_status("blocked"):
                if job.chain == current:
                    left += [blocker for blocker in job.blockers if blocker not in found]
                    found.update(job.blockers)
        return chain in found

    def cancel(self, chain: str) -> None:
        job = self.tail(chain)
        if job.status not in OPEN:
            return
        if job.status == "running":
            job.attempts.append((job.attempt, job.worker, "cancelled", None, False))
        self.end_lease(job)
        job.status, job.suspect = "cancelled", False
        job.events.append("CANCELLED")

    def delete(self, chains: set[str]) -> None:
        gone = {job.id: job for job in self.jobs.values() if job.chain in chains}
        for identity in gone:
            del self.jobs[identity]
        for job in self.jobs.values():
            job.blockers = [blocker for blocker in job.blockers if blocker not in chains]
        carried = {(job.chain_type, job.key) for job in self.jobs.values()}
        self.keys -= {(job.chain_type, job.key) for job in gone.values() if job.key} - carried


picks = st.lists(st.integers(0, 10**6), max_size=3)
pick = st.integers(0, 10**6)
priorities = st.sampled_from([-1, 0, 0, 5])
limits = st.sampled_from([None, 1, 2])
workers = st.sampled_from(["w1", "w2"])


def chosen(numbers: Iterable[int], among: list[Any]) -> list[Any]:
    """Some of a list, each once, in the order of the numbers."""
    return list(dict.fromkeys(among[number % len(among)] for number in numbers)) if among else []


class Machine(RuleBasedStateMachine):
    """Does the same to the database and to the model."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.model = Model()
        self.last_token = 0
        store.empty()

    @initialize()
    def something_to_work_on(self) -> None:
        for type_name in TYPES:
            self.start(type_name, 0, None, "incomplete", [], True, 2)
        self.claim({"a", "b"}, 2, False, "w1")

    # Starting

    @rule(
        type_name=st.sampled_from(TYPES),
        priority=priorities,
        key=st.sampled_from([None, None, "k1", "k2"]),
        scope=st.sampled_from(["incomplete", "any"]),
        blockers=picks,
        due=st.booleans(),
        max_attempts=limits,
    )
    def start(
        self,
        type_name: str,
        priority: int,
        key: str | None,
        scope: Any,
        blockers: list[int],
        due: bool,
        max_attempts: int | None,
    ) -> None:
        named = chosen(blockers, self.model.chains)
        known = self.model.duplicates(type_name, key, scope) if key else set()
        new = NewChain(
            type_name,
            priority=priority,
            dedup=Dedup(key, scope, window=3600) if key else None,
            blockers=named,
            after=0 if due else 10_000,
            max_attempts=max_attempts,
        )
        (chain,) = self.store.starter.start([new], None)
        if key:
            self.model.keys.add((type_name, key))
        assert chain.deduplicated is bool(known)
        if known:
            assert chain.id in known
            assert chain.status == self.model.tail(chain.id).status
            return
        self.model.add(ModelJob(chain.id, type_name, chain.id, type_name, 0, priority, key, max_attempts, due, blockers=named))
        assert chain.status == self.model.jobs[chain.id].status

    # Working

    @rule(types=st.sets(st.sampled_from(TYPES), min_size=1), limit=st.integers(1, 4), suspect=st.booleans(), worker=workers)
    def claim(self, types: set[str], limit: int, suspect: bool, worker: str) -> None:
        self.last_token += 1
        jobs = self.store.claim(limit, sorted(types), worker=worker, token=self.last_token, suspect=suspect)
        possible = self.model.claimable(types, suspect)
        assert {job.id for job in jobs} <= {job.id for job in possible}
        assert [job.priority for job in jobs] == [job.priority for job in possible[:limit]]
        for job in jobs:
            claimed = self.model.jobs[job.id]
            claimed.status, claimed.worker, claimed.token = "running", worker, self.last_token
            claimed.attempt += 1
            assert (job.attempt, job.leased_by, job.lease_token) == (claimed.attempt, worker, self.last_token)

    @precondition(lambda self: self.model.with_status("running"))
    @rule(numbers=picks, stale=st.booleans(), worker=workers)
    def complete(self, numbers: list[int], stale: bool, worker: str) -> None:
        """A batch of one worker's; the last of them may have lost its lease, or belong to another."""
        picked = chosen(numbers, self.model.with_status("running"))
        records = [self.store.job(job.id) for job in picked]
        tokens = [job.token for job in picked]
        if stale and tokens:
            tokens[-1] = -1
        batch = [Completion(record, f'"{record.id}"', token) for record, token in zip(records, tokens, strict=True)]
        done = self.store.write(lambda session: self.store.chains.complete(session, worker, batch))
        held = [job for job, token in zip(picked, tokens, strict=True) if token == job.token and job.worker == worker]
        assert done.ids == {job.id for job in held}
        for job in held:
            self.model.complete(job, worker, f'"{job.id}"', None)

    @precondition(lambda self: self.model.with_status("running"))
    @rule(number=pick, type_name=st.sampled_from(TYPES), blockers=picks, due=st.booleans(), priority=st.none() | priorities)
    def proceed(self, number: int, type_name: str, blockers: list[int], due: bool, priority: int | None) -> None:
        (job,) = chosen([number], self.model.with_status("running"))
        named = [chain for chain in chosen(blockers, self.model.chains) if chain != job.chain]
        if self.model.would_wait_for_itself(job.chain, named):
            return
        following = self.store.proceed(
            self.store.job(job.id),
            type_name,
            blockers=named,
            after=0 if due else 10_000,
            priority=priority,
            max_attempts=3,
        )
        rank = job.priority if priority is None else priority
        self.model.complete(
            job,
            job.worker,
            None,
            ModelJob(
                *(following.id, type_name, job.chain, job.chain_type, job.index + 1, rank, job.key, 3, due),
                blockers=named,
            ),
        )

    @precondition(lambda self: self.model.with_status("running"))
    @rule(number=pick, kind=st.sampled_from(["retry", "final", "reschedule"]), due=st.booleans(), stale=st.booleans())
    def end(self, number: int, kind: str, due: bool, stale: bool) -> None:
        (job,) = chosen([number], self.model.with_status("running"))
        values = {
            "retry": {"status": "pending", "outcome": "failed", "code": "X:RETRY", "forgive": 0},
            "final": {"status": "failed", "outcome": "failed", "code": "X:FINAL", "forgive": 0},
            "reschedule": {"status": "pending", "outcome": "rescheduled", "code": None, "forgive": 1},
        }[kind]
        record = self.store.job(job.id)
        token = -5 if stale else record.lease_token
        ended = self.store.end(record, **values, token=token, after=0 if due else 10_000)
        assert ended == (set() if stale else {job.id})
        if not stale:
            self.model.end(job, due=due, **values)

    @precondition(lambda self: self.model.with_status("running"))
    @rule(number=pick)
    def release(self, number: int) -> None:
        (job,) = chosen([number], self.model.with_status("running"))
        assert self.store.release(self.store.job(job.id)) == {job.id}
        self.model.end_lease(job)
        job.status, job.attempt, job.due = "pending", job.attempt - 1, True

    @precondition(lambda self: self.model.with_status("running"))
    @rule(numbers=picks, worker=workers)
    def renew(self, numbers: list[int], worker: str) -> None:
        picked = chosen(numbers, self.model.with_status("running"))
        if not picked:
            return
        renewed = self.store.renew(*(self.store.job(job.id) for job in picked), worker=worker)
        assert renewed == {job.id for job in picked if job.worker == worker}
        for job in picked:
            if job.worker == worker:
                job.expired = False

    @precondition(lambda self: self.model.with_status("running"))
    @rule(number=pick)
    def expire(self, number: int) -> None:
        (job,) = chosen([number], self.model.with_status("running"))
        self.expire_one(job)

    @precondition(lambda self: self.model.with_status("running"))
    @rule(numbers=picks)
    def lose(self, numbers: list[int]) -> None:
        """Workers die, and their jobs are reaped."""
        for job in chosen(numbers, self.model.with_status("running")):
            self.expire_one(job)
        self.reap_all()

    @rule()
    def reap(self) -> None:
        self.reap_all()

    def expire_one(self, job: ModelJob) -> None:
        self.store.expire(job.id)
        job.expired = True

    def reap_all(self) -> None:
        lost = [job for job in self.model.with_status("running") if job.expired]
        assert self.store.reap() == {job.id for job in lost}
        for job in lost:
            over = job.max_attempts is not None and job.used >= job.max_attempts
            self.model.end(job, "failed" if over else "pending", "lost", "WORKER:LOST", True, 0)

    # Acts of an operator

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=picks, cascade=st.booleans())
    def cancel(self, numbers: list[int], cascade: bool) -> None:
        chains = chosen(numbers, self.model.chains)
        if not chains:
            return
        answer = self.store.chains.cancel(chains, None, cascade=cascade)
        for chain in sorted(self.model.waiting_chains(chains) if cascade else chains):
            self.model.cancel(chain)
        assert [(chain.id, chain.status) for chain in answer] == [(c, self.model.tail(c).status) for c in chains]

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=picks)
    def retry(self, numbers: list[int]) -> None:
        chains = chosen(numbers, self.model.chains)
        tails = [self.model.tail(chain) for chain in chains]
        if not chains:
            return
        if any(t.status not in ("failed", "cancelled") or len(t.blockers) < t.blocker_count for t in tails):
            with pytest.raises(JobStateError):
                self.store.chains.retry(chains, None)
            return
        self.store.chains.retry(chains, None)
        for tail in tails:
            tail.status = "blocked" if tail.open_blockers > 0 else "pending"
            tail.forgiven, tail.suspect = tail.attempt, False
            tail.events.append("RETRIED")

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=picks)
    def trigger(self, numbers: list[int]) -> None:
        jobs = chosen(numbers, sorted(self.model.jobs.values(), key=lambda job: job.id))
        if not jobs:
            return
        if any(job.status != "pending" for job in jobs):
            with pytest.raises(JobNotTriggerableError):
                self.store.chains.trigger([job.id for job in jobs], None)
            return
        self.store.chains.trigger([job.id for job in jobs], None)
        for job in jobs:
            job.due = True
            job.events.append("TRIGGERED")

    @precondition(lambda self: self.model.jobs)
    @rule(number=pick)
    def finish_from_outside(self, number: int) -> None:
        (chain,) = chosen([number], self.model.chains)
        tail = self.model.tail(chain)
        if tail.status not in ("pending", "running", "failed"):
            with pytest.raises(JobAlreadyCompletedError if tail.status == "completed" else JobStateError):
                self.store.finish(chain, 1)
            return
        self.store.finish(chain, 1)
        self.model.complete(tail, None, "1", None)

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=picks, cascade=st.booleans())
    def delete(self, numbers: list[int], cascade: bool) -> None:
        chains = chosen(numbers, self.model.chains)
        if not chains:
            return
        affected = self.model.blocker_chains(chains) if cascade else set(chains)
        waiting = [
            job
            for job in self.model.jobs.values()
            if job.chain not in affected and job.status not in ("completed", "cancelled") and affected & set(job.blockers)
        ]
        if waiting:
            with pytest.raises(BlockerReferenceError) as caught:
                self.store.chains.delete(chains, None, cascade=cascade)
            assert {reference.job_id for reference in caught.value.references} == {job.id for job in waiting}
            return
        answer = self.store.chains.delete(chains, None, cascade=cascade)
        assert {chain.id for chain in answer} == affected
        self.model.delete(affected)

    # What must be true

    @invariant()
    def every_table_says_what_the_model_says(self) -> None:
        columns = (
            "id, type_name, chain_id, chain_type_name, chain_index, status, priority, deduplication_key, max_attempts, "
            "attempt, attempts_forgiven, open_blockers, blocker_count, suspect, leased_by, "
            "CASE WHEN status = 'running' THEN lease_token END, error_code, output, completed_by, continued_to, "
            "completed_at IS NOT NULL, leased_until IS NOT NULL"
        )
        found = self.store.read(self._tables(columns))
        model = self.model
        jobs = sorted(model.jobs.values(), key=lambda job: job.id)
        assert found["job"] == [job.row() for job in jobs]
        assert found["due"] == {job.id for job in jobs if job.status == "pending" and job.due}
        assert found["job_blocker"] == {(job.id, blocker) for job in jobs for blocker in job.blockers}
        assert found["job_key"] == model.keys
        assert found["job_attempt"] == {job.id: job.attempts for job in jobs if job.attempts}
        assert found["job_event"] == {job.id: job.events for job in jobs if job.events}

    def _tables(self, columns: str) -> Any:
        store = self.store

        def text(value: Any) -> Any:
            return value if value is None or isinstance(value, (int, str)) else str(value)

        def look(session: Any) -> dict[str, Any]:
            attempts: dict[str, list[Any]] = {}
            for identity, *rest in store.sql(
                "SELECT job_id, attempt, worker_id, outcome, error_code, retry_at IS NOT NULL FROM {job_attempt} "
                "ORDER BY job_id, attempt",
                session,
            ):
                attempts.setdefault(str(identity), []).append((*rest[:4], bool(rest[4])))
            events: dict[str, list[str]] = {}
            for identity, event in store.sql("SELECT job_id, event FROM {job_event} ORDER BY id", session):
                events.setdefault(str(identity), []).append(event)
            return {
                "job": [tuple(map(text, row)) for row in store.sql(f"SELECT {columns} FROM {{job}} ORDER BY id", session)],
                "due": {
                    str(row[0])
                    for row in store.sql("SELECT id FROM {job} WHERE status = 'pending' AND scheduled_at <= {now}", session)
                },
                "job_blocker": {
                    (str(a), str(b)) for a, b in store.sql("SELECT job_id, blocked_by_chain_id FROM {job_blocker}", session)
                },
                "job_key": set(store.sql("SELECT chain_type_name, deduplication_key FROM {job_key}", session)),
                "job_attempt": attempts,
                "job_event": events,
            }

        return look


@pytest.mark.timeout(400)  # when it fails it looks for a short example
def test_every_sequence_of_operations_does_what_the_model_does(quick_store: Store) -> None:
    store = quick_store
    run_state_machine_as_test(
        lambda: Machine(store),
        settings=settings(
            max_examples=20 if store.dialect == "postgres" else 40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

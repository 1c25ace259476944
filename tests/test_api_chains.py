"""Chains: their shapes, what a continuation takes over, and what their records say."""

from __future__ import annotations

import pytest
from support.refusals import refused

from queuert import Chain, Continuation, DuplicateJobIdError, Job, NewChain, Queuert, RunningJob, Status


def jobs_of(app: Queuert, chain: Chain) -> list[Job]:
    return app.list_chain_jobs(chain.id, limit=1_000).items


def test_a_new_chain_is_its_first_job(app: Queuert) -> None:
    app.declare("hello")
    chain = app.start_chain("hello", {"a": 1})
    assert (chain.status, chain.output, chain.completed_at, chain.deduplicated) == (Status.PENDING, None, None, False)
    assert (chain.tail_id, chain.tail_type_name, chain.type_name) == (chain.id, "hello", "hello")
    assert chain.created_at.utcoffset() is not None
    assert app.get_chain(chain.id) == chain
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.id, job.chain_id, job.chain_index, job.chain_type_name) == (chain.id, chain.id, 0, "hello")
    assert (job.attempt, job.max_attempts, job.priority, job.scheduled_at) == (0, 25, 0, job.created_at)
    assert (job.leased_by, job.leased_until, job.lease_token, job.continued_to) == (None, None, None, None)


def test_a_linear_chain_runs_in_order_and_gives_the_output_of_its_tail(app: Queuert) -> None:
    @app.job(continues_with=["second"])
    def first(job: RunningJob[list[str]]) -> Continuation:
        return job.continue_with("second", [*job.input, "first"])

    @app.job(continues_with=["third"], entry=False)
    def second(job: RunningJob[list[str]]) -> Continuation:
        return job.continue_with(third, [*job.input, "second"])

    @app.job(entry=False)
    def third(job: RunningJob[list[str]]) -> list[str]:
        return [*job.input, "third"]

    chain = app.start_chain(first, ["start"])
    assert app.drain() == 3
    done = app.wait_for(chain, timeout=5)
    assert done.output == ["start", "first", "second", "third"]
    assert done.input == ["start"]
    assert done.tail_type_name == "third"
    jobs = jobs_of(app, chain)
    assert [job.type_name for job in jobs] == ["first", "second", "third"]
    assert [job.chain_index for job in jobs] == [0, 1, 2]
    assert [job.continued_to for job in jobs] == [jobs[1].id, jobs[2].id, None]
    assert [job.output for job in jobs] == [None, None, done.output]
    assert {(job.chain_id, job.chain_type_name, job.chain_created_at) for job in jobs} == {
        (chain.id, "first", chain.created_at)
    }
    assert done.completed_at == jobs[2].completed_at


def test_a_chain_may_branch(app: Queuert) -> None:
    @app.job(continues_with=["cheap", "dear"])
    def quote(job: RunningJob[int]) -> Continuation:
        return job.continue_with("dear" if job.input > 100 else "cheap", job.input)

    @app.job(entry=False)
    def cheap(job: RunningJob[int]) -> str:
        return "taken"

    @app.job(entry=False)
    def dear(job: RunningJob[int]) -> str:
        return "asked"

    chains = app.start_chains([NewChain(quote, 5), NewChain(quote, 500)])
    app.drain()
    assert [app.wait_for(chain, timeout=5).output for chain in chains] == ["taken", "asked"]


def test_a_chain_may_loop_and_go_back(app: Queuert) -> None:
    @app.job(continues_with=["count", "leave"])
    def count(job: RunningJob[int]) -> Continuation:
        return job.continue_with("count" if job.input < 4 else leave, job.input + 1)

    @app.job(entry=False, continues_with=[count])
    def leave(job: RunningJob[int]) -> int | Continuation:
        return job.continue_with(count, 4) if job.input == 5 and job.chain_index < 8 else job.input

    chain = app.start_chain(count, 0)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == 5
    assert [job.type_name for job in jobs_of(app, chain)] == [*["count"] * 5, "leave", "count", "leave", "count", "leave"]


def test_none_is_an_output_and_differs_from_a_hand_over(app: Queuert) -> None:
    @app.job
    def nothing(job: RunningJob[None]) -> None:
        return None

    chain = app.start_chain(nothing)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.output, job.continued_to) == (Status.COMPLETED, None, None)


def test_a_continuation_inherits_the_priority_unless_it_is_given_one(app: Queuert) -> None:
    @app.job
    def start(job: RunningJob[int]) -> Continuation:
        options = {"priority": job.input} if job.input else {}
        return job.continue_with("next", job.input, **options)

    app.declare("next", priority=50, entry=False)
    inherits = app.start_chain(start, 0, priority=9)
    given = app.start_chain(start, -3, priority=9)
    app.drain(types=["start"])
    assert [job.priority for job in jobs_of(app, inherits)] == [9, 9]
    assert [job.priority for job in jobs_of(app, given)] == [9, -3]


def test_max_attempts_left_out_is_the_types_and_none_is_forever(app: Queuert) -> None:
    app.declare("seven", max_attempts=7)
    app.declare("forever", max_attempts=None)
    app.declare("default")

    def stored(name: str, **options: object) -> object:
        job = app.get_job(app.start_chain(name, **options).id)
        assert job is not None
        return job.max_attempts

    assert (stored("seven"), stored("forever"), stored("default")) == (7, None, 25)
    assert (stored("seven", max_attempts=None), stored("seven", max_attempts=2)) == (None, 2)
    assert stored("forever", max_attempts=1) == 1
    batch = app.start_chains([NewChain("seven"), NewChain("seven", max_attempts=None), NewChain("seven", max_attempts=3)])
    assert [job.max_attempts for job in app.list_jobs(job_ids=batch, order="asc")] == [7, None, 3]


def test_max_attempts_of_a_continuation_follow_the_same_rule(app: Queuert) -> None:
    @app.job
    def start(job: RunningJob[str]) -> Continuation:
        if job.input == "left out":
            return job.continue_with("next")
        return job.continue_with("next", max_attempts=None if job.input == "none" else 2)

    app.declare("next", entry=False, max_attempts=9)
    chains = [app.start_chain(start, how) for how in ("left out", "none", "two")]
    app.drain(types=["start"])
    assert [jobs_of(app, chain)[1].max_attempts for chain in chains] == [9, None, 2]


def test_a_continuation_may_have_an_id_of_its_own(app: Queuert) -> None:
    wanted = "0190a0b0-0000-7000-8000-00000000abcd"

    @app.job(max_attempts=1)
    def start(job: RunningJob[None]) -> Continuation:
        return job.continue_with("next", id=wanted.upper())

    app.declare("next", entry=False)
    chain, second = app.start_chain(start), app.start_chain(start)
    app.drain(types=["start"])
    tails = {c.id: app.get_chain(c.id) for c in (chain, second)}
    assert sorted(str(tail.status) for tail in tails.values() if tail) == ["failed", "pending"]
    assert wanted in {tail.tail_id for tail in tails.values() if tail}
    assert app.get_chain(wanted) is None, "a continuation's id is not a chain id"
    failed = next(tail for tail in tails.values() if tail and tail.status == "failed")
    job = app.get_job(failed.id)
    assert job is not None
    assert job.error_code == "INTERNAL:DuplicateJobIdError"


def test_input_and_output_of_every_size_up_to_the_limit_come_back(app: Queuert) -> None:
    @app.job
    def echo(job: RunningJob[str]) -> str:
        return job.input

    text = "ä" * 200_000
    chain = app.start_chain(echo, text)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == text


def test_records_are_compared_by_value(app: Queuert) -> None:
    app.declare("hello")
    chain = app.start_chain("hello")
    assert app.get_chain(chain.id) == app.get_chain(chain.id)
    assert app.get_job(chain.id) == app.get_job(chain.id)
    assert app.get_chain(chain.id) != app.get_chain(app.start_chain("hello").id)
    with pytest.raises(AttributeError):
        chain.status = Status.FAILED  # type: ignore[misc]  # wrong on purpose


def test_statuses_equal_their_strings(app: Queuert) -> None:
    app.declare("hello")
    chain = app.start_chain("hello")
    assert chain.status == "pending"
    assert str(chain.status) == "pending"
    assert f"{chain.status}" == "pending"
    assert {chain.status: 1}["pending"] == 1  # type: ignore[index]  # a plain string will do
    assert isinstance(chain.status, Status)


def test_a_bad_input_of_one_chain_keeps_the_whole_batch_out(app: Queuert) -> None:
    app.declare("number", input=int)
    with refused("invalid_input"):
        app.start_chains([NewChain("number", 1), NewChain("number", "two")])
    same = "0190a0b0-0000-7000-8000-000000000001"
    with pytest.raises(DuplicateJobIdError):
        app.start_chains([NewChain("number", 1, id=same), NewChain("number", 2, id=same.upper())])
    assert app.list_chains().items == []
    assert app.start_chains([]) == []

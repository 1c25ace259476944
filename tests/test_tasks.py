"""Tasks: plain functions as jobs. And job types that start themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from support import found

import queuert
from queuert import (
    Backoff,
    Chain,
    Continuation,
    Dedup,
    JobTypes,
    JobTypeValidationError,
    NewChain,
    Queuert,
    QueuertError,
    RunningJob,
    Task,
)

NOW = Backoff(initial=0, jitter=0)


@dataclass
class Size:
    width: int
    height: int = 10


def failure(app: Queuert, chain: Chain[Any]) -> str:
    """The code and the text of a chain that failed."""
    job = found(app.get_job(found(app.get_chain(chain)).tail_id))
    assert job.status == "failed"
    return f"{job.error_code} {job.last_attempt_error}"


def test_a_plain_function_is_a_job(app: Queuert) -> None:
    @app.task
    def resize(path: str, size: Size, *, crop: bool = False) -> Size:
        """Make it small."""
        assert isinstance(size, Size)
        return Size(size.width * 2, len(path) + crop)

    chain = resize.start("a.png", size=Size(4))
    assert chain.input == {"path": "a.png", "size": Size(4)}
    with app.worker():
        assert app.result(chain, timeout=10) == Size(8, 5)
    assert resize("a.png", Size(1), crop=True) == Size(2, 6)
    assert isinstance(resize, Task)
    assert (resize.name, resize.__doc__) == ("resize", "Make it small.")
    assert list(inspect.signature(resize).parameters) == ["path", "size", "crop"]


def test_arguments_are_checked_before_anything_is_written(app: Queuert) -> None:
    @app.task("resize", max_attempts=3, priority=7)
    def resize(path: str, size: Size) -> None: ...

    calls: list[Callable[[], object]] = [
        lambda: resize.start(5, Size(1)),  # type: ignore[arg-type]
        lambda: resize.start("a.png", {"width": "x"}),  # type: ignore[arg-type]
        lambda: app.start_chain(resize, {"path": "a.png"}),
        lambda: app.start_chain(resize, {"path": "a.png", "size": Size(1), "colour": "red"}),
        lambda: app.start_chain("resize", "a.png"),
        lambda: app.start_chain(resize),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(JobTypeValidationError) as caught:
            call()
        assert caught.value.code == "invalid_input"
    for wrong in (
        lambda: resize.start("a.png"),  # type: ignore[call-arg]
        lambda: resize.start("a.png", Size(1), colour="red"),  # type: ignore[call-arg]
        lambda: resize.using(path="a.png"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="resize"):
            wrong()
    assert not app.list_jobs().items
    job = found(app.get_job(resize.start("a.png", Size(1)).id))
    assert (job.max_attempts, job.priority) == (3, 7)


def test_options_of_the_chain_come_before_its_arguments(app: Queuert) -> None:
    @app.task
    def note(text: str) -> str:
        return text

    with suppress(ZeroDivisionError), app.transaction() as tx:
        note.using(conn=tx).start("gone")
        raise ZeroDivisionError
    with app.transaction() as tx:
        kept = note.using(conn=tx, after=3600, priority=3, dedup=Dedup("key")).start("kept")
    assert [chain.id for chain in app.list_chains()] == [kept.id]
    job = found(app.get_job(kept.id))
    assert (job.priority, job.deduplication_key) == (3, "key")
    assert (job.scheduled_at - job.created_at).total_seconds() == pytest.approx(3600, abs=5)


def test_defaults_are_those_of_the_process_that_runs_it(target: str) -> None:
    with Queuert(target) as app:
        app.migrate()

        @app.task
        def greet(name: str, greeting: str = "Hello") -> str:
            return f"{greeting}, {name}"

        chain = greet.start("Ann")
        assert found(app.get_job(chain.id)).input == {"name": "Ann"}
        types = JobTypes()

        @types.task("greet")
        def newer(name: str, greeting: str = "Good day", mark: str = "!") -> str:
            return f"{greeting}, {name}{mark}"

        app._types._all["greet"] = newer  # as a newer version of the program has it
        app.drain()
        assert found(app.get_chain(chain)).output == "Good day, Ann!"


def test_a_task_has_the_running_job(app: Queuert) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")
    assert queuert.current_job() is None

    @app.task(continues_with=["ship"])
    def charge(order: int) -> Continuation:
        job = found(queuert.current_job())
        with job.complete() as tx:
            tx.execute(f"INSERT INTO ledger VALUES ({order})")
            return job.continue_with(ship, {"order": order})

    @app.task(entry=False)
    def ship(order: int) -> dict[str, int]:
        return {"shipped": order, "attempt": found(queuert.current_job()).attempt}

    @app.job
    def plain(job: RunningJob[None]) -> bool:
        return queuert.current_job() is job

    chain, other = charge.start(7), plain.start()
    app.drain()
    assert queuert.current_job() is None
    assert app.result(chain, timeout=0) == {"shipped": 7, "attempt": 1}
    assert app.result(other, timeout=0) is True
    with app.transaction() as tx:
        assert tx.execute("SELECT n FROM ledger").fetchall() == [(7,)]


def test_a_task_that_forgets_its_continuation_fails(app: Queuert) -> None:
    @app.task(max_attempts=1)
    def charge() -> None:
        found(queuert.current_job()).continue_with("charge")

    chain = charge.start()
    app.drain()
    assert "return it" in failure(app, chain)


def test_a_bad_output_fails_the_attempt(app: Queuert) -> None:
    @app.task(max_attempts=1)
    def count() -> int:
        return "many"  # type: ignore[return-value]

    chain = count.start()
    app.drain()
    assert "expected a whole number" in failure(app, chain)


def test_a_task_without_parameters_needs_no_input(app: Queuert) -> None:
    @app.task
    def tick(times: int = 1) -> int:
        return times

    chains = [tick.start(), app.start_chain("tick"), *app.start_chains([NewChain("tick"), NewChain(tick, {"times": 2})])]
    app.drain()
    assert [found(app.get_chain(chain)).output for chain in chains] == [1, 1, 1, 2]


def positional(a: int, /) -> None: ...
def many(*values: int) -> None: ...
def named(**values: int) -> None: ...
def handler(job: RunningJob[int]) -> None: ...
async def asynchronous(a: int) -> None: ...
def generator(a: int) -> Any:
    yield a


def unfit(file: Exception) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (positional, "by position only"),
        (many, r"\*values"),
        (named, r"\*\*values"),
        (handler, "@app.job"),
        (asynchronous, "async"),
        (generator, "yield"),
        (unfit, "no JSON form"),
        (len, "by position only"),
        (lambda a: a, "no name"),
        (5, "must be a string"),
    ],
)
def test_what_cannot_be_a_task_is_refused_at_definition(function: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        JobTypes().task(function)


def test_a_handler_that_takes_something_else_than_the_job_is_pointed_to_task() -> None:
    types = JobTypes()

    def number(x: int) -> None: ...
    def listed(x: list[int]) -> None: ...
    def two(x: int, y: int) -> None: ...
    def anything(job: Any) -> None: ...
    def bare(job: RunningJob) -> None: ...  # type: ignore[type-arg]
    def either(job: queuert.Job) -> None: ...

    def perhaps(x: int | None) -> None: ...

    for function in (number, listed, two, perhaps):
        with pytest.raises(TypeError, match=r"@app\.task"):
            types.job(function)  # type: ignore[arg-type]
    for function in (anything, bare, either):
        types.job(function)  # type: ignore[type-var]


# Starting itself


def test_a_job_type_starts_itself(app: Queuert) -> None:
    @app.job
    def double(job: RunningJob[int]) -> int:
        return job.input * 2

    declared = app.declare("declared", input=Size)
    with app.transaction() as tx:
        chain = double.start(21, conn=tx, priority=5)
    assert declared.start(Size(1), after=60).input == Size(1)
    assert found(app.get_job(chain.id)).priority == 5
    app.drain()
    assert app.result(chain.id, timeout=0) == 42


def test_a_registry_starts_in_the_only_app_that_has_included_it() -> None:
    inner, outer = JobTypes(), JobTypes()

    @inner.task
    def work(n: int) -> int:
        return n

    @inner.job
    def other(job: RunningJob[None]) -> None: ...

    for start in (lambda: work.start(1), other.start, lambda: work.using(after=1).start(1)):
        with pytest.raises(QueuertError, match="No app has included"):
            start()
    outer.include(inner)
    with Queuert("sqlite:///:memory:") as one:
        one.migrate()
        one.include(outer)
        one.include(inner)  # by two ways, and still one app
        assert [chain.id for chain in one.list_chains()] == []
        assert one.get_chain(work.start(1)) is not None
        with Queuert("sqlite:///:memory:") as two:
            two.include(inner)
            with pytest.raises(QueuertError, match="2 apps have included"):
                work.start(1)
        del two
        assert one.get_chain(work.start(1)) is not None


# Waiting


def test_a_result_is_the_output_once_it_is_there(app: Queuert) -> None:
    @app.task(max_attempts=1)
    def divide(a: int, b: int) -> float:
        return a / b

    good, bad, cancelled = divide.start(6, 3), divide.start(1, 0), divide.using(after=60).start(1, 1)
    app.cancel_chain(cancelled)
    with app.worker():
        assert app.result(good, timeout=10) == 2.0
        with pytest.raises(queuert.ChainFailedError):
            app.result(bad, timeout=10)
    with pytest.raises(queuert.ChainCancelledError):
        app.result(cancelled.id)
    with pytest.raises(queuert.WaitTimeoutError):
        app.result(divide.start(1, 1), timeout=0)


def test_a_wait_that_is_in_vain_names_what_it_waits_for(app: Queuert) -> None:
    @app.task(max_attempts=1)
    def part(n: int) -> float:
        return 1 / n

    @app.task
    def join() -> None: ...

    failed, done, cancelled = part.start(0), part.start(1), part.using(after=60).start(2)
    inner = join.using(blockers=[failed, done]).start()
    outer = join.using(blockers=[inner, cancelled]).start()
    app.drain()
    with pytest.raises(queuert.WaitTimeoutError, match=f"still blocked.*{failed.id}, which failed"):
        app.wait_for(inner, timeout=0)
    app.cancel_chain(cancelled)
    with pytest.raises(queuert.WaitTimeoutError) as caught:
        app.result(outer, timeout=0)
    assert caught.value.waits_for == {failed.id: "failed", cancelled.id: "cancelled"}
    assert f"{cancelled.id}, which was cancelled" in str(caught.value)
    app.retry_chain(failed)
    with pytest.raises(queuert.WaitTimeoutError) as caught:
        app.wait_for(inner, timeout=0)
    assert caught.value.waits_for == {}

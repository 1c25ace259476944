"""Job types seen from an app: what goes in and out at every boundary, and the declared graph with its five codes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Optional
from uuid import UUID

import pytest
from support.refusals import refused

from queuert import (
    Continuation,
    Dedup,
    DuplicateJobTypeError,
    JobType,
    JobTypes,
    JobTypeValidationError,
    Queuert,
    RunningJob,
    Status,
    UnknownJobTypeError,
)

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    from typing_extensions import TypedDict


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Line:
    article: str
    price: Decimal
    size: Size = Size.SMALL


@dataclass
class Order:
    number: UUID
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    note: Optional[str] = None


class Receipt(TypedDict):
    order: UUID
    total: Decimal


ORDER = Order(
    UUID("7b1d2a52-9f7e-4a43-8a53-0f6e6f0b8f10"),
    datetime(2024, 5, 1, 12, 30, tzinfo=timezone.utc),
    [Line("shoe", Decimal("19.90"), Size.LARGE), Line("lace", Decimal("1.10"))],
)


def test_a_dataclass_goes_through_every_boundary_and_comes_back(app: Queuert) -> None:
    seen = []

    @app.job
    def first(job: RunningJob[Order]) -> Continuation:
        seen.append(job.input)
        return job.continue_with(second, job.input)

    @app.job(entry=False)
    def second(job: RunningJob[Order]) -> Receipt:
        seen.append(job.input)
        return {"order": job.input.number, "total": sum((line.price for line in job.input.lines), Decimal(0))}

    chain = app.start_chain(first, ORDER)
    assert chain.input == ORDER
    assert app.drain() == 2
    assert seen == [ORDER, ORDER]
    done = app.get_chain(chain.id)
    assert done is not None
    assert done.input == ORDER
    assert done.output == {"order": ORDER.number, "total": Decimal("21.00")}
    job = app.get_job(done.tail_id)
    assert job is not None
    assert (job.input, job.output) == (ORDER, done.output)


def test_a_pydantic_model_goes_through_every_boundary(app: Queuert) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Mail(pydantic.BaseModel):
        to: str
        copies: int = pydantic.Field(ge=0, default=0)

    @app.job(input=Mail, output=Mail)
    def send(job: RunningJob[Any]) -> Any:
        return Mail(to=job.input.to, copies=job.input.copies + 1)

    chain = app.start_chain(send, Mail(to="a@example.org"))
    assert chain.input == Mail(to="a@example.org")
    app.drain()
    assert app.wait_for(chain, timeout=5).output == Mail(to="a@example.org", copies=1)
    with refused("invalid_input"):
        app.start_chain(send, {"to": "a@example.org", "copies": -1})


def test_plain_json_needs_no_types(app: Queuert) -> None:
    @app.job("echo")
    def echo(job):  # type: ignore[no-untyped-def]  # as the test is named
        return job.input

    value = {"a": [1, 2.5, None, True, "ü€😀"], "b": {"c": {}}}
    chain = app.start_chain("echo", value)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == value


def test_a_record_whose_type_is_unknown_here_comes_back_as_json(app: Queuert, target: str) -> None:
    app.declare("order", input=Order)
    chain = app.start_chain("order", ORDER)
    raw = {
        "number": str(ORDER.number),
        "placed": "2024-05-01T12:30:00+00:00",
        "lines": [
            {"article": "shoe", "price": "19.90", "size": "l"},
            {"article": "lace", "price": "1.10", "size": "s"},
        ],
        "note": None,
    }
    if ":memory:" in target:
        app.types._all.clear()
        found = app.get_chain(chain.id)
    else:
        with Queuert(target) as other:
            found = other.get_chain(chain.id)
    assert found is not None
    assert found.input == raw


def test_a_record_that_no_longer_decodes_comes_back_as_json(app: Queuert, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has one app")
    app.declare("sized", input=dict)
    chain = app.start_chain("sized", {"size": "huge"})

    @dataclass
    class Sized:
        size: Size

    with Queuert(target) as newer:
        newer.declare("sized", input=Sized)
        found = newer.get_job(chain.id)
        assert found is not None
        assert found.input == {"size": "huge"}


def test_a_row_that_does_not_decode_fails_the_job_at_once(app: Queuert) -> None:
    @app.job(max_attempts=5)
    def grow(job: RunningJob[Line]) -> None:
        raise AssertionError("it must not be called")

    chain = app.start_chain(grow, Line("shoe", Decimal(1)))
    with app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET input = '{\"article\": 5}'")
    assert app.drain() == 1
    job = app.get_job(chain.id)
    assert job is not None
    assert job.status == "failed"
    assert job.error_code is not None
    assert job.error_code.startswith("INVALID_INPUT:")


def test_input_that_does_not_fit_is_refused_and_nothing_is_written(app: Queuert) -> None:
    app.declare("order", input=Order)
    for wrong in (None, 5, {"number": "x"}, Line("shoe", Decimal(1)), {**ORDER.__dict__, "surplus": 1}):
        with refused("invalid_input"):
            app.start_chain("order", wrong)
    assert app.list_chains().items == []


def test_output_that_does_not_fit_fails_the_attempt(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def count(job: RunningJob[None]) -> int:
        return "many"  # type: ignore[return-value]  # wrong on purpose

    chain = app.start_chain(count)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.output) == (Status.FAILED, None)
    assert "invalid_output" in str(job.error_code) or "does not fit" in str(job.last_attempt_error)


def test_continuing_with_input_that_does_not_fit_fails_the_attempt(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def start(job: RunningJob[None]) -> Continuation:
        return job.continue_with("next", {"wrong": 1})

    @app.job("next", entry=False)
    def following(job: RunningJob[Line]) -> None:
        raise AssertionError("it must not be called")

    chain = app.start_chain(start)
    app.drain()
    jobs = app.list_chain_jobs(chain.id).items
    assert [job.status for job in jobs] == [Status.FAILED]
    assert "does not fit" in str(jobs[0].last_attempt_error)


def test_a_chain_starts_only_with_an_entry_type(app: Queuert) -> None:
    app.declare("inner", entry=False)
    with refused("not_entry_point"):
        app.start_chain("inner")


def test_only_declared_continuations_are_accepted(app: Queuert) -> None:
    caught = []

    @app.job(continues_with=["ship"], max_attempts=1)
    def charge(job: RunningJob[None]) -> Continuation:
        try:
            return job.continue_with("refund")
        except JobTypeValidationError as error:
            caught.append(error.code)
        return job.continue_with(ship)

    @app.job(entry=False, continues_with=[], max_attempts=1)
    def ship(job: RunningJob[None]) -> Continuation:
        return job.continue_with("refund")

    app.declare("refund", entry=False)
    chain = app.start_chain(charge)
    assert app.drain() == 2
    assert caught == ["invalid_continuation"]
    tail = app.get_job(app.wait_for(chain, timeout=5, raise_on_failure=False).tail_id)
    assert tail is not None
    assert (tail.type_name, tail.status) == ("ship", Status.FAILED)


def test_an_undeclared_graph_is_not_checked(app: Queuert) -> None:
    @app.job
    def anything(job: RunningJob[None]) -> Continuation:
        return job.continue_with("other")

    @app.job
    def other(job: RunningJob[None]) -> str:
        return "done"

    chain = app.start_chain(anything)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == "done"


def test_declared_blockers_must_all_be_there_and_no_others(app: Queuert) -> None:
    for name in ("left", "right", "other"):
        app.declare(name)
    app.declare("join", blockers=["left", "right"])
    left, right, other = (app.start_chain(name) for name in ("left", "right", "other"))
    for wrong in (None, [], [left], [left, right, other], [left, other]):
        with refused("invalid_blockers"):
            app.start_chain("join", blockers=wrong)
    second_left = app.start_chain("left")
    chain = app.start_chain("join", blockers=[right, left, second_left])
    assert chain.status == "blocked"
    assert [blocker.id for blocker in app.get_job_blockers(chain.id)] == [right.id, left.id, second_left.id]


def test_declared_blockers_of_a_continuation_are_checked_too(app: Queuert) -> None:
    app.declare("left")

    @app.job(max_attempts=1)
    def first(job: RunningJob[bool]) -> Continuation:
        return job.continue_with("join", blockers=[app.start_chain("left")] if job.input else None)

    app.declare("join", entry=False, blockers=["left"])
    good, bad = app.start_chain(first, True), app.start_chain(first, False)
    app.drain(types=["first"])
    assert [c.status for c in (app.get_chain(good.id), app.get_chain(bad.id)) if c] == [Status.BLOCKED, Status.FAILED]


def test_an_unknown_type_is_named(app: Queuert) -> None:
    with pytest.raises(UnknownJobTypeError, match="'nobody'") as raised:
        app.start_chain("nobody")
    assert raised.value.type_name == "nobody"
    with pytest.raises(UnknownJobTypeError):
        app.start_chain(JobTypes().declare("elsewhere"))


def test_a_registry_built_elsewhere_is_included(app: Queuert) -> None:
    orders = JobTypes(priority=7, max_attempts=3)

    @orders.job
    def place(job: RunningJob[None]) -> str:
        return "placed"

    app.include(orders)
    chain = app.start_chain(place)
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.priority, job.max_attempts) == (7, 3)
    app.drain()
    assert app.wait_for(chain, timeout=5).output == "placed"
    with pytest.raises(DuplicateJobTypeError):
        app.declare("place")


def test_the_decorator_works_with_and_without_arguments(app: Queuert) -> None:
    @app.job
    def bare(job: RunningJob[int]) -> int:
        return 1

    @app.job()
    def empty(job: RunningJob[int]) -> int:
        return 2

    @app.job("named", priority=5)
    def function(job: RunningJob[int]) -> int:
        """Doubles."""
        return 3

    assert [each.name for each in (bare, empty, function)] == ["bare", "empty", "named"]
    assert all(isinstance(each, JobType) for each in (bare, empty, function))
    assert function(None) == 3  # type: ignore[arg-type]  # it does not look at its job
    assert function.__doc__ == "Doubles."


def test_a_declared_type_can_be_started_and_is_left_to_others(app: Queuert) -> None:
    job_type = app.declare("elsewhere", input=dict, priority=3, max_attempts=None)
    chain = app.start_chain(job_type, {"a": 1})
    assert app.drain() == 0
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.priority, job.max_attempts) == (Status.PENDING, 3, None)


class Names(str, Enum):
    WORK = "work"
    KEY = "key"


class Urgency(int, Enum):
    HIGH = 10


def test_members_of_enums_serve_as_names_keys_and_priorities(app: Queuert) -> None:
    @app.job(Names.WORK)
    def work(job: RunningJob[None]) -> str:
        return job.type_name

    chain = app.start_chain(Names.WORK)
    first = app.start_chain(Names.WORK, dedup=Dedup(Names.KEY), priority=Urgency.HIGH)
    assert app.start_chain(Names.WORK, dedup=Dedup("key")).id == first.id
    job = app.get_job(first.id)
    assert job is not None
    assert (job.type_name, job.priority, job.deduplication_key) == ("work", 10, "key")
    assert app.drain() == 2
    assert app.wait_for(chain).output == "work"

"""Registries, the decorator, the declared graph, and what is taken from annotations."""

from __future__ import annotations

import functools
import gc
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

import pytest

from queuert.errors import DuplicateJobTypeError, JobTypeValidationError, UnknownJobTypeError
from queuert.job_types import JobType, JobTypes, check_blockers, check_continuation, check_entry
from queuert.options import UNSET, Backoff, Lease
from queuert.running_job import Continuation, RunningJob

if TYPE_CHECKING:
    from elsewhere import Unknown  # type: ignore[import-not-found]  # there is none

pytestmark = pytest.mark.conformance


@dataclass
class Order:
    order_id: int


def ship(job: RunningJob[Order]) -> dict[str, int]:
    """Ship it."""
    return {"shipped": job.input.order_id}


def running(value: Any) -> Any:
    return types.SimpleNamespace(input=value)


@pytest.fixture
def registry() -> JobTypes:
    return JobTypes()


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(JobTypeValidationError) as raised:
        call()
    return raised.value.code


# The decorator


def test_a_bare_decorator_takes_the_name_of_the_function(registry: JobTypes) -> None:
    job_type = registry.job(ship)
    assert job_type.name == "ship"
    assert registry.get("ship") is job_type
    assert registry.get(job_type) is job_type
    assert job_type.handler is ship


def test_a_job_type_is_called_like_its_function(registry: JobTypes) -> None:
    job_type = registry.job("ship-order", entry=False)(ship)
    assert job_type(running(Order(3))) == {"shipped": 3}
    assert job_type.__doc__ == "Ship it."
    assert list(inspect.signature(job_type).parameters) == ["job"]
    assert repr(job_type) == "<JobType 'ship-order'>"


def test_the_name_may_be_a_keyword_or_left_out_of_a_call(registry: JobTypes) -> None:
    assert registry.job(name="a")(ship).name == "a"
    assert registry.job()(ship).name == "ship"
    assert registry.job(priority=3)(lambda_free).name == "lambda_free"


def lambda_free(job: RunningJob[None]) -> None: ...


def test_what_was_left_out_has_its_default(registry: JobTypes) -> None:
    job_type = registry.job(ship)
    assert (job_type.entry, job_type.continues_with, job_type.blockers) == (True, None, None)
    assert (job_type.max_attempts, job_type.priority, job_type.timeout) == (25, 0, None)
    assert job_type.middleware == ()
    assert job_type.options.max_attempts is UNSET


def test_a_declared_type_has_no_handler(registry: JobTypes) -> None:
    job_type = registry.declare("elsewhere", input=Order, continues_with=[], priority=5, max_attempts=None)
    assert job_type.handler is None
    assert (job_type.priority, job_type.max_attempts, job_type.continues_with) == (5, None, ())
    assert job_type.encode_input(Order(1)) == '{"order_id":1}'
    assert registry.job(ship).name == "ship"
    assert registry.names_with_handlers() == ("ship",)
    with pytest.raises(TypeError, match="without a handler"):
        job_type(running(Order(1)))


class Callable_:
    def __call__(self, job: RunningJob[Order]) -> int:
        return job.input.order_id

    def method(self, job: RunningJob[Order]) -> int:
        return job.input.order_id


def test_methods_partials_and_callable_objects_can_be_handlers(registry: JobTypes) -> None:
    def two(extra: int, job: RunningJob[Order]) -> int:
        return extra + job.input.order_id

    @functools.wraps(ship)
    def wrapped(*args: Any) -> Any:
        return ship(*args)

    handlers: list[Any] = [Callable_(), Callable_().method, functools.partial(two, 1), wrapped]
    for index, handler in enumerate(handlers):
        job_type = registry.job(f"h{index}")(handler)
        assert job_type(running(Order(1)))
        assert code_of(functools.partial(job_type.encode_input, "x")) == "invalid_input"


async def coroutine(job: RunningJob[Any]) -> None: ...


async def async_generator(job: RunningJob[Any]) -> Any:
    yield 1


def generator(job: RunningJob[Any]) -> Iterator[int]:
    yield 1


class AsyncCallable:
    async def __call__(self, job: RunningJob[Any]) -> None: ...


@pytest.mark.parametrize("handler", [coroutine, async_generator, AsyncCallable(), functools.partial(coroutine)])
def test_an_async_handler_is_refused(registry: JobTypes, handler: Any) -> None:
    with pytest.raises(TypeError, match="Handlers are synchronous"):
        registry.job("x")(handler)
    assert len(registry) == 0


def test_what_cannot_be_a_handler_is_refused(registry: JobTypes) -> None:
    with pytest.raises(TypeError, match="generator"):
        registry.job(generator)
    with pytest.raises(TypeError, match="takes one argument"):
        registry.job(lambda: None)  # type: ignore[misc,arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="takes one argument"):
        registry.job("x")(lambda a, b: None)  # type: ignore[arg-type,misc]  # wrong on purpose
    with pytest.raises(TypeError, match="must be a function"):
        registry.job("x")(5)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="must be a function"):
        registry.job(registry.job("x")(ship))
    with pytest.raises(ValueError, match="no name of its own"):
        registry.job(lambda job: None)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", ValueError),
        ("a" * 201, ValueError),
        ("a\x00", ValueError),
        ("a\nb", ValueError),
        ("\ud800", ValueError),
        (":a", ValueError),
        (5, TypeError),
        (b"a", TypeError),
    ],
)
def test_a_bad_name_is_refused(registry: JobTypes, name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        registry.job(name)
    with pytest.raises(error):
        registry.declare(name)
    with pytest.raises(error):
        registry.declare("x", continues_with=[name])


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": "3"},
        {"priority": 101},
        {"priority": None},
        {"priority": 1.5},
        {"timeout": 0},
        {"timeout": "1"},
        {"timeout": float("nan")},
        {"backoff": 5},
        {"backoff": Backoff},
        {"lease": 60},
        {"middleware": [object()]},
        {"middleware": object()},
        {"middleware": "ab"},
    ],
)
def test_bad_options_are_refused_where_they_are_given(registry: JobTypes, options: dict[str, Any]) -> None:
    for define in (
        lambda: registry.job(**options),
        lambda: registry.declare("x", **options),
        lambda: JobTypes(**options),
    ):
        with pytest.raises((ValueError, TypeError)):
            define()
    assert len(registry) == 0


def test_bad_options_of_the_graph_are_refused(registry: JobTypes) -> None:
    bad: list[dict[str, Any]] = [{"continues_with": "abc"}, {"blockers": 5}, {"blockers": [5]}, {"entry": 1}]
    bad.append({"continues_with": registry.declare("other")})
    for options in bad:
        with pytest.raises(TypeError):
            registry.declare("x", **options)
    with pytest.raises(TypeError):
        registry.declare("x", colour="red")  # type: ignore[call-overload]  # wrong on purpose


# Options: the type's, then the registry's, then the worker's, then the default


def linear(used: int) -> float:
    return used * 5.0


class Middleware:
    def around_attempt(self, job: Any, call: Callable[[], Any]) -> Any:
        return call()


class Bracket:
    def around_complete(self, job: Any, conn: Any) -> AbstractContextManager[None]:
        raise NotImplementedError


def test_a_type_wins_over_its_registry_and_both_over_the_worker() -> None:
    slow, fast, workers = Lease(100), Lease(5), Lease(7)
    outer, inner = Middleware(), Bracket()
    registry = JobTypes(
        max_attempts=3, priority=9, timeout=timedelta(minutes=1), lease=slow, backoff=linear, middleware=[outer]
    )
    inherits = registry.declare("inherits")
    sets = registry.declare(
        "sets", max_attempts=None, priority=0, timeout=None, lease=fast, backoff=Backoff(1), middleware=(inner,)
    )
    assert (inherits.max_attempts, inherits.priority, inherits.timeout) == (3, 9, 60.0)
    assert (sets.max_attempts, sets.priority, sets.timeout) == (None, 0, None)
    assert inherits.resolve_lease(workers) is slow
    assert sets.resolve_lease(workers) is fast
    assert inherits.resolve_backoff(Backoff(3)) is linear
    assert sets.resolve_backoff(Backoff(3)) == Backoff(1)
    assert inherits.middleware == (outer,)
    assert sets.middleware == (outer, inner)


def test_a_worker_wins_over_the_defaults(registry: JobTypes) -> None:
    job_type = registry.declare("plain", lease=None, backoff=None)
    assert job_type.resolve_lease(Lease(7)) == Lease(7)
    assert job_type.resolve_lease(None) == job_type.resolve_lease() == Lease()
    assert job_type.resolve_backoff(Backoff(3)) == Backoff(3)
    assert job_type.resolve_backoff() == Backoff()


# Registries


def test_a_name_owned_twice_is_an_error_and_changes_nothing(registry: JobTypes) -> None:
    first = registry.declare("ship")
    for define in (lambda: registry.job(ship), lambda: registry.declare("ship")):
        with pytest.raises(DuplicateJobTypeError) as raised:
            define()
        assert raised.value.type_name == "ship"
    assert list(registry) == [first]


def test_an_included_registry_stays_live() -> None:
    app, orders, parts = JobTypes(), JobTypes(), JobTypes()
    before = orders.declare("before")
    app.include(orders)
    orders.include(parts)
    after, deep = orders.declare("after"), parts.declare("deep")
    assert [app.get(name) for name in ("before", "after", "deep")] == [before, after, deep]
    assert set(app) == {before, after, deep}
    assert len(parts) == 1
    assert before in app
    assert "deep" in app
    assert "other" not in app


def test_including_twice_or_through_two_ways_is_fine() -> None:
    app, left, right, shared = JobTypes(), JobTypes(), JobTypes(), JobTypes()
    shared.declare("shared")
    left.include(shared)
    right.include(shared)
    for registry in (left, right, left):
        app.include(registry)
    shared.declare("later")
    assert {job_type.name for job_type in app} == {"shared", "later"}


def test_a_conflict_through_an_include_is_found_whichever_comes_last() -> None:
    app, orders = JobTypes(), JobTypes()
    app.declare("a")
    orders.declare("fine")
    orders.declare("a")
    with pytest.raises(DuplicateJobTypeError):
        app.include(orders)
    assert "fine" not in app
    parts = JobTypes()
    app.include(parts)
    with pytest.raises(DuplicateJobTypeError):
        parts.declare("a")
    assert len(parts) == 0


def test_a_registry_cannot_include_itself_or_something_else() -> None:
    a, b = JobTypes(), JobTypes()
    a.include(b)
    for inner, outer in ((a, b), (a, a)):
        with pytest.raises(ValueError, match="include itself"):
            outer.include(inner)
    with pytest.raises(TypeError):
        a.include([b])  # type: ignore[arg-type]  # wrong on purpose


def test_a_registry_does_not_keep_those_alive_that_include_it() -> None:
    shared = JobTypes()
    JobTypes().include(shared)
    gc.collect()
    assert len(shared._included_by) == 0


def test_an_included_type_keeps_the_options_of_its_own_registry() -> None:
    app, orders = JobTypes(priority=1), JobTypes(priority=2)
    orders.declare("a")
    app.include(orders)
    assert app.get("a").priority == 2


def test_an_unknown_name_is_an_error(registry: JobTypes) -> None:
    with pytest.raises(UnknownJobTypeError) as raised:
        registry.get("nothing")
    assert raised.value.type_name == "nothing"
    with pytest.raises(UnknownJobTypeError):
        registry.get(JobTypes().declare("nothing"))
    with pytest.raises(TypeError):
        registry.get(5)  # type: ignore[arg-type]  # wrong on purpose
    assert registry.find("nothing") is None


# The declared graph


def test_only_an_entry_type_starts_a_chain(registry: JobTypes) -> None:
    check_entry(registry.declare("first"))
    assert code_of(lambda: check_entry(registry.declare("second", entry=False))) == "not_entry_point"


def test_a_declared_continuation_is_checked(registry: JobTypes) -> None:
    target = registry.declare("target")
    free, bound, last = (
        registry.declare("free"),
        registry.declare("bound", continues_with=[target, "later", "later"]),
        registry.declare("last", continues_with=[]),
    )
    assert bound.continues_with == ("target", "later")
    check_continuation(free, "whatever")
    check_continuation(bound, "target")
    check_continuation(bound, "later")
    assert code_of(lambda: check_continuation(bound, "bound")) == "invalid_continuation"
    assert code_of(lambda: check_continuation(last, "target")) == "invalid_continuation"


def test_declared_blockers_are_all_there_and_no_others(registry: JobTypes) -> None:
    free = registry.declare("free")
    both = registry.declare("both", blockers=["a", registry.declare("b")])
    none = registry.declare("none", blockers=())
    check_blockers(free, ["x", "y"])
    check_blockers(both, ["b", "a", "a"])
    check_blockers(none, [])
    for job_type, names in ((both, ["a"]), (both, []), (both, ["a", "b", "c"]), (none, ["a"])):
        assert code_of(functools.partial(check_blockers, job_type, names)) == "invalid_blockers"


# Types from annotations


def test_input_and_output_are_checked_against_the_annotations(registry: JobTypes) -> None:
    job_type = registry.job(ship)
    assert job_type.encode_input(Order(1)) == '{"order_id":1}'
    assert job_type.decode_input('{"order_id":1}') == Order(1)
    assert job_type.encode_output({"a": 1}) == '{"a":1}'
    assert job_type.decode_output('{"a":1}') == {"a": 1}
    with pytest.raises(JobTypeValidationError) as raised:
        job_type.encode_input(Order("x"))  # type: ignore[arg-type]  # wrong on purpose
    assert (raised.value.code, raised.value.type_name) == ("invalid_input", "ship")
    assert "'ship': order_id: expected a whole number, got str" in str(raised.value)
    assert code_of(lambda: job_type.decode_input("{}")) == "invalid_input"
    assert code_of(lambda: job_type.decode_input("{")) == "invalid_input"
    assert code_of(lambda: job_type.encode_output({"a": "x"})) == "invalid_output"
    assert code_of(lambda: job_type.decode_output("5")) == "invalid_output"


def test_a_handler_without_annotations_takes_and_gives_any_json(registry: JobTypes) -> None:
    @registry.job
    def untyped(job):  # type: ignore[no-untyped-def]  # as the test is named
        return job.input

    @registry.job
    def half(job: RunningJob) -> Any:  # type: ignore[type-arg]  # and half of one
        return job.input

    for job_type in (untyped, half):
        assert job_type.encode_input({"a": [1]}) == '{"a":[1]}'
        assert job_type.encode_output(None) == "null"
        assert code_of(functools.partial(job_type.encode_input, {1})) == "invalid_input"
        assert code_of(functools.partial(job_type.encode_output, b"")) == "invalid_output"


def returns(annotation: Any) -> Any:
    def handler(job: Any) -> Any: ...

    handler.__annotations__ = {"job": RunningJob[None], "return": annotation}
    return handler


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (None, [None], [1, {}]),
        (int, [1], ["x", None]),
        (Union[Continuation, dict[str, int]], [{"a": 1}], [None, {"a": "x"}]),
        (Optional[Continuation], [None], [1]),
        (Union[Continuation, int, None], [1, None], ["x"]),
        (Union[int, NoReturn], [1], ["x"]),  # noqa: RUF020 - the same as int, and allowed
        (Continuation, [1, None, "x"], [{1}]),
        (NoReturn, [1], [{1}]),
        ("Continuation | list[Order]", [[Order(1)]], [Order(1)]),
    ],
)
def test_continuations_are_not_outputs(registry: JobTypes, annotation: Any, good: list[Any], bad: list[Any]) -> None:
    job_type = registry.job(returns(annotation))
    for value in good:
        assert job_type.decode_output(job_type.encode_output(value)) == value
    for value in bad:
        assert code_of(functools.partial(job_type.encode_output, value)) == "invalid_output"
    assert job_type.encode_input(None) == "null"
    assert code_of(lambda: job_type.encode_input(1)) == "invalid_input"


def test_given_types_win_over_annotations(registry: JobTypes) -> None:
    def unresolvable(job: RunningJob[Unknown]) -> Unknown: ...

    job_type: JobType[Any, Any] = registry.job("x", input=list[int], output=Optional[Order])(unresolvable)
    assert job_type.encode_input([1]) == "[1]"
    assert code_of(lambda: job_type.encode_input(["a"])) == "invalid_input"
    assert job_type.decode_output('{"order_id":2}') == Order(2)


def test_an_annotation_that_cannot_be_resolved_is_an_error_with_both_names(registry: JobTypes) -> None:
    def lost(job: RunningJob[Unknown]) -> None: ...

    with pytest.raises(TypeError, match=r"lost.*'Unknown'"):
        registry.job(lost)
    assert len(registry) == 0


def test_types_may_be_defined_beside_the_handler(registry: JobTypes) -> None:
    @dataclass
    class Line:
        count: int

    @dataclass
    class Cart:
        lines: list[Line]

    def inner() -> JobType[Cart, Line]:
        @registry.job
        def total(job: RunningJob[Cart]) -> Line:
            return job.input.lines[0]

        return total

    job_type = inner()
    assert job_type.decode_input(job_type.encode_input(Cart([Line(1)]))) == Cart([Line(1)])
    assert job_type.decode_output('{"count":2}') == Line(2)


def test_a_local_variable_does_not_stand_for_a_type_of_the_module(registry: JobTypes) -> None:
    def define() -> JobType[Any, Any]:
        return registry.job(ship)

    Order = 5  # noqa: F841 - it is found by its name, or should not be
    assert code_of(lambda: define().encode_input("x")) == "invalid_input"


def test_our_own_names_may_be_imported_for_the_type_checker_only(registry: JobTypes) -> None:
    namespace: dict[str, Any] = {"__name__": "elsewhere"}
    exec(
        "from __future__ import annotations\ndef go(job: RunningJob[int]) -> Continuation | str: ...",
        namespace,
    )
    job_type = registry.job(namespace["go"])
    assert code_of(lambda: job_type.encode_input("x")) == "invalid_input"
    assert code_of(lambda: job_type.encode_output(1)) == "invalid_output"


def test_a_type_without_a_json_form_is_refused_at_registration(registry: JobTypes) -> None:
    def sets(job: RunningJob[set[int]]) -> None: ...

    with pytest.raises(TypeError, match=r"input type of 'sets': a set has no JSON form"):
        registry.job(sets)
    with pytest.raises(TypeError, match=r"output type of 'x'"):
        registry.declare("x", output=bytes)

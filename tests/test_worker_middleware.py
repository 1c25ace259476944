"""Middleware: around attempts, prepare and complete; on the worker, the registry and the type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queuert import Backoff, JobTypes, Queuert, RunningJob


class Layer:
    """Writes down when it is entered and left."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def around_attempt(self, job: RunningJob[Any], call: Callable[[], Any]) -> Any:
        self.log.append(f"{self.name} in")
        job.context.setdefault("path", []).append(self.name)
        try:
            return call()
        finally:
            self.log.append(f"{self.name} out")

    @contextmanager
    def around_prepare(self, job: RunningJob[Any], conn: Any) -> Iterator[None]:
        self.log.append(f"{self.name} prepare in")
        yield
        self.log.append(f"{self.name} prepare out")

    @contextmanager
    def around_complete(self, job: RunningJob[Any], conn: Any) -> Iterator[None]:
        self.log.append(f"{self.name} complete in")
        yield
        self.log.append(f"{self.name} complete out")


def test_the_worker_is_outermost_then_the_registry_then_the_type(app: Queuert) -> None:
    log: list[str] = []
    names = ("worker 1", "worker 2", "registry 1", "registry 2", "type 1", "type 2")
    layers = [Layer(name, log) for name in names]
    registry = JobTypes(middleware=layers[2:4])

    @registry.job("job", middleware=layers[4:])
    def handler(job: RunningJob[None]) -> list[str]:
        log.append("handler")
        return list(job.context["path"])

    app.include(registry)
    with app.worker(middleware=layers[:2]):
        chain = app.wait_for(app.start_chain("job"), timeout=10)
    assert chain.output == list(names)
    expected = [f"{name} in" for name in names] + ["handler"] + [f"{name} out" for name in reversed(names)]
    assert log == expected


def test_the_three_places(app: Queuert) -> None:
    log: list[str] = []

    @app.job("job", middleware=[Layer("inner", log)])
    def handler(job: RunningJob[None]) -> None:
        with job.prepare():
            log.append("preparing")
        with job.complete():
            log.append("completing")
        log.append("after")

    with app.worker(middleware=[Layer("outer", log)]):
        app.wait_for(app.start_chain("job"), timeout=10)
    assert log == [
        "outer in",
        "inner in",
        *("outer prepare in", "inner prepare in", "preparing", "inner prepare out", "outer prepare out"),
        *("outer complete in", "inner complete in", "completing", "inner complete out", "outer complete out"),
        "after",
        "inner out",
        "outer out",
    ]


def test_middleware_writes_in_the_transaction(app: Queuert) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE ledger (n integer)")

    class Audit:
        @contextmanager
        def around_complete(self, job: RunningJob[Any], conn: Any) -> Iterator[None]:
            conn.execute("INSERT INTO ledger VALUES (1)")
            yield
            conn.execute("INSERT INTO ledger VALUES (2)")

    @app.job("job", middleware=[Audit()], backoff=Backoff(initial=0), max_attempts=2)
    def handler(job: RunningJob[None]) -> None:
        with job.complete():
            pass
        if job.attempt == 1:
            raise RuntimeError("after the block: the middleware's writes go too")

    with app.worker():
        app.wait_for(app.start_chain("job"), timeout=10)
    with app.transaction() as tx:
        assert sorted(row[0] for row in tx.execute("SELECT n FROM ledger").fetchall()) == [1, 2]


def test_exceptions_pass_through_and_can_be_changed(app: Queuert) -> None:
    seen: list[str] = []

    class Translate:
        def around_attempt(self, job: RunningJob[Any], call: Callable[[], Any]) -> Any:
            try:
                return call()
            except ZeroDivisionError as error:
                seen.append("zero")
                raise LookupError("translated") from error

    class Watch:
        def around_attempt(self, job: RunningJob[Any], call: Callable[[], Any]) -> Any:
            try:
                return call()
            except LookupError:
                seen.append("lookup")
                raise

    @app.job("job", middleware=[Watch(), Translate()], max_attempts=1)
    def handler(job: RunningJob[None]) -> None:
        raise ZeroDivisionError

    with app.worker():
        chain = app.wait_for(app.start_chain("job"), timeout=10, raise_on_failure=False)
    assert chain.error_code == "INTERNAL:LookupError"
    assert seen == ["zero", "lookup"]


@pytest.mark.parametrize("method", ["around_attempt", "around_prepare", "around_complete"])
def test_a_middleware_that_raises_fails_the_attempt(app: Queuert, method: str) -> None:
    class Broken:
        pass

    def broken(self: Any, job: RunningJob[Any], other: Any) -> Any:
        raise PermissionError("no")

    setattr(Broken, method, broken)

    @app.job("job", max_attempts=1)
    def handler(job: RunningJob[None]) -> None:
        with job.prepare():
            pass
        with job.complete():
            pass

    with app.worker(middleware=[Broken()]):
        chain = app.wait_for(app.start_chain("job"), timeout=10, raise_on_failure=False)
    assert (chain.status, chain.error_code) == ("failed", "INTERNAL:PermissionError")


def test_a_middleware_can_answer_in_the_handlers_place(app: Queuert) -> None:
    class Cached:
        def around_attempt(self, job: RunningJob[Any], call: Callable[[], Any]) -> Any:
            return "cached"

    @app.job("job", middleware=[Cached()])
    def handler(job: RunningJob[None]) -> str:
        raise AssertionError("not called")

    with app.worker():
        assert app.wait_for(app.start_chain("job"), timeout=10).output == "cached"


@pytest.mark.parametrize("middleware", [[object()], "text", [Layer], 5])
def test_what_is_not_middleware_is_refused(app: Queuert, middleware: Any) -> None:
    with pytest.raises(TypeError):
        app.worker(middleware=middleware)

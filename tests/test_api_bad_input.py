"""What bad input gets: a clear error before anything is written, and a transaction that can go on."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.clocks import is_postgres
from support.refusals import refused

from queuert import (
    Backoff,
    Dedup,
    DuplicateJobIdError,
    InvalidJobIdError,
    JobTypeValidationError,
    Lease,
    NewChain,
    Queuert,
    QueuertError,
    Retention,
    RunningJob,
    Status,
    UnknownJobTypeError,
)

CHOSEN = "0190a0b0-0000-7000-8000-000000000001"


def cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> Any:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


NOT_JSON: dict[str, Callable[[], Any]] = {
    "nan": lambda: math.nan,
    "infinity": lambda: [1, {"a": -math.inf}],
    "set": lambda: {1, 2},
    "bytes": lambda: b"abc",
    "cycle": cycle,
    "deep": deep,
    "lone surrogate": lambda: "a\ud800b",
    "lone surrogate in a key": lambda: {"\udfff": 1},
    "complex": lambda: 1j,
    "object": object,
    "function": lambda: len,
    "key that is no string": lambda: {(1, 2): 3},
    "huge number": lambda: 10**5_000,
    "datetime": lambda: datetime(2024, 1, 1),
    "generator": lambda: (n for n in range(3)),
}


def test_what_is_not_json_is_refused_as_input_also_for_untyped_jobs(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work", "usable")
    with app.transaction() as tx:
        for make in NOT_JSON.values():
            with refused("invalid_input"):
                app.start_chain("work", make(), conn=tx)
            with refused("invalid_input"):
                app.start_chains([NewChain("work", 1), NewChain("work", {"a": make()})], conn=tx)
            with app.complete_chain(chain.id, conn=tx) as tail:
                with refused("invalid_input"):
                    tail.continue_with("work", make())
                with refused("invalid_output"):
                    tail.finish(make())
        kept = app.start_chain("work", "kept", conn=tx)
    assert {c.id: c.status for c in app.list_chains()} == {chain.id: Status.PENDING, kept.id: Status.PENDING}


def test_a_handler_that_returns_what_is_not_json_fails_its_attempt(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def work(job: RunningJob[str]) -> Any:
        return NOT_JSON[job.input]()

    chains = [app.start_chain(work, kind) for kind in NOT_JSON]
    assert app.drain() == len(chains)
    for chain in chains:
        job = app.get_job(chain.id)
        assert job is not None
        assert (job.status, job.output) == (Status.FAILED, None), job.input


def test_a_nul_is_refused_on_postgres_and_kept_on_sqlite(app: Queuert) -> None:
    app.declare("work")
    values: list[Any] = ["a\x00b", {"a\x00": 1}, ["deep", {"x": ["\x00"]}]]
    for value in values:
        if is_postgres(app):
            with app.transaction() as tx:
                with pytest.raises(JobTypeValidationError, match="NUL") as raised:
                    app.start_chain("work", value, conn=tx)
                assert raised.value.code == "invalid_input"
                chain = app.start_chain("work", "usable", conn=tx)
            with app.complete_chain(chain.id) as tail, refused("invalid_output"):
                tail.finish(value)
        else:
            chain = app.start_chain("work", value)
            found = app.get_chain(chain.id)
            assert found is not None
            assert found.input == value


def test_text_that_only_looks_like_a_nul_is_fine(app: Queuert) -> None:
    app.declare("work")
    for value in (r"\u0000", r"a\\u0000", "\\" * 7 + "u0000"):
        found = app.get_chain(app.start_chain("work", value).id)
        assert found is not None
        assert found.input == value


def test_a_payload_over_the_limit_is_refused_with_its_size(target: str) -> None:
    with Queuert(target, max_payload_bytes=100) as app:
        app.migrate()
        app.declare("work")
        fits = "ü" * 49  # two bytes each, and the quotes
        chain = app.start_chain("work", fits)
        with pytest.raises(JobTypeValidationError, match=r"102 bytes.*max_payload_bytes.*reference") as raised:
            app.start_chain("work", fits + "ü")
        assert raised.value.code == "invalid_input"
        with app.complete_chain(chain.id) as tail:
            with refused("invalid_output"):
                tail.finish(fits + "ü")
            tail.finish(fits)
        assert [c.output for c in app.list_chains()] == [fits]


def test_the_default_limit_is_a_mebibyte(app: Queuert) -> None:
    app.declare("work")
    fits = "x" * (1_048_576 - 2)
    with refused("invalid_input"):
        app.start_chain("work", fits + "x")
    found = app.get_chain(app.start_chain("work", fits).id)
    assert found is not None
    assert found.input == fits


@pytest.mark.parametrize("spelling", [str.upper, lambda s: f"{{{s}}}"])
def test_a_taken_id_is_an_error_and_the_transaction_stays_usable(app: Queuert, spelling: Callable[[str], str]) -> None:
    app.declare("work")
    blocker = app.start_chain("work", "blocker")
    first = app.start_chain("work", "first", id=spelling(CHOSEN))
    assert first.id == CHOSEN
    batches: list[list[NewChain]] = [
        [NewChain("work", "again", id=spelling(CHOSEN))],
        [NewChain("work", "new"), NewChain("work", "again", id=spelling(CHOSEN)), NewChain("work", "new")],
        [NewChain("work", "again", id=spelling(CHOSEN), dedup=Dedup("k"))],
        [NewChain("work", "again", id=spelling(CHOSEN), blockers=[blocker])],
    ]
    with app.transaction() as tx:
        before = app.start_chain("work", "before", conn=tx)
        for batch in batches:
            with pytest.raises(DuplicateJobIdError) as raised:
                app.start_chains(batch, conn=tx)
            assert raised.value.job_id == CHOSEN
        with pytest.raises(DuplicateJobIdError):
            app.start_chain("work", "again", id=spelling(CHOSEN), conn=tx)
        after = app.start_chain("work", "after", conn=tx)
    with pytest.raises(DuplicateJobIdError):
        app.start_chain("work", "again", id=spelling(CHOSEN))
    found = {c.id: c.input for c in app.list_chains()}
    assert found == {blocker.id: "blocker", CHOSEN: "first", before.id: "before", after.id: "after"}


def test_the_id_of_a_continuation_is_taken_too(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work")
    with app.complete_chain(chain.id) as tail:
        tail.continue_with("work", id=CHOSEN)
    with pytest.raises(DuplicateJobIdError):
        app.start_chain("work", id=CHOSEN)


def test_a_taken_id_of_an_open_transaction_is_waited_for(app: Queuert) -> None:
    app.declare("work")
    errors: list[Exception] = []

    def start() -> None:
        try:
            app.start_chain("work", id=CHOSEN)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    with app.transaction() as tx:
        app.start_chain("work", id=CHOSEN, conn=tx)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(10)
    assert [type(error) for error in errors] == [DuplicateJobIdError]


def test_an_unknown_type_is_refused_everywhere(app: Queuert) -> None:
    app.declare("work")
    chain = app.start_chain("work")
    with pytest.raises(UnknownJobTypeError):
        app.start_chain("nobody")
    with pytest.raises(UnknownJobTypeError):
        app.start_chains([NewChain("work"), NewChain("nobody")])
    with app.complete_chain(chain.id) as tail, pytest.raises(UnknownJobTypeError):
        tail.continue_with("nobody")
    for wrong in (None, 5, b"work", ["work"]):
        with pytest.raises(TypeError):
            app.start_chain(wrong)  # type: ignore[call-overload]  # wrong on purpose
    assert len(app.list_chains().items) == 1


def test_errors_are_one_family_and_say_what_to_do(app: Queuert) -> None:
    app.declare("work", input=int)
    for call in (
        lambda: app.start_chain("work", "x"),
        lambda: app.start_chain("nobody"),
        lambda: app.get_job("nonsense"),
        lambda: app.attempts(CHOSEN),
        lambda: app.cancel_chain(CHOSEN),
    ):
        with pytest.raises(QueuertError) as raised:
            call()
        assert len(str(raised.value)) > 20
        assert str(raised.value).endswith(".")


def refuse(error: type[Exception], make: Callable[[], object]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": ""}, ValueError),
        ({"key": 5}, TypeError),
        ({"key": "a\x00b"}, ValueError),
        ({"key": "k" * 1_001}, ValueError),
        ({"key": "k\ud800"}, ValueError),
        ({"key": "k", "scope": "all"}, ValueError),
        ({"key": "k", "scope": "any"}, ValueError),
        ({"key": "k", "window": 0}, ValueError),
        ({"key": "k", "window": -1}, ValueError),
        ({"key": "k", "window": math.nan}, ValueError),
        ({"key": "k", "window": "1"}, TypeError),
        ({"key": "k", "exclude_chain_ids": "abc"}, TypeError),
        ({"key": "k", "exclude_chain_ids": 5}, TypeError),
    ],
)
def test_a_bad_dedup_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    refuse(error, lambda: Dedup(**options))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Lease(0), ValueError),
        (lambda: Lease(-1), ValueError),
        (lambda: Lease("60"), TypeError),
        (lambda: Lease(10, renew_every=10), ValueError),
        (lambda: Lease(10, renew_every=0), ValueError),
        (lambda: Backoff(-1), ValueError),
        (lambda: Backoff(multiplier=0.5), ValueError),
        (lambda: Backoff(multiplier=math.inf), ValueError),
        (lambda: Backoff(multiplier="2"), TypeError),
        (lambda: Backoff(jitter=-0.1), ValueError),
        (lambda: Backoff(jitter=1.1), ValueError),
        (lambda: Backoff(jitter=None), TypeError),
        (lambda: Backoff(maximum=-1), ValueError),
        (lambda: Retention(completed=-1), ValueError),
        (lambda: Retention(failed="30 days"), TypeError),
        (lambda: Retention(cancelled=math.nan), ValueError),
    ],
)
def test_bad_options_are_refused_where_they_are_made(make: Callable[[], object], error: type[Exception]) -> None:
    refuse(error, make)


def test_backoff_is_exact_without_jitter_and_bounded_with_it() -> None:
    assert [Backoff(jitter=0)(used) for used in (1, 2, 3, 5, 6, 7, 10_000)] == [10, 20, 40, 160, 300, 300, 300]
    waits = [Backoff()(2) for _ in range(200)]
    assert all(18 <= wait <= 22 for wait in waits)
    assert len(set(waits)) > 100
    assert all(Backoff()(20) <= 300 for _ in range(100))
    assert Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=3), jitter=0)(9) == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"history": "none"}, ValueError),
        ({"max_payload_bytes": 0}, ValueError),
        ({"max_payload_bytes": 1.5}, ValueError),
        ({"retention": 30}, TypeError),
        ({"notify": "loudly"}, ValueError),
        ({"synchronous": "sometimes"}, ValueError),
        ({"busy_timeout": -1}, ValueError),
        ({"busy_timeout": "10"}, TypeError),
        ({"table_prefix": "a b"}, ValueError),
        ({"table_prefix": 'x"; DROP TABLE y; --'}, ValueError),
        ({"table_prefix": 5}, ValueError),
        ({"schema": "a-b"}, ValueError),
        ({"id_type": "uuid; DROP TABLE x"}, ValueError),
        ({"id_type": "bigint"}, ValueError),
        ({"generate_id": 5}, TypeError),
        ({"validate_id": "x"}, TypeError),
    ],
)
def test_bad_options_of_an_app_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises((error, QueuertError)):
        Queuert("sqlite:///:memory:", **options)


@pytest.mark.parametrize("target", ["", "mysql://localhost/x", 5, None, b"sqlite:///x.db", "just text"])
def test_a_bad_target_is_refused(target: Any) -> None:
    with pytest.raises((ValueError, TypeError, QueuertError)):
        Queuert(target)


def test_a_generated_id_that_is_malformed_is_refused(target: str) -> None:
    with Queuert(target, generate_id=lambda: "nonsense") as app:
        app.migrate()
        app.declare("work")
        with pytest.raises(InvalidJobIdError):
            app.start_chain("work")
        assert app.list_chains().items == []


def test_an_unknown_type_comes_with_the_one_that_was_probably_meant(app: Queuert) -> None:
    for name in ("charge-card", "ship-order"):
        app.declare(name)
    with pytest.raises(UnknownJobTypeError, match=r"Did you mean 'charge-card'\?"):
        app.start_chain("Charge_crad")
    with pytest.raises(UnknownJobTypeError) as caught:
        app.start_chain("something else")
    assert "Did you mean" not in str(caught.value)

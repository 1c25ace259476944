"""Codes of errors: the exception's own, the application's mapping, the library's."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
import sqlalchemy

from queuert import Queuert, RunningJob
from queuert.error_codes import MAX_CODE, error_code


class DeclinedError(Exception):
    pass


class HardDeclinedError(DeclinedError):
    pass


class NamedError(DeclinedError):
    error_code = "BANK:OWN"


class BrokenNameError(Exception):
    @property
    def error_code(self) -> str:
        raise RuntimeError("no code today")


CODES: dict[type[BaseException], str] = {DeclinedError: "BANK:DECLINED", KeyError: "INPUT:MISSING_KEY"}


def by_function(error: BaseException) -> str | None:
    return f"BANK:{error.args[0]}" if isinstance(error, DeclinedError) else None


@pytest.mark.parametrize(
    ("error", "mapped", "called"),
    [
        (DeclinedError("A"), "BANK:DECLINED", "BANK:A"),
        (HardDeclinedError("B"), "BANK:DECLINED", "BANK:B"),
        (NamedError("C"), "BANK:OWN", "BANK:OWN"),
        (KeyError("x"), "INPUT:MISSING_KEY", "INTERNAL:KeyError"),
        (TimeoutError(), "TIMEOUT:TimeoutError", "TIMEOUT:TimeoutError"),
        (BrokenNameError(), "INTERNAL:BrokenNameError", "INTERNAL:BrokenNameError"),
    ],
)
def test_the_exception_comes_first_then_the_mapping_then_the_default(error: Exception, mapped: str, called: str) -> None:
    assert error_code(error, CODES) == mapped
    assert error_code(error, by_function) == called


def test_the_nearest_class_decides() -> None:
    codes: dict[type[BaseException], str] = {Exception: "ANY:THING", DeclinedError: "BANK:DECLINED"}
    assert error_code(HardDeclinedError(), codes) == "BANK:DECLINED"
    assert error_code(ValueError(), codes) == "ANY:THING"


class OwnWrapper(sqlalchemy.exc.OperationalError):
    error_code = "SHOP:DATABASE"


def wrapped(error: Exception, wrapper: Any = sqlalchemy.exc.OperationalError) -> Exception:
    found: Exception = wrapper("SELECT 1", {}, error)
    return found


LOCKED = sqlite3.OperationalError("database is locked")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (wrapped(LOCKED), "DEPENDENCY:DB_LOCKED"),
        (wrapped(psycopg.errors.LockNotAvailable()), "DEPENDENCY:DB_LOCKED"),
        (wrapped(ConnectionResetError()), "DEPENDENCY:ConnectionResetError"),
        (wrapped(sqlite3.OperationalError("no such table")), "INTERNAL:OperationalError"),
        (wrapped(sqlite3.IntegrityError(), sqlalchemy.exc.IntegrityError), "INTERNAL:IntegrityError"),
        (wrapped(LOCKED, OwnWrapper), "SHOP:DATABASE"),
        (sqlalchemy.exc.InvalidRequestError(), "INTERNAL:InvalidRequestError"),
    ],
)
def test_the_drivers_error_inside_a_frameworks_decides_what_it_alone_knows(error: Exception, code: str) -> None:
    assert error_code(error) == code


def test_a_mapping_of_the_drivers_errors_holds_for_the_frameworks() -> None:
    codes: dict[type[BaseException], str] = {sqlite3.OperationalError: "DB:SQLITE"}
    assert error_code(wrapped(LOCKED), codes) == "DB:SQLITE"
    assert error_code(wrapped(LOCKED), {**codes, sqlalchemy.exc.DBAPIError: "DB:ANY"}) == "DB:ANY"


def test_an_exception_of_the_users_own_is_not_looked_into() -> None:
    error = DeclinedError()
    error.__cause__ = LOCKED
    assert error_code(error) == "INTERNAL:DeclinedError"


@pytest.mark.parametrize("useless", [lambda error: None, lambda error: 5, lambda error: "", lambda error: 1 / 0])
def test_a_function_that_gives_no_code_leaves_the_default(useless: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert error_code(MemoryError(), useless) == "RESOURCE:OUT_OF_MEMORY"


def test_a_code_is_made_to_fit() -> None:
    code = error_code(ValueError(), lambda error: "X:\x00" + "y" * 1000)
    assert len(code) == MAX_CODE
    assert "\x00" not in code


@pytest.mark.parametrize("codes", [CODES, by_function])
def test_attempts_and_statistics_carry_the_code(target: str, codes: Any) -> None:
    with Queuert(target, error_codes=codes) as app:
        app.migrate()

        @app.job(max_attempts=1)
        def charge(job: RunningJob[None]) -> None:
            raise HardDeclinedError("DECLINED")

        chain = app.start_chain(charge)
        app.drain()
        [attempt] = app.attempts(chain.id)
        assert attempt.error_code == "BANK:DECLINED"
        assert app.stats().error_codes == [("BANK:DECLINED", 1)]


def test_a_function_that_raises_does_not_harm_the_worker(target: str, caplog: pytest.LogCaptureFixture) -> None:
    with Queuert(target, error_codes=lambda error: 1 / 0) as app:  # type: ignore[arg-type]  # it returns nothing
        app.migrate()

        @app.job(max_attempts=1)
        def broken(job: RunningJob[None]) -> None:
            raise ValueError

        with app.worker():
            chain = app.wait_for(app.start_chain(broken), timeout=10, raise_on_failure=False)
        assert app.attempts(chain.id)[0].error_code == "INTERNAL:ValueError"
        assert "error_codes raised for a ValueError" in caplog.text


@pytest.mark.parametrize(
    "codes", [5, "X:Y", [DeclinedError], {"DeclinedError": "X:Y"}, {DeclinedError: None}, {DeclinedError: " "}]
)
def test_anything_else_is_refused(codes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="error_codes"):
        Queuert("sqlite:///:memory:", error_codes=codes)

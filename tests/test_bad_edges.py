"""Input that a driver would refuse, or take for something else: a clear error before anything is sent, and no secret told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from queuert import InvalidJobIdError, Queuert, UnsupportedDatabaseError
from queuert.cli.entry import main
from queuert.cli.messages import hide_secrets
from queuert.errors import DatabaseUnavailableError

SECRET = "s3cr3t-pass"
UNSTORABLE = ["a\0b", "a\ud800b"]

MALFORMED = [
    f"'postgresql://u:{SECRET}@h/db'",
    f'"postgresql://u:{SECRET}@h/db"',
    f" postgresql://u:{SECRET}@h/db",
    f"u:{SECRET}@h/db",
    f"postgresql//u:{SECRET}@h/db",
    f"postgresql:/u:{SECRET}@h/db",
    f"host=h passwd={SECRET} dbname=d",
    f"host=h password=a {SECRET} dbname=d",
    f"postgresql://u:{SECRET}@[h/db",
    f"postgresql://h:{SECRET}/db?x",
    f"mysql://u:{SECRET}@h/db",
    f"sqlite:///shop.db?key={SECRET}",
    f"sqlite:{SECRET}",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_what_could_not_be_read_as_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(UnsupportedDatabaseError) as refused:
        Queuert(url)
    assert SECRET not in f"{refused.value} {refused.value!r} {refused.value.__cause__}"


@pytest.mark.parametrize("url", MALFORMED)
def test_nor_by_the_command_line(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["stats", "--url", url]) != 0
    monkeypatch.setenv("QUEUERT_URL", url)
    assert main(["stats"]) != 0
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err


def test_a_url_that_was_given_as_an_argument_by_mistake_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", f"u:{SECRET}@h/db", f"host=h passwd={SECRET}"]) != 0
    assert SECRET not in capsys.readouterr().err


def test_a_raw_at_sign_in_a_password_is_hidden_when_the_server_is_not_there() -> None:
    for url in (f"postgresql://u:p@{SECRET}@127.0.0.1:1/db", f"postgresql://u:p@{SECRET}:x@h/db"):
        with Queuert(url) as app:
            with pytest.raises(DatabaseUnavailableError) as refused:
                app.stats()
            assert SECRET not in str(refused.value)


def test_the_command_line_reads_the_url_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "url").write_text(f"{url}\n")
    assert main(["migrate", "--url-file", str(tmp_path / "url")]) == 0
    assert main(["stats", "--url-file", str(tmp_path / "url"), "--json"]) == 0
    assert main(["stats", "--url-file", str(tmp_path / "nothing")]) == 2
    (tmp_path / "empty").write_text("\n")
    assert main(["stats", "--url-file", str(tmp_path / "empty")]) == 2
    (tmp_path / "bad").write_text(f"u:{SECRET}@h/db")
    assert main(["stats", "--url-file", str(tmp_path / "bad")]) == 2
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a" * 100_000, "a." * 50_000, "_" * 100_000, "a:" * 50_000, "a=" * 50_000, "'" * 100_000])
def test_messages_of_any_length_are_cleaned_of_secrets_in_linear_time(text: str) -> None:
    def work(size: int) -> float:
        started = time.process_time()
        for _ in range(3):
            hide_secrets(text[:size])
        return time.process_time() - started

    work(1000)
    # Quadratic, it would be a hundred times as long; twenty leaves room for a busy machine.
    assert work(100_000) < max(1.0, 20 * work(10_000))


@pytest.mark.parametrize("text", UNSTORABLE)
def test_filters_that_no_database_can_store(app: Queuert, text: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: app.list_jobs(types=[text]),
        lambda: app.list_jobs(chain_types=[text]),
        lambda: app.list_jobs(error_codes=[text]),
        lambda: app.list_chains(types=[text]),
        lambda: app.list_chains(error_codes=[text]),
        lambda: app.stats(types=[text]),
        lambda: app.cancel_chain(app.start_chain("a").id, actor=text),
    ]
    app.declare("a")
    for call in calls:
        with pytest.raises(ValueError, match="NUL"):
            call()
    with app.transaction() as tx:
        with pytest.raises(ValueError, match="NUL"):
            app.list_jobs(types=[text], conn=tx)
        app.start_chain("a", conn=tx)  # the transaction is as good as before
    with pytest.raises(InvalidJobIdError):
        app.get_job(text)


def test_filters_may_be_generators(app: Queuert) -> None:
    @app.job("fails", max_attempts=1)
    def fails(job: Any) -> None:
        job.fail("TEST:FAILED")

    app.start_chain("fails")
    app.drain()
    assert len(app.list_jobs(error_codes=(code for code in ["TEST:FAILED"])).items) == 1
    assert len(app.list_chains(error_codes=iter(["TEST:"]), types=iter(["fails"]), statuses=iter(["failed"])).items) == 1


def test_numbers_beyond_all_measure(app: Queuert) -> None:
    app.declare("a")
    for huge in (10**400, -(10**400), 10**20):
        with pytest.raises(ValueError, match="seconds"):
            app.start_chain("a", after=huge)
        with pytest.raises(ValueError, match="count_limit"):
            app.stats(count_limit=huge)
        with pytest.raises(ValueError, match="limit"):
            app.list_jobs(limit=huge)
    with pytest.raises(ValueError, match="max_attempts"):
        app.start_chain("a", max_attempts=10**400)
    assert app.stats().by_status["pending"] == 0


def test_times_at_the_end_of_the_calendar(app: Queuert) -> None:
    app.declare("a")
    latest = datetime.max.replace(tzinfo=timezone.utc)
    chain = app.start_chain("a", at=latest)
    assert app.get_job(chain.id).scheduled_at == latest
    with pytest.raises(ValueError, match="calendar"):
        app.start_chain("a", at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))))


def test_nan_through_a_model_is_refused(app: Queuert) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Anything(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        value: Any = None
        more: dict[str, Any] = {}

    app.declare("a", input=Anything)
    for value in (float("nan"), float("inf")):
        for model in (Anything(value=value), Anything(value=[1, value]), Anything(more={"x": value})):
            with pytest.raises(Exception, match=re.escape("is not JSON")):
                app.start_chain("a", model)
    assert app.start_chain("a", Anything(value=None, more={"x": 1.5})).input == Anything(more={"x": 1.5})


def test_a_listen_url_of_another_kind_is_refused(pg_url: str) -> None:
    for listen_url in ("sqlite:///shop.db", f"u:{SECRET}@h/db", "postgresql://h/d?nothing=1"):
        with pytest.raises(UnsupportedDatabaseError) as refused:
            Queuert(pg_url, listen_url=listen_url)
        assert SECRET not in str(refused.value)

"""Recurring work: one chain a tick, however many look at the clock; missed ticks, changed clocks, changed schedules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clocks import database_now, is_postgres, stored
from support.inside import look_now, ticker_of
from support.racing import together
from support.waiting import eventually

import queuert
from queuert import JobTypes, Queuert, RunningJob, UnknownJobTypeError
from queuert.chains.periodic import GRACE, MOST_AT_ONCE, _ticks
from queuert.cli import main
from queuert.errors import JobTypeValidationError, QueuertError
from queuert.job_types.schedules import Cron, Interval, Periodic
from queuert.testing import advance

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
RARELY = timedelta(days=4000)
MICROSECOND = timedelta(microseconds=1)


def look(app: Queuert) -> None:
    """What a worker does about once a second, at once."""
    look_now(ticker_of(app))
    ticker_of(app).run_if_due(threading.Event(), "test")


def set_due(app: Queuert, moment: datetime, name: str = "report") -> None:
    with app.transaction() as tx:
        mark = "%s" if is_postgres(app) else "?"
        changed = tx.execute(
            f"UPDATE queuert_singleton SET next_run_at = {mark} WHERE name = {mark}",
            (stored(app, moment), f"queuert:periodic:{name}"),
        )
        assert changed.rowcount == 1


def started(app: Queuert) -> int:
    return len(app.list_chains(limit=1000))


def report(app: Queuert, schedule: Any = RARELY, **options: Any) -> None:
    app.periodic(schedule, **options)(app.declare("report"))


def half_past(now: datetime) -> str:
    """A schedule that ticked half an hour ago, and every hour before."""
    return f"{(now - timedelta(minutes=30)).minute} * * * *"


def last_tick(now: datetime) -> datetime:
    return (now - timedelta(minutes=30)).replace(second=0, microsecond=0)


# One chain a tick


def test_a_new_schedule_begins_with_its_next_tick(app: Queuert) -> None:
    report(app)
    look(app)
    look(app)
    assert started(app) == 0
    [status] = app.periodics()
    assert (status.name, status.type_name, status.last_run_at) == ("report", "report", None)
    assert status.next_run_at == Interval(RARELY.total_seconds()).after(database_now(app))


def test_a_tick_starts_one_chain_and_moves_on(app: Queuert) -> None:
    report(app, input={"kind": "daily"})
    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1))
    look(app)
    look(app)
    [chain] = app.list_chains()
    assert chain.input == {"kind": "daily"}
    [status] = app.periodics()
    assert status.last_run_at is not None
    assert status.next_run_at is not None
    assert status.last_run_at <= database_now(app) < status.next_run_at, "SQLite's clock has milliseconds"


def test_many_apps_and_threads_start_one_chain_a_tick(app: Queuert, target: str) -> None:
    others = [app] if "memory" in target else [app, *(Queuert(target) for _ in range(3))]
    for other in others:
        report(other)
        look(other)
    try:
        for ticks in range(1, 6):
            set_due(app, database_now(app) - timedelta(seconds=1))
            together(*(lambda other=other: look(other) for other in others * 2))
            assert started(app) == ticks
    finally:
        for other in others[1:]:
            other.close()


TICKING = """
import os, threading
from pathlib import Path
from queuert import Queuert
from support.inside import look_now, ticker_of
app = Queuert(os.environ["TICKS_URL"])
app.periodic(4000 * 86400, name="report")(app.declare("report"))
Path(f"ready-{os.getpid()}").touch()
while not Path("stop").exists():
    look_now(ticker_of(app))
    ticker_of(app).run_if_due(threading.Event(), str(os.getpid()))
"""


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    url: str = request.getfixturevalue("pg_url")
    return url


def test_many_processes_start_one_chain_a_tick(shared_url: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(queuert.__file__).parents[1]), str(Path(__file__).parent)])
    environment = {**os.environ, "TICKS_URL": shared_url, "PYTHONPATH": path}
    with Queuert(shared_url) as app:
        app.migrate()
        report(app)
        look(app)
        processes = [
            subprocess.Popen([sys.executable, "-c", TICKING], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
            for _ in range(3)
        ]
        try:
            eventually(lambda: len(list(tmp_path.glob("ready-*"))) == len(processes), 30)
            for ticks in range(1, 6):
                set_due(app, database_now(app) - timedelta(seconds=1))
                eventually(lambda ticks=ticks: started(app) == ticks)
        finally:
            (tmp_path / "stop").touch()
            errors = [process.communicate(timeout=20)[1] for process in processes]
        assert errors == [b""] * len(processes)
        assert started(app) == 5


def test_a_crash_in_the_middle_of_a_tick_loses_nothing(app: Queuert, caplog: pytest.LogCaptureFixture) -> None:
    report(app)
    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1))
    with app.transaction() as tx:  # starting the chain is refused, after the tick was moved on
        tx.execute("ALTER TABLE queuert_job RENAME TO queuert_elsewhere")
    look(app)
    assert "could not start its chain" in caplog.text
    with app.transaction() as tx:
        tx.execute("ALTER TABLE queuert_elsewhere RENAME TO queuert_job")
    assert started(app) == 0
    look(app)
    assert started(app) == 1


def test_a_worker_runs_what_a_schedule_starts(app: Queuert) -> None:
    seen = []

    @app.periodic(RARELY, input={"n": 1})
    @app.job
    def report(job: RunningJob[dict[str, int]]) -> None:
        seen.append(job.input)

    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1))
    look_now(ticker_of(app))
    with app.worker(), app.worker():
        eventually(lambda: seen)
    assert seen == [{"n": 1}]
    assert app.list_chains(statuses=["completed"]).items


def test_a_stopped_worker_starts_nothing_more(app: Queuert) -> None:
    report(app)
    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1))
    stopping = threading.Event()
    stopping.set()
    look_now(ticker_of(app))
    ticker_of(app).run_if_due(stopping, "test")
    assert started(app) == 0


def test_one_type_may_have_several_schedules(app: Queuert) -> None:
    job_type = app.declare("report")
    for name in ("north", "south"):
        app.periodic(RARELY, name=name, input=name)(job_type)
    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1), "south")
    look(app)
    assert [chain.input for chain in app.list_chains()] == ["south"]
    with pytest.raises(ValueError, match="another name="):
        app.periodic(RARELY, name="south")(job_type)


# Missed ticks


@pytest.mark.parametrize(("missed", "number"), [("once", 1), ("all", 3), ("skip", 0)])
def test_missed_ticks_are_made_up_for_as_asked(app: Queuert, missed: Any, number: int) -> None:
    now = database_now(app)
    report(app, half_past(now), missed=missed)
    look(app)
    set_due(app, last_tick(now) - timedelta(hours=2))
    look(app)
    assert started(app) == number
    look(app)
    assert started(app) == number
    [status] = app.periodics()
    assert status.next_run_at == last_tick(now) + timedelta(hours=1)


def missing(missed: Any, *, every: float, down: float, late: float = 0.5) -> list[float]:
    """How long ago the ticks were that are run after some seconds without a worker."""
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=late)
    periodic = Periodic("x", None, Interval(every), "", None, missed)  # type: ignore[arg-type]  # the type is of no interest
    due = Interval(every).after(now - timedelta(seconds=down))
    return [(now - tick).total_seconds() for tick in _ticks(periodic, due, now)]


def test_ticks_that_are_only_seconds_late_are_not_missed() -> None:
    for missed in ("once", "all", "skip"):
        assert missing(missed, every=1, down=3) == [2.5, 1.5, 0.5]
    assert len(missing("once", every=1, down=3600)) == 1


def test_skip_runs_the_last_tick_if_it_is_recent() -> None:
    assert missing("skip", every=3600, down=5 * 3600, late=GRACE - 1) == [GRACE - 1]
    assert missing("skip", every=3600, down=5 * 3600, late=GRACE + 1) == []
    assert missing("skip", every=10, down=10 * 86400) == [0.5]


def test_very_many_missed_ticks_are_made_up_for_in_portions(app: Queuert) -> None:
    report(app, 60, missed="all")
    look(app)
    first = Interval(60).after(database_now(app) - timedelta(minutes=MOST_AT_ONCE + 10))
    set_due(app, first)
    look(app)
    assert app.stats().by_status["pending"] == MOST_AT_ONCE
    look(app)
    assert MOST_AT_ONCE + 9 <= app.stats().by_status["pending"] <= MOST_AT_ONCE + 12


# Changed schedules


def test_a_changed_schedule_holds_from_its_next_tick(app: Queuert, target: str) -> None:
    now = database_now(app)
    report(app, f"{(now + timedelta(minutes=30)).minute} * * * *")
    look(app)
    ticker_of(app)._all.clear()
    sooner = (now + timedelta(minutes=10)).replace(second=0, microsecond=0)
    app.periodic(f"{sooner.minute} * * * *")(app.types.get("report"))
    [status] = app.periodics()
    assert status.next_run_at == sooner, "also before a worker has noted it"
    look(app)
    assert started(app) == 0
    [status] = app.periodics()
    assert status.next_run_at == sooner


def test_a_schedule_that_was_taken_away_starts_nothing(app: Queuert) -> None:
    report(app)
    look(app)
    set_due(app, database_now(app) - timedelta(seconds=1))
    ticker_of(app)._all.clear()
    look(app)
    assert started(app) == 0
    assert app.periodics() == []


# Clocks that change


def ticks(expression: str, start: datetime, number: int, zone: ZoneInfo = BERLIN) -> list[str]:
    cron, found, moment = Cron(expression, zone), [], start
    for _ in range(number):
        moment = cron.after(moment)
        found.append(moment)
    return [moment.strftime("%d %H:%M") for moment in found]


SPRING = datetime(2026, 3, 28, 22, tzinfo=UTC)  # at 1:00 UTC on the 29th two o'clock becomes three
AUTUMN = datetime(2026, 10, 24, 22, tzinfo=UTC)  # at 1:00 UTC on the 25th three o'clock becomes two


def test_an_hour_that_is_skipped_is_made_up_for_right_after_it() -> None:
    assert ticks("30 2 * * *", SPRING, 2) == ["29 01:00", "30 00:30"]
    assert ticks("0 9 * * *", SPRING, 2) == ["29 07:00", "30 07:00"]
    assert ticks("*/30 * * * *", SPRING + timedelta(hours=2), 3) == ["29 00:30", "29 01:00", "29 01:30"]


def test_an_hour_that_comes_twice_runs_once() -> None:
    assert ticks("30 2 * * *", AUTUMN, 2) == ["25 00:30", "26 01:30"]
    assert ticks("0 9 * * *", AUTUMN, 2) == ["25 08:00", "26 08:00"]
    assert ticks("*/30 * * * *", AUTUMN + timedelta(hours=2), 3) == ["25 00:30", "25 01:00", "25 01:30"]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0,30 2 * * *", "15 2,3 * * *", "30 1-4 * * *", "*/20 * * * *"])
@pytest.mark.parametrize("night", [SPRING, AUTUMN])
def test_around_a_change_of_the_clocks_the_next_tick_is_always_ahead(expression: str, night: datetime) -> None:
    cron = Cron(expression, BERLIN)
    seen = {cron.after(night + timedelta(minutes=minute)) for minute in range(8 * 60)}
    for minute in range(8 * 60):
        moment = night + timedelta(minutes=minute)
        tick = cron.after(moment)
        assert tick > moment
        assert tick == min(each for each in seen if each > moment)
        assert cron.after(tick - MICROSECOND) == tick, "it is known again as a tick"


@given(
    st.integers(1, 10**7) | st.floats(1, 10**6),
    st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
def test_an_interval_ticks_at_the_same_moments_for_everybody(every: float, moment: datetime) -> None:
    schedule = Interval(float(every))
    tick = schedule.after(moment)
    assert timedelta(0) < tick - moment <= timedelta(seconds=every) + 2 * MICROSECOND
    assert schedule.after(tick - MICROSECOND) == tick
    assert schedule.after(tick) > tick


# What is refused


@pytest.mark.parametrize(
    ("schedule", "options", "error", "message"),
    [
        ("nonsense", {}, ValueError, "not a cron expression"),
        ("61 * * * *", {}, ValueError, "Bad minute"),
        ("0 0 31 2 *", {}, ValueError, "Bad day-of-month"),
        ("0 0 * 2 MON#6", {}, ValueError, "Bad day-of-week"),
        ("", {}, ValueError, "Wrong number of fields"),
        ("0 9 * * *", {"tz": "Europe/Nowhere"}, ValueError, "not a known time zone"),
        ("0 9 * * *", {"tz": "Europe"}, ValueError, "not a known time zone"),
        ("0 9 * * *", {"tz": ""}, ValueError, "not a known time zone"),
        (0, {}, ValueError, None),
        (-5, {}, ValueError, None),
        (0.5, {}, ValueError, "once a second"),
        (10**10, {}, ValueError, None),
        (None, {}, TypeError, None),
        (60, {"missed": "sometimes"}, ValueError, "'once', 'all' or 'skip'"),
        (60, {"name": ""}, (ValueError, QueuertError), None),
        (60, {"input": {1, 2}}, JobTypeValidationError, None),
    ],
)
def test_bad_schedules_are_refused_at_once(schedule: Any, options: dict[str, Any], error: Any, message: str | None) -> None:
    app = Queuert("sqlite:///:memory:")
    with pytest.raises(error, match=message):
        report(app, schedule, **options)
    assert ticker_of(app)._all == {}


def test_a_type_that_cannot_start_a_chain_alone_is_refused() -> None:
    app = Queuert("sqlite:///:memory:")
    with pytest.raises(JobTypeValidationError) as refused:
        app.periodic(60)(app.declare("later", entry=False))
    assert refused.value.code == "not_entry_point"
    with pytest.raises(JobTypeValidationError) as refused:
        app.periodic(60)(app.declare("joined", blockers=["other"]))
    assert refused.value.code == "invalid_blockers"
    with pytest.raises(TypeError, match=r"above @app\.job"):
        app.periodic(60)(lambda job: None)  # type: ignore[type-var]  # wrong on purpose


def test_input_is_checked_against_the_type() -> None:
    app = Queuert("sqlite:///:memory:")

    @app.job
    def count(job: RunningJob[int]) -> None: ...

    with pytest.raises(JobTypeValidationError):
        app.periodic(60, input="many")(count)
    app.periodic(60, input=5)(count)


def test_without_the_cron_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    app = Queuert("sqlite:///:memory:")
    with pytest.raises(ImportError, match=r"queuert\[cron\]"):
        report(app, "0 9 * * *")
    app.periodic(60)(app.types.get("report"))


# The command


@pytest.fixture
def module(shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An application with schedules, as a module that the command line can import."""
    (tmp_path / "recurring.py").write_text(
        f"from queuert import Queuert\napp = Queuert({shared_url!r})\n"
        "app.periodic('0 9 * * *', tz='Europe/Berlin')(app.declare('report'))\n"
        "app.periodic(4000 * 86400, name='rare')(app.declare('other'))\n"
        "from queuert.app import context_of\nnone = Queuert(context_of(app).database)\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "recurring"
    sys.modules.pop("recurring", None)


def test_the_command_lists_what_recurs(module: str, shared_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Queuert(shared_url) as app:
        app.migrate()
        report(app, name="rare")
        look(app)
        set_due(app, database_now(app) - timedelta(seconds=1), "rare")
        look(app)
        [status] = app.periodics()
    assert main(["periodic", "--app", f"{module}:app", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["items"]
    assert first["schedule"] == "0 9 * * * (Europe/Berlin)"
    assert first["last_run_at"] is None
    assert first["next_run_at"].endswith(":00:00Z")
    assert second["name"] == "rare"
    assert second["type_name"] == "other"
    assert datetime.fromisoformat(second["last_run_at"].replace("Z", "+00:00")) == status.last_run_at
    assert main(["periodic", "--app", f"{module}:app"]) == 0
    text = capsys.readouterr().out
    assert "NEXT RUN" in text
    assert "never" in text
    assert main(["periodic", "--app", f"{module}:none"]) == 0
    assert "Nothing recurs" in capsys.readouterr().out


def test_the_command_works_without_the_application(shared_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Queuert(shared_url) as app:
        app.migrate()
        report(app)
        look(app)
    assert main(["periodic", "--url", shared_url, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["items"]
    assert (found["name"], found["type_name"], found["schedule"]) == ("report", None, None)
    assert found["next_run_at"] is not None


def test_a_registry_has_schedules_of_its_own(app: Queuert) -> None:
    inner, outer = JobTypes(), JobTypes()

    @inner.periodic(60, input={"n": 5})
    @inner.task
    def count(n: int = 1) -> int:
        return n

    outer.include(inner)
    app.include(outer)

    @inner.periodic(3600, name="hourly")
    @inner.job
    def later(job: RunningJob[None]) -> None: ...

    assert {entry.name: entry.type_name for entry in app.periodics()} == {"count": "count", "hourly": "later"}
    advance(app, 61)
    app.drain()
    assert {chain.output for chain in app.list_chains(types=["count"])} == {5}  # one tick, or two


def test_one_name_for_two_schedules_is_refused_wherever_they_meet(app: Queuert) -> None:
    one, two = JobTypes(), JobTypes()
    for number, types in enumerate((one, two)):
        types.periodic(60, name="same")(types.declare(f"type-{number}"))
    app.include(one)
    with pytest.raises(ValueError, match="schedule 'same' already"):
        app.include(two)
    assert [entry.type_name for entry in app.periodics()] == ["type-0"]
    assert "type-1" not in app.types
    app.include(one)  # once more is nothing new
    with pytest.raises(UnknownJobTypeError):
        one.periodic(60)(two.declare("foreign"))

"""What users test with: the fixtures, and time that passes without waiting."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.clocks import database_now
from support.waiting import eventually

import queuert
from queuert import Backoff, Dedup, Queuert, Retention, RunningJob
from queuert.testing import Advance, Drain, advance

pytest_plugins = ["queuert.testing"]  # as the installed package has it registered

ROOT = Path(queuert.__file__).parents[1]


def test_the_fixtures_give_an_app_in_memory(queuert_app: Queuert, queuert_drain: Drain, queuert_advance: Advance) -> None:
    assert "memory" in repr(queuert_app)
    assert queuert_app.list_chains().items == []

    @queuert_app.job
    def work(job: RunningJob[None]) -> str:
        return "done"

    chain = queuert_app.start_chain(work, after=timedelta(days=1))
    assert queuert_drain() == 0
    queuert_advance(timedelta(days=1))
    assert queuert_drain() == 1
    assert queuert_app.wait_for(chain).output == "done"


def test_the_fixtures_are_registered_with_pytest() -> None:
    try:
        import tomllib
    except ImportError:
        pytest.skip("this Python reads no TOML")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"queuert.testing": "queuert.testing"}


def test_the_tests_of_the_example_pass() -> None:
    example = Path(__file__).parents[1] / "examples" / "newsletter"
    command = [sys.executable, "-m", "pytest", "-p", "queuert.testing", "-p", "no:cacheprovider", str(example)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout


def test_an_application_may_use_its_own_app(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        """
import pytest
from queuert import Queuert, RunningJob

@pytest.fixture
def queuert_app(tmp_path):
    with Queuert(tmp_path / "own.db") as app:
        app.migrate()
        yield app

def test_own(queuert_app, queuert_drain, queuert_advance, tmp_path):
    @queuert_app.job
    def work(job: RunningJob[None]) -> None: ...
    queuert_app.start_chain(work, after=60)
    queuert_advance(60)
    assert queuert_drain() == 1
    assert (tmp_path / "own.db").exists()
"""
    )
    command = [sys.executable, "-m", "pytest", "-p", "queuert.testing", "-p", "no:cacheprovider", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


# Time


def test_scheduled_jobs_come_due(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None: ...

    chain = app.start_chain(work, after=3600)
    before = app.get_job(chain.id)
    advance(app, 3599)
    assert app.drain() == 0
    advance(app, timedelta(seconds=1))
    assert app.drain() == 1
    after = app.get_job(chain.id)
    assert before is not None
    assert after is not None
    assert before.created_at - after.created_at == timedelta(seconds=3600), "to the microsecond"
    assert before.chain_created_at - after.chain_created_at == timedelta(seconds=3600)


def test_retries_stop_waiting(app: Queuert) -> None:
    @app.job(max_attempts=3, backoff=Backoff(initial=100, jitter=0))
    def broken(job: RunningJob[None]) -> None:
        raise ValueError

    chain = app.start_chain(broken)
    assert app.drain() == 1
    for wait in (100, 200):
        assert app.drain() == 0
        advance(app, wait)
        assert app.drain() == 1
    assert app.wait_for(chain, raise_on_failure=False).status == "failed"
    first, second, third = app.attempts(chain.id)
    assert second.finished_at - first.finished_at >= timedelta(seconds=100)
    assert third.finished_at - second.finished_at >= timedelta(seconds=200)


def test_leases_run_out(app: Queuert) -> None:
    from support.handlers import held

    with held(app) as holding:
        advance(app, 61)
        app.drain(types=["held"])
        eventually(lambda: [a.outcome for a in app.attempts(holding.chain.id)] == ["lost"])


def test_deduplication_windows_end_and_closed_chains_come_of_age(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None: ...

    first = app.start_chain(work, dedup=Dedup("k", scope="any", window=3600))
    app.drain()
    assert app.start_chain(work, dedup=Dedup("k", scope="any", window=3600)).id == first.id
    advance(app, 3601)
    assert app.start_chain(work, dedup=Dedup("k", scope="any", window=3600)).id != first.id
    assert app.cleanup(Retention(completed=7200))["completed"] == 0
    advance(app, 3600)
    assert app.cleanup(Retention(completed=7200))["completed"] == 1


@pytest.mark.parametrize(("missed", "number"), [("once", 1), ("all", 3)])
def test_schedules_tick(app: Queuert, missed: Any, number: int) -> None:
    app.periodic("0 9 * * *", missed=missed)(app.declare("report"))
    advance(app, timedelta(days=3))
    assert len(app.list_chains()) == number


def test_many_small_steps_are_like_a_large_one(app: Queuert) -> None:
    now = database_now(app)
    app.periodic(f"{now.minute} {(now - timedelta(hours=1)).hour} * * *")(app.declare("report"))
    for _ in range(22):
        advance(app, 3600)
    assert len(app.list_chains()) == 0
    advance(app, 3600)
    assert len(app.list_chains()) == 1


def test_a_live_worker_notices(app: Queuert) -> None:
    @app.job
    def work(job: RunningJob[None]) -> None: ...

    chain = app.start_chain(work, after=3600)
    with app.worker(poll_interval=3600):
        advance(app, 3600)
        app.wait_for(chain, timeout=10)


@pytest.mark.parametrize("by", [0, -1, timedelta(seconds=-1), "1h", None])
def test_time_does_not_stand_still_or_go_back(app: Queuert, by: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        advance(app, by)

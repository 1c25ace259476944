"""A whole Django project: its own tests, its migrations and its commands, run as its developers would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from processes import command_names, run, started

pytest.importorskip("django")

from djangosite import database_settings

PROJECT = Path(__file__).parent / "djangoproject"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "sqlite":
        return database_settings(request.getfixturevalue("sqlite_path"))
    return database_settings(request.getfixturevalue("empty_pg_url"))


def manage(database: dict[str, Any], *args: str, **queuert: Any) -> Any:
    return run(PROJECT, "manage.py", *args, PROJECT_DATABASE=json.dumps(database), PROJECT_QUEUERT=json.dumps(queuert))


def test_the_projects_own_tests_pass(database: dict[str, Any]) -> None:
    done = manage(database, "test", "-v", "2", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "\nOK\n" in done.stderr, "nothing was skipped, the tasks neither"
    assert "work.test_tasks.CommittedTasks" in done.stderr


def test_migrations_make_the_tables_and_take_them_away(database: dict[str, Any]) -> None:
    shown = manage(database, "sqlmigrate", "queuert", "0001")
    assert "queuert_job_attempt" in shown.stdout, shown.stderr
    missing = manage(database, "queuert_stats")
    assert missing.returncode == 1
    assert "manage.py migrate" in missing.stderr
    assert "Traceback" not in missing.stderr
    done = manage(database, "migrate")
    assert done.returncode == 0, done.stderr
    assert "Applying queuert.0001_initial... OK" in done.stdout
    assert "No migrations to apply" in manage(database, "migrate").stdout
    away = manage(database, "migrate", "queuert", "zero")
    assert away.returncode == 0, away.stderr
    assert "manage.py migrate" in manage(database, "queuert_stats").stderr
    assert manage(database, "migrate").returncode == 0
    assert manage(database, "queuert_stats").returncode == 0


def test_tables_may_have_another_prefix(database: dict[str, Any]) -> None:
    options = {"TABLE_PREFIX": "shop_"}
    assert manage(database, "migrate", **options).returncode == 0
    assert manage(database, "queuert_stats", **options).returncode == 0
    assert manage(database, "makemigrations", "--check", "--dry-run", **options).returncode == 0
    assert "shop_" not in manage(database, "queuert_stats").stdout
    assert manage(database, "queuert_stats").returncode == 1


def test_a_worker_process_finds_the_jobs_and_runs_them(database: dict[str, Any], tmp_path: Path) -> None:
    assert manage(database, "migrate").returncode == 0
    environment = {"PROJECT_DATABASE": json.dumps(database)}
    script = (
        "from work.jobs import charge; from work.models import Order; from queuert.contrib.django import queue; "
        "order = Order.objects.create(); chain = queue.start_chain(charge, order.pk); "
        "print(queue.wait_for(chain, timeout=30).output)"
    )
    with started(PROJECT, ["manage.py", "queuert_worker", "-c", "2"], tmp_path / "log", **environment) as worker:
        done = run(PROJECT, "manage.py", "shell", "-v", "0", "-c", script, **environment)
        assert done.stdout.strip() == "shipped", done.stderr + worker.output()
        assert worker.stop() == 0, worker.output()


def test_every_command_is_there(database: dict[str, Any]) -> None:
    assert manage(database, "migrate").returncode == 0
    help = manage(database, "queuert", "--help").stdout
    assert "usage: manage.py queuert" in help
    assert set(command_names()) <= set(help.split())
    begun = manage(database, "queuert", "start", "fail", "--json")
    chain = json.loads(begun.stdout)["chain"]["id"]
    worked = manage(database, "queuert", "worker", "--until-empty", "--settings", "project.settings")
    assert worked.returncode == 0, worked.stderr
    shown = manage(database, "queuert", "show", chain[-8:], "--json", "--settings=project.settings")
    assert json.loads(shown.stdout)["chain"]["status"] == "failed", shown.stderr
    assert manage(database, "queuert", "migrate", "--status").returncode == 0
    refused = manage(database, "queuert", "stats", "--url", "sqlite:///x.db")
    assert (refused.returncode, "own application" in refused.stderr) == (2, True)


@pytest.mark.parametrize("options", [["--processes", "2"], ["--autoreload"]])
def test_a_worker_of_several_processes(database: dict[str, Any], tmp_path: Path, options: list[str]) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    assert manage(database, "migrate").returncode == 0
    environment = {"PROJECT_DATABASE": json.dumps(database)}
    script = (
        "from work.jobs import charge; from work.models import Order; from queuert.contrib.django import queue; "
        "chain = queue.start_chain(charge, Order.objects.create().pk); print(queue.wait_for(chain, timeout=30).output)"
    )
    with started(project, ["manage.py", "queuert", "worker", *options], tmp_path / "log", **environment) as worker:
        done = run(project, "manage.py", "shell", "-v", "0", "-c", script, **environment)
        assert done.stdout.strip() == "shipped", done.stderr + worker.output()
        if "--autoreload" in options:
            source = project / "work" / "jobs.py"
            source.write_text(source.read_text().replace('"shipped"', '"sent"'))
            worker.says("jobs.py has changed")
            done = run(project, "manage.py", "shell", "-v", "0", "-c", script, **environment)
            assert done.stdout.strip() == "sent", done.stderr + worker.output()
        assert worker.stop() == 0, worker.output()


@pytest.mark.parametrize(
    ("database", "queuert", "message"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "x.db"}, {"DATABASE": "other"}, "no database 'other'"),
        ({"ENGINE": "django.db.backends.dummy", "NAME": "x"}, {}, "django.db.backends.postgresql"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "x.db"}, {"CONCURENCY": 3}, "CONCURENCY"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "x.db", "AUTOCOMMIT": False}, {}, "AUTOCOMMIT"),
    ],
    indirect=[],
)
def test_a_wrong_set_up_is_told_at_the_start(database: dict[str, Any], queuert: dict[str, Any], message: str) -> None:
    done = manage(database, "queuert_worker", **queuert)
    assert done.returncode == 1
    assert message in done.stderr

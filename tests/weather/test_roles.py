"""Roles of least privilege: each can do its part, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.weather import as_role

from queuert import Dedup, Queuert, Retention, Status
from queuert.cli.entry import main
from queuert.postgres.grants import ROLES, grants
from queuert.storage.names import TABLES, Names

Login = Callable[[str], str]


@pytest.fixture
def login(pg_url: str) -> Iterator[Login]:
    """The URL for a role of a kind that has nothing but what is printed for it."""
    made = []

    def make(kind: str) -> str:
        role = f"queuert_test_{kind}"
        with psycopg.connect(pg_url, autocommit=True) as conn:
            conn.execute(f"DROP ROLE IF EXISTS {role}")
            conn.execute(f"CREATE ROLE {role} LOGIN")
            made.append(role)
            conn.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            for statement in grants(Names(), kind, role):
                conn.execute(statement.encode())
        return as_role(pg_url, role)

    yield make
    with psycopg.connect(pg_url, autocommit=True) as conn:
        for role in made:
            conn.execute(f"DROP OWNED BY {role}")
            conn.execute(f"DROP ROLE {role}")


@contextmanager
def _denied() -> Iterator[None]:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        yield


def _declare(app: Queuert) -> None:
    @app.job("work")
    def work(job: Any) -> int:
        return 1

    @app.job("own")
    def own(job: Any) -> Any:
        with job.complete():
            return job.continue_with("work")

    @app.job("fails", max_attempts=1)
    def fails(job: Any) -> None:
        raise ValueError


def test_whoever_enqueues(pg_url: str, login: Login) -> None:
    with Queuert(login("enqueue")) as app, Queuert(pg_url) as owner:
        _declare(app)
        _declare(owner)
        first = app.start_chain("work", dedup=Dedup("k"))
        assert app.start_chain("work", dedup=Dedup("k")).deduplicated
        joined = app.start_chain("work", blockers=[first])
        with app.transaction() as tx:
            app.start_chain("own", conn=tx, after=60)
        assert joined.status is Status.BLOCKED
        owner.drain()
        assert app.wait_for(joined, timeout=10).output == 1
        for act in (app.cancel_chain, app.delete_chain):
            with _denied():
                act(app.start_chain("work").id)
        with _denied():
            app.drain()


def test_a_worker(pg_url: str, login: Login) -> None:
    with Queuert(login("worker")) as app:
        _declare(app)
        chains = [app.start_chain(name) for name in ("work", "own", "fails") for _ in range(5)]
        chains.append(app.start_chain("work", blockers=chains[:2], dedup=Dedup("k")))
        with app.worker(concurrency=3, poll_interval=0.1):
            for chain in chains:
                app.wait_for(chain, timeout=30, raise_on_failure=False)
        assert app.stats().by_status["failed"] == 5
        app.cleanup(Retention(completed=0, failed=0, cancelled=0))
        assert not app.list_chains().items
        with _denied(), app.transaction() as tx:
            tx.execute("DROP TABLE queuert_job")


def test_an_operator(pg_url: str, login: Login) -> None:
    with Queuert(login("operator")) as app, Queuert(pg_url) as owner:
        _declare(app)
        _declare(owner)
        failed, later, outside = owner.start_chain("fails"), owner.start_chain("work", after=60), owner.start_chain("own")
        join = owner.start_chain("work", blockers=[outside], dedup=Dedup("k"))
        with app.complete_chain(outside.id) as tail:
            tail.finish(1)
        owner.drain()
        assert app.retry_chain(failed.id).status is Status.PENDING
        app.trigger_job(later.id)
        assert app.cancel_chain(later.id).status is Status.CANCELLED
        app.delete_chain(join.id)
        app.pause("work", reason="a test")
        app.resume("work")
        assert app.timeline(failed.id)
        assert app.stats().by_status["cancelled"] == 1
        with _denied(), app.transaction() as tx:
            tx.execute("UPDATE queuert_migration SET name = 'x'")


def test_whoever_only_looks(pg_url: str, login: Login) -> None:
    with Queuert(login("read")) as app, Queuert(pg_url) as owner:
        _declare(app)
        _declare(owner)
        chain = owner.start_chain("work")
        owner.drain()
        assert app.get_chain(chain.id).status is Status.COMPLETED
        assert app.list_jobs().items
        assert app.attempts(chain.id)
        assert app.timeline(chain.id)
        assert app.stats().by_status["completed"] == 1
        assert not app.migration_status().pending
        for act in (lambda: app.start_chain("work"), lambda: app.cancel_chain(owner.start_chain("work").id)):
            with _denied():
                act()


def test_every_table_is_in_the_grants() -> None:
    for kind in ROLES:
        printed = "\n".join(grants(Names(), kind, "somebody"))
        for table in TABLES:
            assert f'"queuert_{table}"' in printed


def test_the_command_line_prints_what_the_owner_is_to_run(
    pg_url: str, capsys: pytest.CaptureFixture[str], login: Login
) -> None:
    assert main(["sql", "--dialect", "postgres", "--grants"]) == 0
    printed = capsys.readouterr().out
    for kind in ROLES:
        assert f'TO "queuert_{kind}";' in printed
    assert main(["sql", "--dialect", "postgres", "--schema", "jobs", "--grants", "worker", "--to", "app"]) == 0
    printed = capsys.readouterr().out
    assert 'ON "jobs"."queuert_job" TO "app";' in printed
    assert "operator" not in printed
    assert main(["sql", "--dialect", "sqlite", "--grants"]) == 2
    assert main(["sql", "--dialect", "postgres", "--to", "app"]) == 2

"""The library on Django's connections and in Django's transactions, on both databases."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import eventually, found
from support.inside import database_of, notifier_of

pytest.importorskip("django")

from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, OperationalError, connections, transaction
from djangosite import ALIAS, Order, create_orders, database_settings, django_database, orders
from others import BusyNeighbour, chains_around_a_close, forked, locked_orders

from queuert import DuplicateJobIdError, Queuert, RunningJob
from queuert.contrib.django import DjangoProvider
from queuert.error_codes import error_code
from queuert.errors import (
    DatabaseUnavailableError,
    SchemaVersionError,
    StaleSnapshotError,
    TransactionRequiredError,
    UnsupportedDatabaseError,
)
from queuert.notify.protocol import Channel, Notice

SHIP = Notice(Channel.SCHEDULED, "ship")


def target(request: pytest.FixtureRequest, kind: str) -> str | Path:
    found: str | Path = request.getfixturevalue("empty_pg_url" if kind == "postgres" else "sqlite_path")
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def entry(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A database in Django's settings, with nothing in it."""
    return database_settings(target(request, request.param))


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def make_app(**options: Any) -> Queuert:
    app = Queuert(DjangoProvider(ALIAS), **options)
    app.declare("ship")
    app.migrate()
    create_orders()
    return app


@pytest.fixture
def app(entry: dict[str, Any]) -> Iterator[Queuert]:
    with django_database(entry), make_app() as app:
        yield app


@pytest.fixture
def heard(app: Queuert) -> list[Notice]:
    """What is published in this process, as it happens."""
    notices: list[Notice] = []
    notifier: Any = notifier_of(app)
    publish = notifier.publish

    def record(told: Any) -> None:
        notices.extend(told)
        publish(told)

    notifier.publish = record
    return notices


def chains(app: Queuert) -> int:
    return len(app.list_chains().items)


def atomic() -> Any:
    return transaction.atomic(using=ALIAS)


@contextmanager
def undone() -> Iterator[None]:
    """An atomic block that is rolled back at its end."""
    with atomic():
        yield
        transaction.set_rollback(True, using=ALIAS)


# Django's transactions


def test_outside_of_atomic_a_chain_commits_by_itself(app: Queuert, heard: list[Notice]) -> None:
    app.start_chain("ship")
    assert heard == [SHIP]
    assert chains(app) == 1
    assert not connections[ALIAS].in_atomic_block


@pytest.mark.parametrize("conn", [None, "alias", "connection"])
def test_inside_atomic_a_chain_takes_part(app: Queuert, conn: str | None) -> None:
    given: Any = {None: None, "alias": ALIAS, "connection": connections[ALIAS]}[conn]
    with atomic():
        Order.objects.using(ALIAS).create(id=1)
        app.start_chain("ship", conn=given)
    assert chains(app) == 1
    with undone():
        Order.objects.using(ALIAS).create(id=2)
        app.start_chain("ship", conn=given)
        assert chains(app) == 2, "its own transaction sees it"
    assert chains(app) == 1
    assert orders() == {1: "new"}


def test_savepoints_take_their_chains_with_them(app: Queuert) -> None:
    with atomic():
        kept = app.start_chain("ship")
        with undone():
            app.start_chain("ship")
            with atomic():
                app.start_chain("ship")
        with atomic():
            also_kept = app.start_chain("ship")
    assert {chain.id for chain in app.list_chains().items} == {kept.id, also_kept.id}


def test_conn_insists_on_a_transaction(app: Queuert) -> None:
    for conn in (ALIAS, connections[ALIAS]):
        with pytest.raises(TransactionRequiredError, match="atomic"):
            app.start_chain("ship", conn=conn)
    assert app.list_chains(conn=ALIAS).items == []


def test_a_transaction_that_can_only_be_rolled_back_is_refused(app: Queuert) -> None:
    with atomic():
        transaction.set_rollback(True, using=ALIAS)
        with pytest.raises(TransactionRequiredError, match="rolled back"):
            app.start_chain("ship")


def test_a_refusal_leaves_the_atomic_block_usable(app: Queuert) -> None:
    first = app.start_chain("ship")
    with atomic():
        Order.objects.using(ALIAS).create(id=1)
        with pytest.raises(DuplicateJobIdError):
            app.start_chain("ship", id=first.id)
        app.start_chain("ship")
    assert orders() == {1: "new"}
    assert chains(app) == 2


def test_autocommit_switched_off_by_hand_is_a_transaction_too(app: Queuert) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    try:
        app.start_chain("ship")
        transaction.rollback(using=ALIAS)
        app.start_chain("ship", conn=ALIAS)
        transaction.commit(using=ALIAS)
    finally:
        transaction.rollback(using=ALIAS)
        transaction.set_autocommit(True, using=ALIAS)
    assert chains(app) == 1


# After the commit


def test_effects_wait_for_the_outermost_commit(app: Queuert, heard: list[Notice]) -> None:
    with atomic():
        with atomic():
            app.start_chain("ship")
        assert heard == []
    assert heard == [SHIP]


def test_effects_of_a_rolled_back_savepoint_are_dropped(app: Queuert, heard: list[Notice]) -> None:
    with atomic(), undone():
        app.start_chain("ship")
    assert heard == []


def test_a_refusal_drops_its_effects(app: Queuert, heard: list[Notice]) -> None:
    first = app.start_chain("ship")
    heard.clear()
    with atomic(), pytest.raises(DuplicateJobIdError):
        app.start_chain("ship", id=first.id)
    assert heard == []


def test_a_worker_elsewhere_is_woken_by_the_commit(app: Queuert) -> None:
    ran = threading.Event()
    with Queuert(DjangoProvider(ALIAS)) as other:
        other.job("ship")(lambda job: ran.set())
        with other.worker(poll_interval=60):
            with atomic():
                app.start_chain("ship")
            assert ran.wait(15)


# Handlers


def test_the_orm_inside_complete_is_the_completing_transaction(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def pay(job: RunningJob[dict[str, Any]]) -> str:
        with job.prepare():
            Order.objects.using(ALIAS).create(id=job.input["order"])
        with job.complete():
            assert connections[ALIAS].in_atomic_block
            Order.objects.using(ALIAS).filter(pk=job.input["order"]).update(state="paid")
            app.start_chain("ship", conn=ALIAS)
        if job.input["fail"]:
            raise RuntimeError("too late")
        return "done"

    paid, failed = app.start_chain(pay, {"order": 1, "fail": False}), app.start_chain(pay, {"order": 2, "fail": True})
    assert app.drain() == 2
    assert found(app.get_chain(paid.id)).output == "done"
    assert found(app.get_chain(failed.id)).status == "failed"
    assert orders() == {1: "paid", 2: "new"}
    assert len(app.list_chains(types=["ship"]).items) == 1
    assert not connections[ALIAS].in_atomic_block


@contextmanager
def in_block(app: Queuert, block: str) -> Iterator[Any]:
    """One of the library's blocks, and what it gives as a connection."""
    if block == "transaction":
        with app.transaction() as conn:
            yield conn
        return
    with app.complete_chain(app.list_chains().items[0].id, conn=ALIAS if block == "complete_chain on an alias" else None):
        yield connections[ALIAS]


@pytest.mark.parametrize("around", [nullcontext, atomic], ids=["", "inside atomic"])
@pytest.mark.parametrize("block", ["transaction", "complete_chain", "complete_chain on an alias"])
def test_a_call_without_conn_inside_a_block_takes_part_in_it(app: Queuert, block: str, around: Any) -> None:
    first = app.start_chain("ship")
    if block == "complete_chain on an alias":
        around = atomic
    with around(), in_block(app, block) as conn:
        made = app.start_chain("ship")
        assert app.get_chain(made) is not None
        with app.complete_chain(made) as tail:
            assert tail.id == made.id
        assert app.cancel_chain(made).status == "cancelled"
        with pytest.raises(TransactionRequiredError, match=r"conn='shop'"):  # a transaction in a transaction
            app.transaction().__enter__()
        Order.objects.using(ALIAS).create(id=1)
        for given in (conn, ALIAS, connections[ALIAS]):
            app.start_chain("ship", conn=given)
    assert orders() == {1: "new"}
    assert chains(app) == 5
    with suppress(ZeroDivisionError), around(), in_block(app, block):
        app.start_chain("ship")
        raise ZeroDivisionError
    assert chains(app) == 5
    assert app.get_chain(first) is not None


def test_a_service_works_in_a_view_and_in_a_handler(app: Queuert) -> None:
    def ship(order: int) -> None:
        """Of the application: it knows of no connection."""
        Order.objects.using(ALIAS).create(id=order)
        app.start_chain("ship")

    @app.job(max_attempts=1)
    def pay(job: RunningJob[bool]) -> None:
        with job.prepare():
            app.start_chain("ship")
        with job.complete():
            ship(1)
        app.start_chain("ship")
        if job.input:
            raise RuntimeError("too late")

    failing, good = app.start_chain(pay, True), app.start_chain(pay, False)
    assert app.drain(types=["pay"]) == 2
    assert found(app.get_chain(failing)).status == "failed"
    assert found(app.get_chain(good)).status == "completed"
    # What the failing one prepared, and all of the good one.
    assert len(app.list_chains(types=["ship"]).items) == 1 + 3
    assert orders() == {1: "new"}
    with atomic():
        ship(2)
    assert len(app.list_chains(types=["ship"]).items) == 5


def test_complete_inside_atomic_is_one_transaction_that_ends_with_the_handler(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def pay(job: RunningJob[dict[str, Any]]) -> str:
        with atomic():
            Order.objects.using(ALIAS).create(id=job.input["order"])
            with job.complete():
                app.start_chain("ship", conn=ALIAS)
        if job.input["fail"]:
            raise RuntimeError("too late")
        return "done"

    paid, failed = app.start_chain(pay, {"order": 1, "fail": False}), app.start_chain(pay, {"order": 2, "fail": True})
    with app.worker(types=["pay"]):
        assert app.wait_for(paid, timeout=20).output == "done"
        assert app.wait_for(failed, timeout=20, raise_on_failure=False).status == "failed"
    assert orders() == {1: "new"}
    assert len(app.list_chains(types=["ship"]).items) == 1


def test_sql_that_fails_in_complete_is_recorded(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        with job.complete():
            with pytest.raises(IntegrityError), atomic():
                Order.objects.using(ALIAS).create(id=1)
            Order.objects.using(ALIAS).create(id=1)

    Order.objects.using(ALIAS).create(id=1)
    chain = app.start_chain(pay)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.error_code) == ("failed", "INTERNAL:IntegrityError")


def test_a_locked_database_is_recorded_as_one(request: pytest.FixtureRequest, kind: str) -> None:
    """As the driver's own error would be, which Django hides in one of its own."""
    where = target(request, kind)
    options: dict[str, Any] = {} if kind == "postgres" else {"OPTIONS": {"timeout": 0.1}}
    with django_database(database_settings(where, **options)), make_app() as app:
        Order.objects.using(ALIAS).create(id=1)

        @app.job(max_attempts=1)
        def pay(job: RunningJob[None]) -> None:
            with locked_orders(where), atomic():
                Order.objects.using(ALIAS).select_for_update(nowait=kind == "postgres").get(pk=1)
                Order.objects.using(ALIAS).update(state="paid")

        chain = app.start_chain(pay)
        app.drain()
        job = app.get_job(chain.id)
        assert job is not None
        assert (job.status, job.error_code) == ("failed", "DEPENDENCY:DB_LOCKED")


def test_the_drivers_error_is_found_behind_several_of_djangos() -> None:
    failed, broken = OperationalError("database is locked"), transaction.TransactionManagementError("the block has failed")
    assert error_code(failed) == "INTERNAL:OperationalError"
    failed.__cause__ = sqlite3.OperationalError("database is locked")
    broken.__cause__ = failed
    assert error_code(failed) == error_code(broken) == "DEPENDENCY:DB_LOCKED"


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_handler_that_ends_the_transaction_with_sql_does_not_complete(app: Queuert, statement: str) -> None:
    @app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        with job.complete(), connections[ALIAS].cursor() as cursor:
            cursor.execute(statement)

    chain = app.start_chain(pay)
    app.drain()
    job = app.get_job(chain.id)
    assert job is not None
    assert (job.status, job.error_code) == ("failed", "INTERNAL:TransactionMisuseError")
    app.start_chain("ship")


def test_what_a_handler_does_after_its_commit_may_write(app: Queuert) -> None:
    @app.job
    def pay(job: RunningJob[None]) -> None:
        with job.complete():
            transaction.on_commit(lambda: app.start_chain("ship"), using=ALIAS)

    chain = app.start_chain(pay)
    with app.worker():
        app.wait_for(chain, timeout=20)
        eventually(lambda: len(app.list_chains(types=["ship"]).items) == 1)


def test_atomic_in_a_handler_outside_of_complete_is_a_transaction_of_its_own(app: Queuert) -> None:
    @app.job(max_attempts=1)
    def pay(job: RunningJob[None]) -> None:
        with atomic():
            Order.objects.using(ALIAS).create(id=1)
        raise RuntimeError

    app.start_chain(pay)
    app.drain()
    assert orders() == {1: "new"}


def test_a_worker_runs_many_jobs(app: Queuert, entry: dict[str, Any]) -> None:
    @app.job
    def pay(job: RunningJob[dict[str, int]]) -> int:
        with job.complete():
            Order.objects.using(ALIAS).create(id=job.input["order"])
        return job.input["order"]

    made = [app.start_chain(pay, {"order": number}) for number in range(40)]
    with app.worker(concurrency=4):
        assert [app.wait_for(chain, timeout=60).output for chain in made] == list(range(40))
    assert len(orders()) == 40


def test_jobs_run_inside_a_transaction_that_is_never_committed(app: Queuert) -> None:
    """As in a TestCase."""

    @app.job(continues_with=["second"])
    def first(job: RunningJob[None]) -> Any:
        with job.complete():
            Order.objects.using(ALIAS).create(id=1)
            return job.continue_with("second")

    @app.job(entry=False)
    def second(job: RunningJob[None]) -> str:
        Order.objects.using(ALIAS).update(state="shipped")
        return "done"

    with undone():
        chain = app.start_chain(first)
        assert app.drain() == 2
        assert found(app.get_chain(chain.id)).output == "done"
        assert orders() == {1: "shipped"}
    assert chains(app) == 0
    assert orders() == {}


# Connections


@pytest.fixture
def pg_app(request: pytest.FixtureRequest) -> Iterator[Queuert]:
    with django_database(database_settings(target(request, "postgres"))), make_app() as app:
        yield app


def backends(url: str) -> set[int]:
    """The sessions of others on this database."""
    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        ).fetchall()
        return {row[0] for row in rows}


def test_a_handlers_connection_is_closed_after_the_job_as_after_a_request(pg_app: Queuert, empty_pg_url: str) -> None:
    used: list[int] = []

    @pg_app.job
    def look(job: RunningJob[None]) -> None:
        Order.objects.using(ALIAS).count()
        used.append(connections[ALIAS].connection.info.backend_pid)

    with pg_app.worker():
        pg_app.wait_for(pg_app.start_chain(look), timeout=20)
        eventually(lambda: used[0] not in backends(empty_pg_url))


def test_connections_are_kept_between_jobs_where_django_keeps_them(request: pytest.FixtureRequest) -> None:
    entry = database_settings(target(request, "postgres"), CONN_MAX_AGE=60)
    used: list[int] = []
    with django_database(entry), make_app() as app:

        @app.job
        def look(job: RunningJob[None]) -> None:
            Order.objects.using(ALIAS).count()
            used.append(connections[ALIAS].connection.info.backend_pid)

        with app.worker():
            for _ in range(3):
                app.wait_for(app.start_chain(look), timeout=20)
        assert len(set(used)) == 1


def test_connections_are_checked_before_a_job_where_django_checks_them(request: pytest.FixtureRequest) -> None:
    url = str(target(request, "postgres"))
    used: list[int] = []
    with django_database(database_settings(url, CONN_MAX_AGE=60, CONN_HEALTH_CHECKS=True)), make_app() as app:

        @app.job(max_attempts=1)
        def look(job: RunningJob[None]) -> None:
            Order.objects.using(ALIAS).count()
            used.append(connections[ALIAS].connection.info.backend_pid)

        with app.worker():
            app.wait_for(app.start_chain(look), timeout=20)
            with psycopg.connect(url, autocommit=True) as killer:
                killer.execute("SELECT pg_terminate_backend(%s)", used)
            eventually(lambda: used[0] not in backends(url))
            app.wait_for(app.start_chain(look), timeout=20)
        assert len(set(used)) == 2


def test_a_worker_leaves_no_connection_behind(pg_app: Queuert, empty_pg_url: str) -> None:
    pg_app.job("noop")(lambda job: None)
    with pg_app.worker(concurrency=2):
        pg_app.wait_for(pg_app.start_chain("noop"), timeout=20)
    pg_app.close()
    connections[ALIAS].close()
    eventually(lambda: not backends(empty_pg_url))


def test_a_connection_that_died_is_replaced(pg_app: Queuert, empty_pg_url: str) -> None:
    pg_app.start_chain("ship")
    victims = backends(empty_pg_url)
    with psycopg.connect(empty_pg_url, autocommit=True) as killer:
        for pid in victims:
            killer.execute("SELECT pg_terminate_backend(%s)", [pid])
    connection = connections[ALIAS].connection
    eventually(lambda: connection.info.backend_pid not in backends(empty_pg_url))
    pg_app.start_chain("ship")
    assert chains(pg_app) == 2


def test_stricter_isolation_in_the_settings_works(request: pytest.FixtureRequest) -> None:
    level = {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ}
    with django_database(database_settings(target(request, "postgres"), OPTIONS=level)), make_app() as app:
        app.job("noop")(lambda job: None)
        with app.transaction() as conn:
            assert conn.execute("SHOW transaction_isolation").fetchone()[0] == "read committed"
            app.start_chain("noop", conn=conn)
        assert app.drain() == 1


@pytest.mark.parametrize("block", ["joined", "own"])
def test_under_a_fixed_snapshot_no_job_is_left_waiting(request: pytest.FixtureRequest, block: str) -> None:
    """A job that was made to wait after the transaction began is not seen by it: completing the chain must not pass it over."""
    url = target(request, "postgres")
    level = {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ}
    with django_database(database_settings(url, OPTIONS=level)), make_app() as app, Queuert(url) as other:
        other.declare("pack")
        first = app.start_chain("ship")
        with atomic():
            assert chains(app) == 1
            waiting = other.start_chain("pack", blockers=[first])
            with (
                pytest.raises(StaleSnapshotError),
                app.complete_chain(first.id, conn=ALIAS if block == "joined" else None) as tail,
            ):
                tail.finish(None)
        with app.complete_chain(first.id) as tail:
            tail.finish(None)
        assert found(other.get_chain(waiting.id)).status == "pending"


def test_djangos_own_pool_is_shared_by_all_threads(request: pytest.FixtureRequest) -> None:
    import django

    if django.VERSION < (5, 1):
        pytest.skip("Django has pools since 5.1")
    entry = database_settings(target(request, "postgres"), OPTIONS={"pool": {"min_size": 1, "max_size": 3, "timeout": 10}})
    with django_database(entry), make_app() as app:

        @app.job
        def pay(job: RunningJob[dict[str, int]]) -> int:
            with job.complete():
                Order.objects.using(ALIAS).create(id=job.input["order"])
            return job.input["order"]

        made = [app.start_chain(pay, {"order": number}) for number in range(12)]
        connections[ALIAS].close()
        with app.worker(concurrency=4):
            for chain in made:
                eventually(partial(_closed, app, chain.id), 30)
        assert len(orders()) == 12


def _closed(app: Queuert, chain_id: str) -> bool:
    chain = app.get_chain(chain_id)
    connections[ALIAS].close()
    return chain is not None and chain.status == "completed"


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_forked_child_has_connections_of_its_own(app: Queuert) -> None:
    def work() -> None:
        with atomic():
            app.start_chain("ship")

    app.start_chain("ship")
    assert [forked(work), forked(work)] == [0, 0]
    app.start_chain("ship")
    assert chains(app) == 4


@needs_fork
def test_what_a_child_committed_stays_when_its_parent_closes_the_file(app: Queuert) -> None:
    app.start_chain("ship")
    assert chains_around_a_close(app, connections[ALIAS].close) == 0
    assert chains(app) == 3


@needs_fork
def test_a_file_that_was_in_use_is_refused_to_a_child(sqlite_path: Path) -> None:
    with django_database(database_settings(sqlite_path)), make_app() as app:
        Order.objects.using(ALIAS).bulk_create(Order(id=number) for number in range(10))
        with atomic():
            app.start_chain("ship")
            assert forked(lambda: app.start_chain("ship")) == 2
        reading = Order.objects.using(ALIAS).iterator(chunk_size=1)
        next(reading)
        assert forked(lambda: app.start_chain("ship")) == 2
        assert len(list(reading)) == 9, "what the parent reads is left alone"

        done = threading.Event()
        elsewhere = threading.Thread(target=lambda: (app.start_chain("ship"), done.wait(30), connections[ALIAS].close()))
        elsewhere.start()
        eventually(lambda: chains(app) == 2)
        assert forked(lambda: app.start_chain("ship")) == 2, "another thread has it open"
        done.set()
        elsewhere.join()
        assert forked(lambda: app.start_chain("ship")) == 0
        assert chains(app) == 3


def test_a_sqlite_file_is_switched_to_wal(sqlite_path: Path) -> None:
    with django_database(database_settings(sqlite_path)):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("CREATE TABLE before_us (x)")
        with make_app() as app:
            app.start_chain("ship")
        with connections[ALIAS].cursor() as cursor:
            assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_name_of_a_file_may_be_a_uri(sqlite_path: Path) -> None:
    path = sqlite_path.with_name("my shop.db")
    entry = database_settings(path, OPTIONS={"uri": True}) | {"NAME": path.as_uri() + "?cache=private"}
    ran = threading.Event()
    with django_database(entry), make_app() as app, Queuert(path) as other:
        app.job("noop")(lambda job: ran.set())
        other.declare("noop")
        with app.worker(poll_interval=60):
            other.start_chain("noop")  # seen by watching the file
            assert ran.wait(15)


def test_others_that_write_all_the_time_do_not_starve_a_transaction_that_read_first(sqlite_path: Path) -> None:
    neighbour = BusyNeighbour(sqlite_path)
    with django_database(database_settings(sqlite_path)), make_app() as app:
        database_of(app).run(neighbour.work)
        assert orders() == {100: "theirs", 1: "ours"}
    assert (neighbour.wrote, neighbour.kept_out) == (1, 1)


def test_a_query_that_is_still_being_read_is_named_where_it_is_in_the_way(sqlite_path: Path) -> None:
    with django_database(database_settings(sqlite_path)), make_app() as app:
        Order.objects.using(ALIAS).bulk_create(Order(id=number) for number in range(10))
        reading = Order.objects.using(ALIAS).iterator(chunk_size=1)
        next(reading)
        app.start_chain("ship")
        with closing(sqlite3.connect(sqlite_path)) as other:
            other.execute("UPDATE orders SET state = 'theirs'")
            other.commit()
        if sys.version_info >= (3, 11):  # before, the driver does not tell
            with pytest.raises(StaleSnapshotError, match="still being read"):
                app.start_chain("ship")
            with pytest.raises(StaleSnapshotError, match="still being read"), app.transaction():
                pass
        assert len(list(reading)) == 9
        app.start_chain("ship")
        assert chains(app) == 2


# What cannot work


def test_an_unknown_alias_is_named_with_those_there_are() -> None:
    with pytest.raises(UnsupportedDatabaseError, match=r"no database 'nowhere'.*'default'"):
        Queuert(DjangoProvider("nowhere"))
    with pytest.raises(TypeError, match="alias"):
        DjangoProvider(3)  # type: ignore[arg-type]  # wrong on purpose


def test_another_engine_is_refused() -> None:
    with (
        django_database({"ENGINE": "django.db.backends.dummy", "NAME": "x"}),
        pytest.raises(UnsupportedDatabaseError, match=r"sqlite3 and django\.db\.backends\.postgresql"),
    ):
        Queuert(DjangoProvider(ALIAS))


def test_autocommit_off_is_refused(sqlite_path: Path) -> None:
    with (
        django_database(database_settings(sqlite_path, AUTOCOMMIT=False)),
        pytest.raises(UnsupportedDatabaseError, match="AUTOCOMMIT"),
    ):
        Queuert(DjangoProvider(ALIAS))


def test_psycopg_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with django_database(database_settings("postgresql://localhost/x")):
        monkeypatch.setattr(connections[ALIAS].Database, "__name__", "psycopg2")
        with pytest.raises(UnsupportedDatabaseError, match="psycopg 3"):
            Queuert(DjangoProvider(ALIAS))


def test_missing_tables_name_djangos_command(entry: dict[str, Any]) -> None:
    with django_database(entry), Queuert(DjangoProvider(ALIAS)) as app:
        app.declare("ship")
        with pytest.raises(SchemaVersionError, match=r"manage\.py migrate"):
            app.start_chain("ship")
        app.job("noop")(lambda job: None)
        with pytest.raises(SchemaVersionError, match=r"manage\.py migrate"):
            app.worker().start()


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with django_database(database_settings("postgresql://me:secret-word@127.0.0.1:1/none")):
        app = Queuert(DjangoProvider(ALIAS))
        with pytest.raises(DatabaseUnavailableError, match="cannot be reached") as raised:
            app.stats()
        assert "secret-word" not in str(raised.value)


def test_a_file_on_a_read_only_disk_is_named(sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path)) as conn:
        conn.execute("CREATE TABLE before_us (x)")
    entry = database_settings(sqlite_path, OPTIONS={"uri": True}) | {"NAME": f"file:{sqlite_path}?mode=ro"}
    with django_database(entry), Queuert(DjangoProvider(ALIAS)) as app:
        app.job("noop")(lambda job: None)
        for call in (app.migrate, app.stats, app.worker().start):
            with pytest.raises(DatabaseUnavailableError, match=r"test\.db cannot be used with WAL.*readonly"):
                call()


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.test import override_settings

    from queuert.contrib.django.conf import _make

    wrong: list[tuple[Any, str]] = [
        ([], "dict"),
        ({"DATABSE": "default"}, "DATABSE"),
        ({"DATABASE": "nowhere"}, "nowhere"),
        ({"HISTORY": "some"}, "history"),
        ({"APP": "no.such.module"}, "APP"),
        ({"APP": "djangosite.ALIAS"}, "DjangoProvider"),
        ({"APP": "djangosite.ALIAS", "DATABASE": "default"}, "DATABASE"),
    ]
    for value, message in wrong:
        with override_settings(QUEUERT=value), pytest.raises(ImproperlyConfigured, match=message):
            _make()

"""Effects that wait for the commit."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.inside import notifier_of

from queuert import Chain, Queuert
from queuert.notify.protocol import Channel, Notice


def test_effects_run_in_order_after_a_clean_exit(app: Queuert) -> None:
    ran: list[int] = []
    with app.hooks() as hooks:
        for number in range(3):
            hooks.on_commit(partial(ran.append, number))
        assert ran == []
    assert ran == [0, 1, 2]


def test_an_exception_drops_them(app: Queuert) -> None:
    ran: list[int] = []
    with suppress(ZeroDivisionError), app.hooks() as hooks:
        hooks.on_commit(lambda: ran.append(1))
        raise ZeroDivisionError
    with app.hooks():
        pass
    assert ran == []


def test_a_rolled_back_savepoint_drops_what_was_in_it(app: Queuert) -> None:
    ran: list[str] = []
    with app.hooks() as hooks:
        hooks.on_commit(lambda: ran.append("before"))
        with hooks.savepoint():
            hooks.on_commit(lambda: ran.append("kept"))
        with suppress(ZeroDivisionError), hooks.savepoint():
            hooks.on_commit(lambda: ran.append("lost"))
            with hooks.savepoint():
                hooks.on_commit(lambda: ran.append("lost too"))
            raise ZeroDivisionError
        with hooks.savepoint(), suppress(ZeroDivisionError), hooks.savepoint():
            raise ZeroDivisionError
        hooks.on_commit(lambda: ran.append("after"))
    assert ran == ["before", "kept", "after"]


def test_nested_hooks_are_part_of_the_outer_ones(app: Queuert) -> None:
    ran: list[str] = []
    with app.hooks() as outer:
        outer.on_commit(lambda: ran.append("outer"))
        with app.hooks() as inner:
            inner.on_commit(lambda: ran.append("inner"))
        assert ran == []
        with suppress(ZeroDivisionError), app.hooks() as inner:
            inner.on_commit(lambda: ran.append("lost"))
            raise ZeroDivisionError
    assert ran == ["outer", "inner"]


def test_an_effect_that_raises_is_logged_and_loses_no_other(app: Queuert, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    def explode() -> None:
        raise RuntimeError("the effect is broken")

    with caplog.at_level(logging.ERROR), app.hooks() as hooks:
        hooks.on_commit(lambda: ran.append("first"))
        hooks.on_commit(explode)
        hooks.on_commit(lambda: ran.append("last"))
    assert ran == ["first", "last"]
    assert "the effect is broken" in caplog.text


def test_an_effect_may_use_the_app_and_add_effects(app: Queuert) -> None:
    app.declare("work")
    started: list[Chain] = []
    with app.hooks() as hooks:
        hooks.on_commit(lambda: started.append(app.start_chain("work")))
        hooks.on_commit(lambda: hooks.on_commit(lambda: started.append(app.start_chain("work"))))
    assert len(started) == len(app.list_chains().items) == 2


def test_only_callables_are_effects(app: Queuert) -> None:
    with app.hooks() as hooks, pytest.raises(TypeError):
        hooks.on_commit("not callable")  # type: ignore[arg-type]  # wrong on purpose


def test_hooks_belong_to_a_thread(app: Queuert) -> None:
    ran: list[str] = []

    def other() -> None:
        with app.hooks() as hooks:
            hooks.on_commit(lambda: ran.append("other"))

    with app.hooks() as hooks:
        hooks.on_commit(lambda: ran.append("mine"))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert ran == ["other"]
    assert ran == ["other", "mine"]


@contextmanager
def listening(app: Queuert) -> Iterator[list[Notice]]:
    heard: list[Notice] = []
    with notifier_of(app).subscribe(heard.append, channels=set(Channel)):
        yield heard


@contextmanager
def users_connection(app: Queuert, target: str) -> Iterator[Any]:
    """A connection of the user's own, in a transaction."""
    if target.startswith("sqlite"):
        conn = sqlite3.connect(Path(target.removeprefix("sqlite:///")), isolation_level=None)
        app.configure_connection(conn)
        conn.execute("BEGIN IMMEDIATE")
        try:
            yield conn
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            conn.close()
    else:
        import psycopg

        with psycopg.connect(target) as pg:
            yield pg
            pg.rollback()


def test_notices_of_a_users_transaction_wait_for_the_exit(app: Queuert, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has no other connections")
    app.declare("work")
    notice = Notice(Channel.SCHEDULED, "work")
    with listening(app) as heard:
        with users_connection(app, target) as conn, app.hooks():
            app.start_chain("work", conn=conn)
            assert notice not in heard
            conn.commit()
        assert notice in heard, "told by this process itself, at once"


def test_notices_of_a_failed_transaction_are_not_told(app: Queuert, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has no other connections")
    app.declare("work")
    with listening(app) as heard:
        with users_connection(app, target) as conn, suppress(ZeroDivisionError), app.hooks():
            app.start_chain("work", conn=conn)
            raise ZeroDivisionError
        assert Notice(Channel.SCHEDULED, "work") not in heard
    assert app.list_chains().items == []


def test_notices_of_a_transaction_of_the_app_come_after_its_commit(app: Queuert) -> None:
    app.declare("work")
    notice = Notice(Channel.SCHEDULED, "work")
    with listening(app) as heard:
        with app.transaction() as tx:
            app.start_chain("work", conn=tx)
            assert notice not in heard
        assert notice in heard
        heard.clear()
        with suppress(ZeroDivisionError), app.transaction() as tx:
            app.start_chain("work", conn=tx)
            raise ZeroDivisionError
        assert notice not in heard

"""A SQLite file that is replaced or removed under a running app: it is noticed and said, and nothing is written to nowhere."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from support import eventually

from queuert import Queuert, Status
from queuert.errors import DatabaseUnavailableError
from queuert.sqlite import files


@pytest.fixture(autouse=True)
def _looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_EVERY", 0.0)


def _made(path: Path) -> Path:
    with Queuert(path) as app:
        app.migrate()
    return path


def test_a_replaced_file_is_noticed_and_the_new_one_is_used(sqlite_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = _made(sqlite_path.with_name("other.db"))
    with Queuert(_made(sqlite_path)) as app, caplog.at_level(logging.ERROR, "queuert.sqlite"):
        app.declare("work")
        before = app.start_chain("work")
        for ending in ("-wal", "-shm"):  # as whoever restores a backup does: they belong to the old one
            os.remove(f"{sqlite_path}{ending}")
        os.replace(other, sqlite_path)
        after = app.start_chain("work")
        assert app.get_chain(before.id) is None
        assert app.get_chain(after.id) is not None
        assert caplog.text.count("was replaced by another file") == 1
    with Queuert(sqlite_path) as again:
        assert again.get_chain(after.id) is not None, "it is in the file that has the name"


def test_a_removed_file_is_said_and_none_is_made_in_its_place(sqlite_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Queuert(_made(sqlite_path)) as app, caplog.at_level(logging.ERROR, "queuert.sqlite"):
        app.declare("work")
        chain = app.start_chain("work")
        kept = sqlite_path.with_name("kept.db")
        app.vacuum()
        os.rename(sqlite_path, kept)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailableError, match="was removed while it was in use"):
                app.start_chain("work")
            with pytest.raises(DatabaseUnavailableError, match="was removed while it was in use"):
                app.get_chain(chain.id)
        assert not sqlite_path.exists()
        assert caplog.text.count("was removed while it was in use") == 1
        os.rename(kept, sqlite_path)
        assert app.start_chain("work").status is Status.PENDING


def test_a_worker_waits_for_a_removed_file_and_goes_on_with_it(sqlite_path: Path) -> None:
    with Queuert(_made(sqlite_path)) as app:
        ran: list[int] = []

        @app.job("work")
        def work(job: Any) -> None:
            ran.append(job.input)

        with app.worker(poll_interval=0.05):
            app.start_chain("work", 1)
            eventually(lambda: ran == [1])
            kept = sqlite_path.with_name("kept.db")
            os.rename(sqlite_path, kept)
            with pytest.raises(DatabaseUnavailableError):
                app.start_chain("work", 2)
            os.rename(kept, sqlite_path)
            app.start_chain("work", 3)
            eventually(lambda: 3 in ran)


def test_a_look_is_not_taken_for_every_statement(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_EVERY", 3600.0)
    with Queuert(_made(sqlite_path)) as app:
        app.declare("work")
        looks: list[str] = []
        look = files._identity
        app.start_chain("work")
        app.stats()
        monkeypatch.setattr(files, "_identity", lambda path: looks.append(path) or look(path))
        for _ in range(10):
            app.start_chain("work")
            app.stats()
        assert looks == []

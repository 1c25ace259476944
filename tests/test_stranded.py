"""Jobs that are blocked though all that they wait for has completed: counted as stranded, and freed by housekeeping."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support import eventually

from queuert import Queuert, Status
from queuert.app import context_of
from queuert.chains import stranded
from queuert.chains.stranded import Releaser


def _complete_by_hand(app: Queuert, chain_id: str) -> None:
    with app.transaction() as tx:
        tx.execute(f"UPDATE queuert_job SET status = 'completed' WHERE id = '{chain_id}'")


def _stranded(app: Queuert, number: int = 1) -> list[str]:
    app.declare("part")
    parts = [app.start_chain("part") for _ in range(2)]
    waiting = [app.start_chain("join", blockers=parts) for _ in range(number)]
    for part in parts:
        _complete_by_hand(app, part.id)
    return [chain.id for chain in waiting]


def test_a_job_whose_blockers_have_all_completed_counts_as_stranded(app: Queuert) -> None:
    app.declare("join")
    _stranded(app)
    assert app.stats().stranded == 1


def test_one_that_still_has_an_open_blocker_does_not(app: Queuert) -> None:
    app.declare("join")
    app.declare("part")
    parts = [app.start_chain("part") for _ in range(2)]
    waiting = app.start_chain("join", blockers=parts)
    _complete_by_hand(app, parts[0].id)
    assert app.stats().stranded == 0
    assert Releaser(context_of(app)).release() == []
    assert app.get_chain(waiting.id).status is Status.BLOCKED


def test_a_worker_frees_it_and_runs_it(app: Queuert) -> None:
    @app.job("join")
    def join(job: Any) -> str:
        return "done"

    (waiting,) = _stranded(app)
    with app.worker(poll_interval=0.1, types=["join"]):
        assert app.wait_for(waiting, timeout=20).output == "done"
    assert app.stats().stranded == 0
    assert "UNBLOCKED" in [entry.event for entry in app.timeline(waiting)]


def test_it_goes_through_pages(app: Queuert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranded, "PAGE", 2)
    app.declare("join")
    waiting = _stranded(app, 5)
    releaser, freed = Releaser(context_of(app)), []
    for _ in range(4):
        freed += releaser.release()
    assert sorted(freed) == sorted(waiting)


def test_what_somebody_has_locked_is_left_for_the_next_time(pg_url: str) -> None:
    with Queuert(pg_url) as app:
        app.declare("join")
        (waiting,) = _stranded(app)
        releaser = Releaser(context_of(app))
        with app.transaction() as tx:
            tx.execute(f"SELECT 1 FROM queuert_job WHERE id = '{waiting}' FOR UPDATE")
            thread_freed: list[Any] = []
            thread = threading.Thread(target=lambda: thread_freed.append(releaser.release()))
            thread.start()
            eventually(lambda: thread_freed == [[]])
            thread.join()
        assert releaser.release() == [waiting]

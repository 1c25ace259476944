"""Processes that fork after they have used the library: each child has its own connections, threads and locks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from forking import CHILDREN
from support.audit import check_no_orphans, ledger, rows, statuses
from support.fleet import Fleet
from workload import make_types

from queuert import Queuert

pytestmark = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")


@pytest.fixture
def forking(client: Queuert, url: str, tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, Path(__file__).with_name("forking.py"), url=url)


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(("how", "busy"), [("fork", False), ("fork", True), ("multiprocessing", True)])
def test_a_child_uses_the_app_while_its_parent_goes_on(client: Queuert, url: str, forking: Fleet, how: str, busy: bool) -> None:
    with forking.explained():
        parent = forking.start(how=how, busy=busy)
        try:
            assert parent.wait(60) == 0
        finally:
            forking.end()
        ((*_, found),) = forking.marks.all("found")
        assert found["codes"] == [0] * CHILDREN
        assert found["parent"] == [True] * (CHILDREN + 1)
        assert found["running"]
        if not busy:
            assert found["kept"], "a child's end took a connection of its parent away"
        assert sorted(mark.detail for mark in forking.marks.all("child done")) == list(range(CHILDREN))

        # Whatever was enqueued anywhere is there, and was done once.
        leaves = [job_id for (job_id,) in rows(client, "SELECT id FROM queuert_job WHERE type_name = 'leaf'")]
        assert len(leaves) == CHILDREN + found["enqueued"]
        with Queuert(url) as app:
            app.include(make_types(forking.marks))
            app.drain(timeout=30)
        assert set(statuses(client)) == {"completed"}
        assert ledger(client) == dict.fromkeys(leaves, 1)
        check_no_orphans(client)

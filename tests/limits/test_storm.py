"""Workers are killed all the time, and a limit is never exceeded."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from storm import make_app

from queuert import NewChain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

JOBS = 240
KILLS = 8


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_place_too_many_while_workers_are_killed(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path / 'storm.db'}" if kind == "sqlite" else request.getfixturevalue("pg_url")
    directory = tmp_path / "locks"
    directory.mkdir()
    dice = random.Random(11)
    script = str(Path(__file__).with_name("storm.py"))

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, url, str(directory)], stderr=subprocess.DEVNULL)

    with make_app(url) as app:
        app.migrate()
        app.start_chains(
            [NewChain(dice.choice(("single", "pair")), {"key": dice.choice("abc")}) for _ in range(JOBS)],
        )
        workers = [spawn() for _ in range(3)]
        deadline, killed = time.monotonic() + 150, 0
        try:
            while app.stats().by_status.get("completed", 0) < JOBS:
                assert time.monotonic() < deadline, app.stats().by_status
                time.sleep(0.25)
                if killed < KILLS and app.stats().by_status.get("completed", 0):
                    victim = workers.pop(dice.randrange(len(workers)))
                    victim.kill()
                    victim.wait()
                    killed += 1
                    workers.append(spawn())
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert killed
        assert not list(directory.glob("violation-*"))
        assert not [each for each in app.limits() if each.running or each.waiting]

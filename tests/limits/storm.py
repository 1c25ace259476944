"""A worker process of the storm: its handlers take one of as many locks as the limit of their key allows.

The locks are the operating system's, which takes them back when a process dies. One that finds none is a place too many.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
from pathlib import Path

from queuert import Backoff, Lease, Limit, Queuert, RunningJob

PLACES = {"a": 1, "b": 2, "c": 2}


def make_app(url: str, directory: Path | None = None) -> Queuert:
    app = Queuert(url)
    options = {"lease": Lease(1.5), "backoff": Backoff(initial=0, jitter=0), "max_attempts": None}

    def run(key: str, places: int) -> None:
        assert directory is not None
        files = [os.open(directory / f"{key}-{n}", os.O_CREAT | os.O_RDWR) for n in range(places)]
        try:
            for file in files:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                time.sleep(random.uniform(0, 0.03))
                return
            (directory / f"violation-{key}-{os.getpid()}").touch()
        finally:
            for file in files:
                os.close(file)

    @app.job("single", limit=Limit(1, key="key"), **options)  # type: ignore[arg-type]
    def single(job: RunningJob[dict[str, str]]) -> None:
        run(job.input["key"], 1)

    @app.job("pair", limit=Limit(2, name="pair"), **options)  # type: ignore[arg-type]
    def pair(job: RunningJob[dict[str, str]]) -> None:
        run("pair", 2)

    return app


if __name__ == "__main__":
    make_app(sys.argv[1], Path(sys.argv[2])).worker(concurrency=4, reap_interval=0.3).run()

"""What SQLite's errors mean, and a file that is full, read-only or broken under a worker."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import eventually, found

from queuert import Queuert
from queuert.sqlite.errors import CODES, trouble
from queuert.storage.trouble import Trouble


def test_every_result_code_has_its_place() -> None:
    assert sorted(CODES) == list(range(1, 27))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the module tells no codes before Python 3.11")
@pytest.mark.parametrize("code", sorted(CODES))
def test_extended_codes_mean_what_their_primary_code_means(code: int) -> None:
    for extended in (code, code | 3 << 8):
        error = sqlite3.OperationalError("it went wrong")
        error.sqlite_errorcode = extended
        assert trouble(error) is CODES[code]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT * FROM nothing", Trouble.SET_UP),
        ("SELECT nothing", Trouble.SET_UP),
        ("SELECT json_extract('{', '$.a')", Trouble.JOB),
        ("INSERT INTO t VALUES (NULL)", Trouble.JOB),
        ("INSERT INTO t VALUES (1)", Trouble.JOB),
        ("INSERT INTO t VALUES (zeroblob(10000000))", Trouble.OUTAGE),
    ],
)
def test_what_the_library_itself_reports(sql: str, kind: Trouble) -> None:
    conn = sqlite3.connect(":memory:")
    conn.executescript("CREATE TABLE t (n NOT NULL UNIQUE); INSERT INTO t VALUES (1); PRAGMA max_page_count = 20")
    with pytest.raises(sqlite3.Error) as raised:
        conn.execute(sql).fetchall()
    assert trouble(raised.value) is kind


FULL = """
    import logging, resource, signal, sys
    from queuert import Queuert, RunningJob

    logging.basicConfig(filename=sys.argv[2])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    app = Queuert(sys.argv[1])
    ran = []

    @app.job("fill", max_attempts=1)
    def fill(job: RunningJob[int]) -> str:
        ran.append(job.id)
        return "x" * 200_000

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    print("ready", flush=True)
    with app.worker(concurrency=4, poll_interval=0.1) as worker:
        for line in sys.stdin:
            size = int(line)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))
            print("set", flush=True)
            if size < 0:
                break
        for line in sys.stdin:
            break
        print(len(ran), worker.error, flush=True)
"""


def test_a_file_that_may_not_grow_holds_results_until_it_may(sqlite_path: Path) -> None:
    log = sqlite_path.with_suffix(".log")
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.declare("fill", max_attempts=1)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FULL), f"sqlite:///{sqlite_path}", str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(text: str) -> str:
            process.stdin.write(text + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert process.stdout.readline().strip() == "ready"
        assert tell(str(os.path.getsize(sqlite_path) + 500_000)) == "set"
        chains = [app.start_chain("fill", number) for number in range(20)]
        eventually(lambda: "trying again" in log.read_text(), 20)
        assert tell("-1") == "set"
        for chain in chains:
            assert app.wait_for(chain, timeout=30).status == "completed"
            assert [attempt.outcome for attempt in app.attempts(chain.id)] == ["succeeded"]
        ran, error = tell("end").split(" ", 1)
        assert (ran, error) == ("20", "None")
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_broken_set_up_stops_the_worker_and_the_job_goes_back(sqlite_path: Path) -> None:
    with Queuert(sqlite_path) as app:
        app.migrate()
        app.job("work", max_attempts=1)(lambda job: "done")
        with app.transaction() as tx:
            tx.execute("CREATE TABLE audit (n)")
            tx.execute(
                "CREATE TRIGGER audited AFTER UPDATE ON queuert_job WHEN NEW.status = 'completed'"
                " BEGIN INSERT INTO audit VALUES (1); END"
            )
            tx.execute("DROP TABLE audit")
        chain = app.start_chain("work")
        worker = app.worker()
        worker.start()
        eventually(lambda: worker.error is not None)
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            worker.stop(10)
        job = found(app.get_job(chain.id))
        assert (job.status, job.attempts_used, job.leased_by) == ("pending", 0, None)
        with app.transaction() as tx:
            tx.execute("CREATE TABLE audit (n)")
        with app.worker():
            assert app.wait_for(chain, timeout=10).output == "done"

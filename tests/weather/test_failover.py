"""A real streaming standby is promoted under load: first it is read-only, then it is the server, and nothing was lost."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support import eventually
from weather import Weather

from queuert import Backoff, Lease, NewChain, Queuert, RunningJob

JOBS = 200


def as_server() -> list[str]:
    """The server refuses to run as root, so it runs as somebody else then."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the server refuses root, and there is no setpriv here")
    user = "postgres" if subprocess.run(["id", "postgres"], capture_output=True, check=False).returncode == 0 else "nobody"
    number = subprocess.run(["id", "-u", user], capture_output=True, text=True, check=True).stdout.strip()
    group = subprocess.run(["id", "-g", user], capture_output=True, text=True, check=True).stdout.strip()
    return ["setpriv", f"--reuid={number}", f"--regid={group}", "--clear-groups"]


class Pair:
    """A primary, and a standby that follows it synchronously."""

    def __init__(self, base: Path, bin_: Path) -> None:
        self._base, self._bin, self._as = base, bin_, as_server()
        if self._as:
            shutil.chown(base, int(self._as[1].split("=")[1]), int(self._as[2].split("=")[1]))
        self.ports = [_free_port(), _free_port()]
        self._run("initdb", "-D", "primary", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        with (base / "primary/postgresql.conf").open("a") as settings:
            settings.write(f"fsync = off\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{base}'\n")
        self._start("primary", self.ports[0])
        source = ("-h", "127.0.0.1", "-p", str(self.ports[0]), "-U", "postgres")
        self._run("pg_basebackup", "-D", "standby", "-R", "-X", "stream", "-c", "fast", *source)
        self._start("standby", self.ports[1])
        self.urls = [f"postgresql://postgres@127.0.0.1:{port}/postgres" for port in self.ports]
        with psycopg.connect(self.urls[0], autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            conn.execute("SELECT pg_reload_conf()")
            streaming = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            eventually(lambda: conn.execute(streaming).fetchone() == (1,), 20)

    def lose_primary(self) -> None:
        self._run("pg_ctl", "-D", "primary", "-m", "immediate", "-w", "stop")

    def promote(self) -> None:
        self._run("pg_ctl", "-D", "standby", "-w", "promote")

    def end(self) -> None:
        for name in ("primary", "standby"):
            if (self._base / name / "postmaster.pid").exists():
                self._run("pg_ctl", "-D", name, "-m", "immediate", "-w", "stop")

    def _start(self, name: str, port: int) -> None:
        self._run("pg_ctl", "-D", name, "-l", f"{name}.log", "-o", f"-p {port}", "-w", "start")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._bin / program), *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._base), "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=self._base, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_basebackup"))
    if not found:
        pytest.skip("no PostgreSQL server with pg_basebackup is installed here (Debian's package is postgresql)")
    base = Path(tempfile.mkdtemp(prefix="queuert-pair-"))
    pair = None
    try:
        pair = Pair(base, Path(found[-1]).parent)
        yield pair
    finally:
        if pair is not None:
            pair.end()
        shutil.rmtree(base, ignore_errors=True)


def test_a_standby_is_promoted_under_load(pair: Pair) -> None:
    with Queuert(pair.urls[0]) as client:
        client.migrate()
        with client.transaction() as tx:
            tx.execute("CREATE TABLE ledger (job_id text NOT NULL)")
        client.declare("write", max_attempts=1)
        client.declare("plain", max_attempts=1)
        kinds = [NewChain("write" if number % 2 else "plain", number, max_attempts=1) for number in range(JOBS)]
        chains = client.start_chains(kinds)
    with Weather(pair.urls[0]) as weather, Queuert(weather.url) as app:
        options = {"lease": Lease(duration=60), "backoff": Backoff(initial=0.05, jitter=0), "max_attempts": 1}

        @app.job("write", **options)
        def write(job: RunningJob[int]) -> None:
            with job.complete() as tx:
                tx.execute("INSERT INTO ledger VALUES (%s)", (job.id,))
                tx.execute("SELECT pg_sleep(0.01)")

        app.job("plain", **options)(lambda job: job.input)
        with app.worker(concurrency=4, poll_interval=0.2, reap_interval=0.3) as worker:
            with psycopg.connect(pair.urls[0], autocommit=True) as looker:
                some = "SELECT count(*) > 10 FROM queuert_job WHERE status = 'completed'"
                eventually(lambda: looker.execute(some).fetchone() == (True,), 20)
            pair.lose_primary()
            weather.retarget(pair.urls[1])
            with psycopg.connect(pair.urls[1], autocommit=True) as looker:
                refused = "SELECT sum(xact_rollback) > 5 FROM pg_stat_database WHERE datname = current_database()"
                eventually(lambda: looker.execute(refused).fetchone() == (True,), 40)
                assert worker.running
                pair.promote()
                open_ = "SELECT count(*) FROM queuert_job WHERE status <> 'completed'"
                eventually(lambda: looker.execute(open_).fetchone() == (0,), 60, every=0.1)
                written = Counter(row[0] for row in looker.execute("SELECT job_id FROM ledger").fetchall())
            assert worker.error is None
    assert written == {chain.id: 1 for chain in chains if chain.type_name == "write"}

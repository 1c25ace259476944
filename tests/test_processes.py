"""`queuert worker` as real processes, one and several, on both databases: signals, deaths, crash loops."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import eventually

import queuert
from queuert import Chain, Queuert

TASKS = """
import os
from pathlib import Path
from queuert import Backoff, JobTypes, Lease, Queuert, RunningJob

app = Queuert(os.environ["TASKS_URL"])
tasks = JobTypes(lease=Lease(duration=1), backoff=Backoff(initial=0.1, jitter=0))

@tasks.job("hold")
def hold(job: RunningJob[str]) -> int:
    Path(f"{job.input}-{job.id}").touch()
    while not Path(job.input).exists() and not job.signal.wait(0.02):
        pass
    return os.getpid()

@tasks.job("pid")
def pid(job: RunningJob[None]) -> int:
    return os.getpid()

app.include(tasks)
empty = Queuert(os.environ["TASKS_URL"])
"""
STARTED = re.compile(r"has started: pid (\d+)")


class Process:
    """A `queuert worker`, with what it logged."""

    def __init__(self, directory: Path, url: str, *options: str) -> None:
        self.log = directory / f"log-{time.monotonic_ns()}"
        source = str(Path(queuert.__file__).parents[1])
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "queuert", "worker", *options],
                cwd=directory,
                env={**os.environ, "TASKS_URL": url, "PYTHONPATH": source},
                stderr=log,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def started(self) -> list[int]:
        """The process ids of all children so far."""
        return [int(found) for found in STARTED.findall(self.text)]

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.started if is_alive(pid)]

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout: float = 15) -> int:
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"It did not end:\n{self.text}") from None


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("pg_url")
    return found


@pytest.fixture
def client(url: str) -> Iterator[Queuert]:
    with Queuert(url) as app:
        app.migrate()
        for name in ("hold", "pid"):
            app.declare(name)
        yield app


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    (tmp_path / "tasks.py").write_text(TASKS)
    processes: list[Process] = []

    def run(*options: str) -> Process:
        processes.append(Process(tmp_path, url, *options))
        return processes[-1]

    yield run
    for process in processes:
        process.popen.kill()
        process.popen.wait()
        for pid in process.alive:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """While this file is not there, `hold` jobs go on."""
    return tmp_path / "gate"


def holder(client: Queuert, chain: Chain) -> int | None:
    """The process that runs the chain's job now."""
    job = client.get_job(chain.id)
    if job is None or job.status != "running" or job.leased_by is None:
        return None
    return int(job.leased_by.split(":")[-2])


def hold(client: Queuert, gate: Path, number: int) -> list[Chain]:
    return [client.start_chain("hold", str(gate)) for _ in range(number)]


def run_by(client: Queuert, chains: list[Chain]) -> list[int]:
    """Wait until the handlers of all of them run; in which processes."""
    pids = eventually(lambda: all(found := [holder(client, chain) for chain in chains]) and found, 20)
    for chain in chains:  # a job that was claimed and not yet started is given back by a stop
        eventually(lambda chain=chain: Path(f"{chain.input}-{chain.id}").exists())
    return [pid for pid in pids if pid is not None]


# One process


def test_one_process_runs_jobs_and_ends_at_sigterm(client: Queuert, start: Start) -> None:
    process = start("tasks:app", "-c", "2", "--name", "alone")
    chain = client.wait_for(client.start_chain("pid"), timeout=20)
    assert chain.output == process.popen.pid
    job = client.get_job(chain.id)
    assert job is not None
    assert (job.completed_by or "").startswith("alone@")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_process_lets_running_jobs_finish(client: Queuert, start: Start, gate: Path, number: int) -> None:
    process = start("tasks:app")
    (chain,) = hold(client, gate, 1)
    run_by(client, [chain])
    process.signal(number)
    eventually(lambda: "stops on" in process.text)
    gate.touch()
    assert process.wait() == 0
    found = client.get_chain(chain)
    assert found is not None
    assert found.output == process.popen.pid


def test_only_the_types_that_were_asked_for(client: Queuert, start: Start, gate: Path) -> None:
    (held,) = hold(client, gate, 1)
    start("tasks:app", "--types", "pid")
    client.wait_for(client.start_chain("pid"), timeout=20)
    job = client.get_job(held.id)
    assert job is not None
    assert job.attempt == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["tasks:app", "--types", "nonsense"], "nonsense"),
        (["tasks:empty"], "no handlers"),
        (["tasks:app", "--exclude", "nonsense"], "nonsense"),
        (["tasks:app", "--exclude", "hold,pid"], "leaves no job type"),
        (["tasks:app", "-c", "5000"], "concurrency"),
    ],
)
def test_a_worker_that_makes_no_sense(start: Start, options: list[str], says: str) -> None:
    process = start(*options)
    assert process.wait() == 2
    assert says in process.text
    assert "Traceback" not in process.text


def test_all_types_but_some_until_nothing_is_ready(client: Queuert, start: Start, gate: Path) -> None:
    (left,) = hold(client, gate, 1)
    client.pause("hold")
    client.start_chain("pid")
    assert start("tasks:app", "--until-empty").wait(30) == 0, "what is paused is not waited for"
    client.resume("hold")
    chains = [client.start_chain("pid") for _ in range(5)]
    process = start("tasks:app", "-c", "2", "--exclude", "hold", "--until-empty")
    assert process.wait(30) == 0
    assert "Nothing is ready any more" in process.text
    assert all(client.wait_for(chain, timeout=5).status == "completed" for chain in chains)
    job = client.get_job(left.id)
    assert job is not None
    assert (job.status, job.attempt) == ("pending", 0)


# Several processes


def test_several_processes_share_the_work(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "3", "--name", "many")
    chains = hold(client, gate, 3)
    pids = run_by(client, chains)
    assert sorted(pids) == sorted(process.started)
    jobs = [client.get_job(chain.id) for chain in chains]
    assert {(job.leased_by or "").partition("@")[0] for job in jobs if job} == {"many-1", "many-2", "many-3"}
    process.signal(signal.SIGTERM)
    eventually(lambda: process.text.count("stops on SIGTERM") == 3)
    assert len(process.alive) == 3  # their jobs are not done
    gate.touch()
    assert process.wait() == 0
    assert process.alive == []
    for chain in chains:
        job = client.get_job(chain.id)
        assert job is not None
        assert (job.status, job.attempt) == ("completed", 1)


def test_a_killed_child_is_replaced_and_its_job_recovered(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2")
    (chain,) = hold(client, gate, 1)
    (victim,) = run_by(client, [chain])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(process.started) == 3 and len(process.alive) == 2, 20)
    assert victim not in process.alive
    gate.touch()
    ended = client.wait_for(chain, timeout=20)
    assert ended.output in process.started
    assert ended.output != victim
    assert [attempt.outcome for attempt in client.attempts(chain.id)] == ["lost", "succeeded"]
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_the_jobs_of_a_killed_child_are_named(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2")
    (chain,) = hold(client, gate, 1)
    (victim,) = run_by(client, [chain])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: f"Process {victim} had hold {chain.id} in hand" in process.text, 20)
    gate.touch()
    client.wait_for(chain, timeout=20)


def test_several_processes_end_when_nothing_is_ready(client: Queuert, start: Start) -> None:
    chains = [client.start_chain("pid") for _ in range(20)]
    later = client.start_chain("pid", after=3600)
    process = start("tasks:app", "--processes", "2", "--until-empty")
    assert process.wait(30) == 0
    assert {found.status.value for chain in chains if (found := client.get_chain(chain)) is not None} == {"completed"}
    assert process.text.count("is done.") == 2
    waiting = client.get_chain(later)
    assert waiting is not None
    assert waiting.status == "pending"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_missing_schema_ends_it_with_the_reason(
    start: Start, processes: str, url: str, request: pytest.FixtureRequest
) -> None:
    if not url.startswith("sqlite"):
        with Queuert(url) as app, app.transaction() as tx:
            tx.execute("DROP SCHEMA public CASCADE")
            tx.execute("CREATE SCHEMA public")
    process = start("tasks:app", "--processes", processes)
    assert process.wait() == 2
    assert "queuert migrate" in process.text
    assert "Traceback" not in process.text


def test_a_second_signal_is_immediate(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2", "--stop-timeout", "600")
    chains = hold(client, gate, 2)
    run_by(client, chains)
    process.signal(signal.SIGTERM)
    eventually(lambda: process.text.count("stops on SIGTERM") == 2)
    process.signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert process.alive == []
    assert not gate.exists()


def test_ctrl_c_in_a_terminal_counts_once(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2")
    chains = hold(client, gate, 2)
    run_by(client, chains)
    os.killpg(process.popen.pid, signal.SIGINT)  # the whole group in the foreground, as a terminal does
    eventually(lambda: process.text.count("stops on SIGTERM") == 2)
    assert len(process.alive) == 2
    gate.touch()
    assert process.wait() == 0


def test_children_stop_in_order_when_the_supervisor_is_killed(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2")
    chains = hold(client, gate, 2)
    run_by(client, chains)
    process.signal(signal.SIGKILL)
    process.wait()
    eventually(lambda: process.text.count("The supervisor is gone") == 2)
    assert len(process.alive) == 2
    gate.touch()
    eventually(lambda: not process.alive, 20)
    for chain in chains:
        job = client.get_job(chain.id)
        assert job is not None
        assert (job.status, job.attempt) == ("completed", 1)


def test_a_stop_while_the_supervisor_dies_is_not_taken_for_a_second_signal(client: Queuert, start: Start, gate: Path) -> None:
    process = start("tasks:app", "--processes", "2")
    chains = hold(client, gate, 2)
    run_by(client, chains)
    process.signal(signal.SIGTERM)
    eventually(lambda: process.text.count("stops on SIGTERM") == 2)
    process.signal(signal.SIGKILL)
    process.wait()
    gate.touch()
    eventually(lambda: not process.alive, 20)
    assert {client.wait_for(chain, timeout=5).status.value for chain in chains} == {"completed"}


def test_a_wrong_application_ends_the_supervisor(start: Start) -> None:
    process = start("no_such_module:app", "--processes", "2")
    assert process.wait() == 2
    assert "no module 'no_such_module'" in process.text


def test_children_that_do_not_stop_in_time_make_the_exit_code_one(client: Queuert, start: Start, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        f"{TASKS}\nimport threading\n\n@app.job('stubborn')\ndef stubborn(job: RunningJob[str]) -> None:\n"
        "    Path(f'{job.input}-{job.id}').touch()\n    threading.Event().wait()\n"
    )
    client.declare("stubborn")
    process = start("stubborn:app", "--processes", "2", "--stop-timeout", "0.2")
    run_by(client, [client.start_chain("stubborn", str(tmp_path / "stubborn"))])
    process.signal(signal.SIGTERM)
    assert process.wait() == 1
    assert process.alive == []
    assert "stubborn" in process.text


# The supervisor alone, with children that need no database. Whether one was well is a matter of how long it lived.

SCRIPT = """
import sys, time
from pathlib import Path
from queuert.cli.supervisor import Supervisor

child = "import sys, time; open(sys.argv[1], 'a').write(f'{{time.monotonic()}}\\\\n'); time.sleep({lives}); sys.exit({code})"
sys.exit(Supervisor(lambda number, fd: [sys.executable, "-c", child, sys.argv[1]], 1, {options}).run())
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], Callable[[], list[float]]]]]:
    running: list[subprocess.Popen[bytes]] = []

    def run(options: str, *, lives: float = 0, code: int = 1) -> tuple[subprocess.Popen[bytes], Callable[[], list[float]]]:
        starts = tmp_path / "starts"
        source = str(Path(queuert.__file__).parents[1])
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(options=options, lives=lives, code=code), str(starts)],
            env={**os.environ, "PYTHONPATH": source},
            stderr=subprocess.DEVNULL,
        )
        running.append(process)
        return process, lambda: [float(line) for line in starts.read_text().split()] if starts.exists() else []

    yield run
    for process in running:
        process.kill()
        process.wait()


def test_a_crash_loop_backs_off(supervise: Callable[..., tuple[subprocess.Popen[bytes], Callable[[], list[float]]]]) -> None:
    process, starts = supervise("first_delay=0.2, longest_delay=0.8")
    eventually(lambda: len(starts()) >= 6, 30)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts())]
    for gap, delay in zip(gaps, (0.2, 0.4, 0.8, 0.8, 0.8), strict=False):
        assert gap >= delay * 0.95  # the clock of the child starts a little later each time
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (0, 1)  # 1 if a child was just failing


def test_a_child_that_was_well_is_replaced_at_once(
    supervise: Callable[..., tuple[subprocess.Popen[bytes], Callable[[], list[float]]]],
) -> None:
    _, starts = supervise("first_delay=60, well_after=0.05", lives=0.1)
    eventually(lambda: len(starts()) >= 4, 30)


def test_a_wrong_start_is_given_up_only_the_first_time(
    supervise: Callable[..., tuple[subprocess.Popen[bytes], Callable[[], list[float]]]],
) -> None:
    process, starts = supervise("first_delay=0.05", code=2)
    assert process.wait(10) == 2
    assert len(starts()) == 1


def test_a_child_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    script = """
import logging, sys
from queuert.cli import supervisor
logging.basicConfig(level="INFO")
supervisor.KILL_AFTER = 0.2
child = "import signal, sys; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w').close(); signal.pause()"
run = supervisor.Supervisor(lambda number, fd: [sys.executable, "-c", child, f"{sys.argv[1]}-{number}"], 2)
sys.exit(run.run())
"""
    source = str(Path(queuert.__file__).parents[1])
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "ready")],
            env={**os.environ, "PYTHONPATH": source},
            stderr=stream,
        )
    try:
        eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2, 20)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: "finish their running jobs" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert not [pid for pid in map(int, STARTED.findall(log.read_text())) if is_alive(pid)]


def test_a_stop_while_children_are_starting_is_graceful(client: Queuert, start: Start) -> None:
    process = start("tasks:app", "--processes", "3")
    eventually(lambda: len(process.started) == 3)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.alive == []

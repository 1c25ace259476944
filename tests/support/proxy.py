"""A TCP proxy in front of a PostgreSQL server, which can lose what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

from psycopg.conninfo import conninfo_to_dict

Fault = Literal["lose the answer", "lose the request"]


class Proxy:
    """Forwards every connection; cuts the one that sends `needle`, before or after the server has done what it asks.

    with Proxy(pg_url) as proxy:
        proxy.arm(b"COMMIT", "lose the answer")
        psycopg.connect(proxy.url)
    """

    def __init__(self, url: str, *, password: str = "unused") -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._needle: bytes | None = None
        self._fault: Fault = "lose the answer"
        self._times = 0
        self._lock = threading.Lock()
        self.cuts = 0
        port = self._listener.getsockname()[1]
        user = self._server.get("user") or "postgres"
        secret = self._server.get("password") or password
        self.url = f"postgresql://{user}:{secret}@127.0.0.1:{port}/{self._server['dbname']}?sslmode=disable"
        threading.Thread(target=self._accept, name="test-proxy", daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def arm(self, needle: bytes, fault: Fault, times: int = 1) -> None:
        with self._lock:
            self._needle, self._fault, self._times = needle, fault, times

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server, muted = self._connect(), threading.Event()
            for source, sink, sent in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, sink, sent, muted), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = str(self._server.get("host") or "localhost"), int(self._server.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _forward(self, source: socket.socket, sink: socket.socket, sent: bool, muted: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if sent and self._hit(data):
                    if self._fault == "lose the request":
                        break
                    muted.set()
                if muted.is_set() and not sent:
                    break  # the server has done it; nobody hears the answer
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hit(self, data: bytes) -> bool:
        with self._lock:
            if self._needle is None or self._times <= 0 or self._needle not in data:
                return False
            self._times -= 1
            self.cuts += 1
            return True

"""A small server for the dashboard of one machine; in production any WSGI server does it better."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from queuert.dashboard.access import is_loopback
from queuert.dashboard.settings import Settings
from queuert.dashboard.wsgi import Dashboard


class _Handler(WSGIRequestHandler):
    timeout = 30  # seconds for a client that sends nothing

    def log_message(self, format: str, *args: object) -> None:
        """Pages look every two seconds: that is no news."""

    def address_string(self) -> str:
        return str(self.client_address[0])


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _SixServer(_Server):
    address_family = socket.AF_INET6


class DashboardServer:
    """Serves a dashboard on an address until it is stopped."""

    def __init__(self, dashboard: Dashboard, host: str, port: int) -> None:
        refuse_open_address(dashboard.settings, host)
        kind = _SixServer if ":" in host else _Server
        self._server = make_server(host, port, dashboard, server_class=kind, handler_class=_Handler)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}{dashboard.settings.base_path}/"

    def serve(self) -> None:
        """Serve in this thread, until another one calls `stop`."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()

    def start(self) -> threading.Thread:
        """Serve in a thread of its own."""
        thread = threading.Thread(target=self.serve, name="queuert-dashboard", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        self._server.shutdown()


def refuse_open_address(settings: Settings, host: str) -> None:
    """An address that others can reach needs somebody who asks them who they are."""
    if settings.open and not is_loopback(host):
        raise ValueError(
            f"Other machines can reach {host!r}: give the dashboard a token or authenticate=, or serve it on 127.0.0.1."
        )

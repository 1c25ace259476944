"""What `queuert worker --health PORT` serves: `/healthz`, `/readyz` and `/metrics`, for probes and for Prometheus.

`/healthz` is about this process: its threads make progress. It does not ask the database, so that an outage restarts nobody:
the workers wait it out with their results in hand. `/readyz` is about the database: it answers a question. Each is 200 with
`"ok": true`, or 503 and what is wrong.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from queuert import Queuert, Worker
from queuert.app import context_of
from queuert.cli.exits import UsageError
from queuert.cli.messages import hide_secrets, message_of

logger = logging.getLogger("queuert.health")

PATIENCE: Final = 5.0  # seconds for the database to answer in
JSON: Final = "application/json"

Answer = tuple[int, str, bytes]


@contextmanager
def serving(app: Queuert, worker: Worker, port: int | None) -> Iterator[None]:
    """Serve while the worker runs; port 0 is any that is free."""
    if port is None:
        yield
        return
    pages = _pages(app, worker)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            code, kind, body = (404, JSON, _json(error="There are /healthz, /readyz and /metrics.")) if page is None else page()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise UsageError(f"Port {port} cannot be served: {error.strerror}.") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="queuert-health", daemon=True)
    thread.start()
    logger.info("Health and metrics are served on port %d.", server.server_address[1])
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _pages(app: Queuert, worker: Worker) -> dict[str, Callable[[], Answer]]:
    try:
        from queuert import metrics
    except ImportError as error:
        missing = str(error)
        text: Callable[[], Answer] = lambda: (501, JSON, _json(error=missing))  # noqa: E731
    else:
        found = metrics.of(app)
        text = lambda: (200, found.content_type, found.text())  # noqa: E731
    database = _Database(app)
    return {"/healthz": lambda: _healthz(worker), "/readyz": database.answer, "/metrics": text}


def _healthz(worker: Worker) -> Answer:
    stuck = worker.stuck_threads()
    problem = None
    if worker.error is not None:
        problem = f"The worker died of {type(worker.error).__name__}."
    elif stuck:
        problem = f"Threads that make no progress: {', '.join(stuck)}."
    body = _json(ok=problem is None, worker=worker.id, running=worker.running, stuck=stuck, error=problem)
    return (200 if problem is None else 503), JSON, body


class _Database:
    """Asks the database, one question at a time, and does not wait for ever for an answer."""

    def __init__(self, app: Queuert) -> None:
        self._context = context_of(app)
        self._lock = threading.Lock()

    def answer(self) -> Answer:
        result: list[str | None] = []
        asked = threading.Event()

        def ask() -> None:
            try:
                with self._lock:
                    self._context.read(None, self._context.repository.clock)
                result.append(None)
            except Exception as error:  # whatever the driver raises
                result.append(hide_secrets(message_of(error)))
            finally:
                self._context.database.thread_ends()
                asked.set()

        threading.Thread(target=ask, name="queuert-health-question", daemon=True).start()
        problem = (result or [None])[0] if asked.wait(PATIENCE) else f"The database has not answered for {PATIENCE:g} s."
        return (200 if problem is None else 503), JSON, _json(ok=problem is None, error=problem)


def _json(**facts: Any) -> bytes:
    return json.dumps({name: value for name, value in facts.items() if value is not None}).encode() + b"\n"

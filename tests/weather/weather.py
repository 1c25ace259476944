"""Makes a PostgreSQL server refuse an act of ours with an error of any code, while it lasts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

SET_UP = """
    CREATE TABLE fault (act text PRIMARY KEY, code text NOT NULL);
    CREATE SEQUENCE fault_seen;

    CREATE FUNCTION meet_fault() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        met text := CASE
            WHEN TG_OP = 'INSERT' THEN 'start'
            WHEN NEW.status = 'running' AND OLD.status = 'pending' THEN 'claim'
            WHEN NEW.status = 'running' THEN 'renew'
            WHEN NEW.status = 'completed' THEN 'complete'
            WHEN OLD.status = 'running' AND OLD.leased_until < clock_timestamp() THEN 'reap'
            WHEN OLD.status = 'running' THEN 'fail'
            ELSE 'other'
        END;
        raised text;
    BEGIN
        SELECT f.code INTO raised FROM public.fault f WHERE f.act = met;
        IF raised IS NOT NULL THEN
            PERFORM nextval('public.fault_seen');
            RAISE EXCEPTION 'the weather is bad' USING ERRCODE = raised;
        END IF;
        RETURN NEW;
    END
    $$;

    CREATE TRIGGER meet_fault BEFORE INSERT OR UPDATE ON queuert_job FOR EACH ROW EXECUTE FUNCTION meet_fault();
"""


class PostgresFaults:
    """A trigger on the job table raises what a side table names: a real error of the real server, with its SQLSTATE."""

    def __init__(self, url: str) -> None:
        self._conn: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._conn.execute(SET_UP)

    def __enter__(self) -> PostgresFaults:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def begin(self, act: str, code: str) -> None:
        self._conn.execute("INSERT INTO fault (act, code) VALUES (%s, %s)", (act, code))

    def end(self) -> None:
        self._conn.execute("DELETE FROM fault")

    @property
    def met(self) -> int:
        """How often something was refused; a sequence keeps what a rollback would undo."""
        [row] = self._conn.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM fault_seen").fetchall()
        return int(row[0])

    def execute(self, sql: str, *params: object) -> list[Any]:
        cursor = self._conn.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


class Weather:
    """A proxy in front of a PostgreSQL server: it cuts connections, delays them, or lets nothing through any more."""

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[_Passage] = []
        self.delay = 0.0
        port = self._listener.getsockname()[1]
        user, secret = self._server.get("user") or "postgres", self._server.get("password") or "unused"
        self.url = f"postgresql://{user}:{secret}@127.0.0.1:{port}/{self._server['dbname']}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._accept, name="test-weather", daemon=True).start()

    def __enter__(self) -> Weather:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def black_hole(self) -> None:
        """Connections that are open stay open, and carry nothing any more; new ones work."""
        with self._lock:
            for passage in self._open:
                passage.swallows = True

    def retarget(self, url: str) -> None:
        """From now on another server is behind it, as after a failover."""
        self._server = conninfo_to_dict(url)
        self.cut()

    def half_close(self) -> None:
        """The server's side ends; the client may still send."""
        with self._lock:
            for passage in self._open:
                passage.half_close()

    def cut(self) -> None:
        with self._lock:
            passages, self._open = self._open, []
        for passage in passages:
            passage.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:  # nobody is behind it just now
                client.close()
                continue
            passage = _Passage(client, server, self)
            with self._lock:
                self._open.append(passage)
            passage.start()

    def _connect(self) -> socket.socket:
        host, port = str(self._server.get("host") or "localhost"), int(self._server.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


class _Passage:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket, weather: Weather) -> None:
        self._client, self._server, self._weather = client, server, weather
        self.swallows = False

    def start(self) -> None:
        for source, sink in ((self._client, self._server), (self._server, self._client)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._weather.delay:
                    time.sleep(self._weather.delay)
                if not self.swallows:
                    sink.sendall(data)
        if not self.swallows:
            self.cut()

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

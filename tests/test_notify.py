"""Wake-ups: within a process, between processes on an SQLite file, and through PostgreSQL."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support import eventually

from queuert.notify import Channel, InProcessNotifier, Notice, Notifier
from queuert.postgres import sender as sending
from queuert.postgres.link import Link
from queuert.postgres.listener import PostgresNotifier
from queuert.postgres.session import PostgresSession
from queuert.sqlite.watcher import SqliteFileNotifier

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

SCHEDULED, CHAIN_CLOSED, OWNERSHIP_LOST = Channel
PREFIX = "queuert"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


class Inbox:
    """A callback that remembers what it was told."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def __call__(self, notice: Notice) -> None:
        self.notices.append(notice)

    def count(self, payload: str, channel: Channel = SCHEDULED) -> int:
        return self.notices.count(Notice(channel, payload))

    def wait_for(self, payload: str, channel: Channel = SCHEDULED) -> None:
        eventually(lambda: self.count(payload, channel))


def scheduled(*payloads: str) -> list[Notice]:
    return [Notice(SCHEDULED, payload) for payload in payloads]


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("queuert-notify"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_in_child(work: Callable[[], None]) -> int:
    """Fork, run `work` in the child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    eventually(lambda: not threads(), timeout=5)


# Within a process.


def test_a_subscriber_is_told_before_publish_returns() -> None:
    notifier, inbox = InProcessNotifier(), Inbox()
    with notifier.subscribe(inbox, channels={SCHEDULED}):
        notifier.publish([*scheduled("a", "b", "a"), Notice(CHAIN_CLOSED, "c")])
        assert inbox.notices == scheduled("a", "b")
    notifier.publish(scheduled("late"))
    assert inbox.notices == scheduled("a", "b")


def test_a_raising_subscriber_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    notifier, inbox = InProcessNotifier(), Inbox()

    def broken(notice: Notice) -> None:
        raise RuntimeError("broken subscriber")

    notifier.subscribe(broken, channels=set(Channel))
    notifier.subscribe(inbox, channels=set(Channel))
    notifier.publish(scheduled("a"))
    assert inbox.notices == scheduled("a")
    assert "broken subscriber" in caplog.text
    assert {record.name for record in caplog.records} == {"queuert.notify"}


def test_a_callback_may_subscribe_close_and_publish() -> None:
    notifier, inbox = InProcessNotifier(), Inbox()

    def callback(notice: Notice) -> None:
        subscription.close()
        notifier.subscribe(inbox, channels={SCHEDULED})
        notifier.publish(scheduled("second"))

    subscription = notifier.subscribe(callback, channels={SCHEDULED})
    notifier.publish(scheduled("first"))
    assert inbox.notices == scheduled("second")


def test_closing_ends_all_subscriptions_and_a_new_one_works() -> None:
    notifier, old, new = InProcessNotifier(), Inbox(), Inbox()
    subscription = notifier.subscribe(old, channels={SCHEDULED})
    notifier.close()
    notifier.close()
    subscription.close()
    with notifier.subscribe(new, channels={SCHEDULED}):
        notifier.publish(scheduled("a"))
    assert (old.notices, new.notices) == ([], scheduled("a"))


@needs_fork
def test_a_forked_child_starts_without_its_parents_subscribers() -> None:
    notifier, inbox = InProcessNotifier(), Inbox()
    subscription = notifier.subscribe(inbox, channels={SCHEDULED})
    # As if another thread of the parent had been subscribing at the moment of the fork.
    lock = notifier.buses.get()._lock

    def child() -> None:
        notifier.publish(scheduled("a"))
        subscription.close()
        assert not inbox.notices
        with notifier.subscribe(inbox, channels={SCHEDULED}):
            notifier.publish(scheduled("b"))
        assert inbox.notices == scheduled("b")
        notifier.close()

    with lock:
        assert run_in_child(child) == 0
    notifier.publish(scheduled("c"))
    assert inbox.notices == scheduled("c")


# Between processes on an SQLite file.


@pytest.fixture
def file_notifier(sqlite_path: Path) -> Iterator[SqliteFileNotifier]:
    def open_watcher() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{sqlite_path}?mode=rw", uri=True, isolation_level=None, check_same_thread=False)

    notifier = SqliteFileNotifier(open_watcher)
    yield notifier
    notifier.close()


def create(path: Path, journal: str = "wal") -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute(f"PRAGMA journal_mode = {journal}")
        conn.execute("CREATE TABLE t (a)")


INSERT = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('INSERT INTO t VALUES (1)'); c.commit()"


def commit_in_another_process(path: Path) -> None:
    subprocess.run([sys.executable, "-c", INSERT, path], check=True)


def looks_again(inbox: Inbox) -> bool:
    return {notice.channel for notice in inbox.notices if notice.payload == ""} == set(Channel)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_commit_of_another_process_is_seen(sqlite_path: Path, file_notifier: SqliteFileNotifier, journal: str) -> None:
    create(sqlite_path, journal)
    inbox = Inbox()
    with file_notifier.subscribe(inbox, channels=set(Channel)):
        eventually(lambda: looks_again(inbox))
        for _ in range(3):
            inbox.notices.clear()
            commit_in_another_process(sqlite_path)
            eventually(lambda: looks_again(inbox), timeout=1)


def test_publishing_tells_this_process_at_once(sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    inbox = Inbox()
    with file_notifier.subscribe(inbox, channels={SCHEDULED}):
        file_notifier.publish(scheduled("a"))
        assert inbox.count("a") == 1


def test_the_watcher_waits_for_a_file_that_does_not_exist_yet(
    sqlite_path: Path, file_notifier: SqliteFileNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queuert.notify")
    inbox = Inbox()
    with file_notifier.subscribe(inbox, channels=set(Channel)):
        eventually(lambda: caplog.records)
        assert not sqlite_path.exists()
        create(sqlite_path)
        eventually(lambda: looks_again(inbox))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_file_that_is_replaced_is_opened_again(sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    create(sqlite_path, "delete")
    inbox = Inbox()
    with file_notifier.subscribe(inbox, channels=set(Channel)):
        eventually(lambda: looks_again(inbox))
        other = sqlite_path.with_name("other.db")
        create(other, "delete")
        inbox.notices.clear()
        other.replace(sqlite_path)
        eventually(lambda: looks_again(inbox))
        inbox.notices.clear()
        commit_in_another_process(sqlite_path)
        eventually(lambda: looks_again(inbox), timeout=1)


def test_a_locked_file_is_looked_at_again(sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    create(sqlite_path, "delete")
    inbox = Inbox()
    with file_notifier.subscribe(inbox, channels=set(Channel)):
        eventually(lambda: looks_again(inbox))
        inbox.notices.clear()
        with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as conn:
            conn.execute("BEGIN EXCLUSIVE")
            conn.execute("INSERT INTO t VALUES (1)")
            assert not inbox.notices
            conn.execute("COMMIT")
        eventually(lambda: looks_again(inbox))


def test_the_file_is_watched_while_somebody_is_subscribed(sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    create(sqlite_path)
    first = file_notifier.subscribe(Inbox(), channels={SCHEDULED})
    second = file_notifier.subscribe(Inbox(), channels={SCHEDULED})
    assert threads() == ["queuert-notify-sqlite"]
    first.close()
    first.close()
    assert threads() == ["queuert-notify-sqlite"]
    second.close()
    assert threads() == []


@needs_fork
def test_a_forked_child_watches_the_file_by_itself(sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    create(sqlite_path)
    inbox = Inbox()

    def child() -> None:
        own = Inbox()
        file_notifier.subscribe(own, channels=set(Channel))
        eventually(lambda: looks_again(own))
        own.notices.clear()
        commit_in_another_process(sqlite_path)
        eventually(lambda: looks_again(own))
        file_notifier.close()

    with file_notifier.subscribe(inbox, channels=set(Channel)):
        eventually(lambda: looks_again(inbox))
        inbox.notices.clear()
        assert run_in_child(child) == 0
        eventually(lambda: looks_again(inbox))


# Through PostgreSQL.


class Proxy:
    """Forwards TCP on the loopback interface to the server; can fall silent, or speak to the server by itself."""

    def __init__(self, url: str) -> None:
        self._server = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.links: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._listening.getsockname()
        return make_conninfo("", **{**self._server, "host": host, "port": port, "sslmode": "disable"})

    def fall_silent(self) -> None:
        """Keep the connections that there are, and forward nothing on them any more."""
        for link in self.links:
            self._silent.update(link)

    def run(self, sql: str) -> None:
        """Have the server run a statement on the newest connection, behind its client's back."""
        query = sql.encode() + b"\0"
        self.links[-1][1].sendall(b"Q" + struct.pack("!i", len(query) + 4) + query)

    def close(self) -> None:
        self._listening.close()
        for link in self.links:
            for end in link:
                end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = self._connect()
            self.links.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._server.get("host", "127.0.0.1"), int(self._server.get("port", 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


Make = Callable[..., PostgresNotifier]


@pytest.fixture
def make(empty_pg_url: str) -> Iterator[Make]:
    """Makes notifiers on one database; each is closed after the test."""
    made: list[PostgresNotifier] = []

    def make_one(url: str = empty_pg_url, **options: Any) -> PostgresNotifier:
        connect = options.pop("connect", lambda: psycopg.connect(url, autocommit=True, connect_timeout=5))
        made.append(PostgresNotifier(connect, PREFIX, **options))
        return made[-1]

    yield make_one
    for notifier in made:
        notifier.close()


@pytest.fixture
def proxy(empty_pg_url: str) -> Iterator[Proxy]:
    proxy = Proxy(empty_pg_url)
    yield proxy
    proxy.close()


@pytest.fixture
def admin(empty_pg_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        yield conn


def notify(conn: psycopg.Connection[Any], payload: str, channel: Channel = SCHEDULED) -> None:
    conn.execute("SELECT pg_notify(%s, %s)", (f"{PREFIX}_{channel.value}", payload))


def subscribe(notifier: Notifier) -> Inbox:
    """Subscribe to everything; returns when the listener works, and with an empty inbox."""
    inbox = Inbox()
    notifier.subscribe(inbox, channels=set(Channel))
    eventually(lambda: looks_again(inbox))
    inbox.notices.clear()
    return inbox


def raw_listener(url: str) -> psycopg.Connection[Any]:
    conn = psycopg.connect(url, autocommit=True)
    for channel in Channel:
        conn.execute(f"LISTEN {PREFIX}_{channel.value}")
    return conn


def received(conn: psycopg.Connection[Any], last: str) -> list[str]:
    """The payloads that arrived, up to and without `last`."""
    payloads: list[str] = []
    for notification in conn.notifies(timeout=10):
        if notification.payload == last:
            return payloads
        payloads.append(notification.payload)
    raise AssertionError(f"{last} did not arrive, only {payloads}")


def test_a_notice_reaches_another_process(make: Make) -> None:
    inbox, here = subscribe(make()), Inbox()
    sender = make()
    sender.publish([*scheduled("größe"), Notice(CHAIN_CLOSED, "c"), Notice(OWNERSHIP_LOST, "o")])
    inbox.wait_for("größe")
    inbox.wait_for("c", CHAIN_CLOSED)
    inbox.wait_for("o", OWNERSHIP_LOST)
    assert not here.notices


def test_what_this_process_published_is_delivered_once(make: Make, admin: psycopg.Connection[Any]) -> None:
    notifier = make()
    inbox = subscribe(notifier)
    other = subscribe(make())
    notifier.publish(scheduled("a"))
    assert inbox.notices == scheduled("a")
    other.wait_for("a")
    # Notices arrive in the order of the commits: with this one here, the first has passed.
    notify(admin, "b")
    inbox.wait_for("b")
    assert inbox.notices == scheduled("a", "b")


@pytest.fixture
def begun_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have sent a notice themselves."""
    threads: list[str] = []
    begin = Link.begin

    def recording(self: Link, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        begin(self, *args)

    monkeypatch.setattr(Link, "begin", recording)
    return threads


def rests(notifier: PostgresNotifier) -> bool:
    """Whether the sender has nothing to do, and has had its pause."""
    sender = notifier._senders.get()
    return sender._resting is not None and not sender._begun and time.monotonic() > sender._not_before + sending.PATIENCE


def test_the_first_notice_after_a_pause_is_sent_by_the_one_who_has_it(make: Make, begun_by: list[str]) -> None:
    inbox, notifier = subscribe(make()), make()
    notifier.publish(scheduled("connects"))
    inbox.wait_for("connects")
    me = threading.current_thread().name
    for number in range(3):
        eventually(lambda: rests(notifier))
        notifier.publish(scheduled(f"first {number}"))
        assert begun_by == [me] * (number + 1)
        notifier.publish(scheduled(f"second {number}"))
        assert len(begun_by) == number + 1, "the next ones wait, and go together"
        inbox.wait_for(f"first {number}")
        inbox.wait_for(f"second {number}")
    eventually(lambda: rests(notifier))
    notifier.publish([Notice(CHAIN_CLOSED, "c"), *scheduled("together")])
    assert not notifier._senders.get()._waiting
    inbox.wait_for("c", CHAIN_CLOSED)
    inbox.wait_for("together")
    assert begun_by == [me] * 4


def test_notices_of_many_threads_all_arrive(make: Make) -> None:
    inbox, notifier = subscribe(make()), make()

    def publish(thread: int) -> None:
        for number in range(50):
            notifier.publish(scheduled(f"{thread}-{number}"))
            if number % 10 == 9:
                eventually(lambda: rests(notifier), timeout=30)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for thread_number in range(4):
        for number in range(50):
            inbox.wait_for(f"{thread_number}-{number}")


def test_a_notice_that_was_sent_over_a_dead_connection_is_sent_again(
    make: Make, proxy: Proxy, begun_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ANSWER_WITHIN", 0.3)
    inbox, notifier = subscribe(make()), make(proxy.url)
    notifier.publish(scheduled("before"))
    inbox.wait_for("before")
    eventually(lambda: rests(notifier))
    proxy.fall_silent()
    notifier.publish(scheduled("after"))
    assert len(begun_by) == 1
    inbox.wait_for("after")


def test_a_notice_that_cannot_be_sent_at_once_is_left_to_the_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Link, *args: Any) -> None:
        raise psycopg.OperationalError("the connection is closed")

    inbox, notifier = subscribe(make()), make()
    notifier.publish(scheduled("before"))
    inbox.wait_for("before")
    eventually(lambda: rests(notifier))
    monkeypatch.setattr(Link, "begin", broken)
    notifier.publish(scheduled("after"))
    inbox.wait_for("after")


class SlowConnect:
    """Connects when it is told to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self) -> psycopg.Connection[Any]:
        self.asked.set()
        self.go.wait(10)
        return psycopg.connect(self._url, autocommit=True)


def test_duplicates_that_wait_are_sent_once(make: Make, empty_pg_url: str) -> None:
    connect = SlowConnect(empty_pg_url)
    notifier = make(connect=connect)
    with raw_listener(empty_pg_url) as listener:
        notifier.publish(scheduled("first"))
        assert connect.asked.wait(10)
        for _ in range(50):
            notifier.publish(scheduled("a", "b"))
        connect.go.set()
        notifier.close()
        notifier.publish(scheduled("last"))
        assert sorted(received(listener, "last")) == ["a", "b", "first"]


def test_when_too_much_waits_listeners_are_told_to_look_at_everything(
    make: Make, empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 10)
    connect = SlowConnect(empty_pg_url)
    notifier = make(connect=connect)
    with raw_listener(empty_pg_url) as listener:
        notifier.publish(scheduled("first"))
        assert connect.asked.wait(10)
        notifier.publish([*scheduled(*map(str, range(100))), Notice(CHAIN_CLOSED, "c")])
        connect.go.set()
        notifier.close()
        notifier.publish(scheduled("last"))
        assert sorted(received(listener, "last")) == ["", "c", "first"]


@pytest.mark.parametrize("payload", ["x" * 8000, "a\0b", "\ud800"])
def test_a_payload_that_postgres_cannot_carry_becomes_look_at_everything(make: Make, payload: str) -> None:
    inbox = subscribe(make())
    make().publish(scheduled(payload))
    inbox.wait_for("")


def test_closing_sends_what_waits(make: Make, empty_pg_url: str) -> None:
    notifier = make()
    with raw_listener(empty_pg_url) as listener:
        notifier.publish(scheduled("a"))
        notifier.close()
        assert threads() == []
        assert received(listener, "a") == []


PUBLISH_AND_END = """
import psycopg, sys
from queuert.notify import Channel, Notice
from queuert.postgres.listener import PostgresNotifier
from queuert.postgres.link import Link
notifier = PostgresNotifier(lambda: psycopg.connect(sys.argv[1], autocommit=True), "queuert")
notifier.publish([Notice(Channel.SCHEDULED, "a")])
"""


def test_a_script_that_ends_without_closing_still_sends(empty_pg_url: str) -> None:
    with raw_listener(empty_pg_url) as listener:
        path = os.pathsep.join(filter(None, [*sys.path]))
        subprocess.run(
            [sys.executable, "-c", PUBLISH_AND_END, empty_pg_url], check=True, env={**os.environ, "PYTHONPATH": path}
        )
        assert received(listener, "a") == []


class PlainSession:
    """As much of a session as a notifier needs."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.raw = conn
        self.statements = 0

    def run(self, query: Any, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
        self.statements += 1
        return PostgresSession(self.raw).run(query, params)


def test_in_a_transaction_that_is_not_ours_the_commit_sends(make: Make, empty_pg_url: str) -> None:
    notifier = make()
    inbox = subscribe(notifier)
    with psycopg.connect(empty_pg_url) as conn:
        session: Any = PlainSession(conn)
        notifier.notify_in_transaction(session, scheduled("rolled back"))
        conn.rollback()
        notifier.notify_in_transaction(session, [*scheduled("a", "b", "a"), Notice(CHAIN_CLOSED, "c")])
        notifier.notify_in_transaction(session, [])
        assert session.statements == 2
        conn.commit()
    inbox.wait_for("c", CHAIN_CLOSED)
    inbox.wait_for("a")
    inbox.wait_for("b")
    assert len(inbox.notices) == 3


def test_a_raising_subscriber_does_not_end_the_listener(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    notifier = make()

    def broken(notice: Notice) -> None:
        raise RuntimeError("broken subscriber")

    notifier.subscribe(broken, channels=set(Channel))
    inbox = subscribe(notifier)
    sender = make()
    for payload in ("a", "b"):
        sender.publish(scheduled(payload))
        inbox.wait_for(payload)
    assert threads().count("queuert-notify-listener") == 1
    assert "broken subscriber" in caplog.text


def test_the_callback_may_close_the_last_subscription(make: Make) -> None:
    notifier, called = make(), threading.Event()
    begin = threading.Event()

    def callback(notice: Notice) -> None:
        begin.wait(10)
        subscription.close()
        called.set()

    subscription = notifier.subscribe(callback, channels={SCHEDULED})
    begin.set()
    assert called.wait(10)
    eventually(lambda: threads() == [])


TERMINATE = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def test_terminated_connections_are_replaced(
    make: Make, admin: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queuert.notify")
    inbox = subscribe(make())
    sender = make()
    sender.publish(scheduled("before"))
    inbox.wait_for("before")
    admin.execute(TERMINATE)
    eventually(lambda: looks_again(inbox))
    sender.publish(scheduled("after"))
    inbox.wait_for("after")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize("statement", ["UNLISTEN *", f"UNLISTEN {PREFIX}_sched", f"UNLISTEN {PREFIX}_owls"])
def test_unlisten_behind_our_back_is_noticed(make: Make, proxy: Proxy, admin: psycopg.Connection[Any], statement: str) -> None:
    inbox = subscribe(make(proxy.url, heartbeat=0.3))
    proxy.run(statement)
    eventually(lambda: looks_again(inbox))
    assert len(proxy.links) == 2
    for channel in Channel:
        notify(admin, "after", channel)
        inbox.wait_for("after", channel)


def test_a_listener_whose_socket_goes_nowhere_is_replaced(make: Make, proxy: Proxy, admin: psycopg.Connection[Any]) -> None:
    inbox = subscribe(make(proxy.url, heartbeat=0.3))
    proxy.fall_silent()
    notify(admin, "lost")
    eventually(lambda: looks_again(inbox))
    notify(admin, "after")
    inbox.wait_for("after")
    assert inbox.count("lost") == 0


def test_a_sender_whose_socket_goes_nowhere_is_replaced(make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ANSWER_WITHIN", 0.3)
    inbox = subscribe(make())
    sender = make(proxy.url)
    sender.publish(scheduled("before"))
    inbox.wait_for("before")
    proxy.fall_silent()
    sender.publish(scheduled("after"))
    inbox.wait_for("after")


def test_closing_does_not_wait_for_a_socket_that_goes_nowhere(make: Make, proxy: Proxy) -> None:
    notifier = make(proxy.url)
    subscribe(notifier)
    proxy.fall_silent()
    notifier.publish(scheduled("a"))
    # Only what runs longer than the second that is given to it could still be there.
    notifier.close()
    assert threads() == []


def test_a_healthy_listener_keeps_its_connection_and_delivers_no_pings(make: Make, proxy: Proxy, empty_pg_url: str) -> None:
    with raw_listener(empty_pg_url) as listener:
        inbox = subscribe(make(proxy.url, heartbeat=0.05))
        pings = [notification.payload for notification in listener.notifies(timeout=10, stop_after=30)]
    assert set(pings) == {":ping:"}
    assert len(pings) >= 30
    assert len(proxy.links) == 1
    assert inbox.notices == []


def test_an_outage_is_logged_once_and_never_with_the_password(
    make: Make, empty_pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queuert.notify")
    tries: list[int] = []
    down = threading.Event()
    down.set()

    def connect() -> psycopg.Connection[Any]:
        tries.append(1)
        if down.is_set():
            raise psycopg.OperationalError('could not parse "postgresql://u:hunter2@h/db"')
        return psycopg.connect(empty_pg_url, autocommit=True)

    notifier, inbox = make(connect=connect), Inbox()
    notifier.subscribe(inbox, channels=set(Channel))
    eventually(lambda: len(tries) >= 3)
    down.clear()
    eventually(lambda: looks_again(inbox))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    down.set()
    sender = make(connect=connect)
    sender.publish(scheduled("a"))
    eventually(lambda: len(caplog.records) == 3)
    assert "hunter2" not in caplog.text


def test_one_listener_serves_all_subscribers_and_ends_with_the_last(make: Make, admin: psycopg.Connection[Any]) -> None:
    notifier = make()
    subscriptions = [notifier.subscribe(Inbox(), channels={SCHEDULED}) for _ in range(5)]
    for subscription in subscriptions:
        assert threads() == ["queuert-notify-listener"]
        subscription.close()
        subscription.close()
    assert threads() == []
    inbox = subscribe(notifier)
    notify(admin, "a")
    inbox.wait_for("a")


def test_nothing_leaks_over_many_cycles(make: Make, sqlite_path: Path, file_notifier: SqliteFileNotifier) -> None:
    create(sqlite_path)
    notifier = make()

    def cycle(one: Notifier) -> None:
        one.subscribe(Inbox(), channels=set(Channel)).close()
        one.publish(scheduled("a"))

    for one in (notifier, file_notifier):
        cycle(one)
        one.close()
        before = open_files()
        for _ in range(200):
            cycle(one)
        one.close()
        assert threads() == []
        eventually(lambda before=before: open_files() <= before)


def test_an_idle_sender_ends_and_comes_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, admin: psycopg.Connection[Any]
) -> None:
    monkeypatch.setattr(sending.Sender.__init__, "__kwdefaults__", {"idle": 0.05})
    inbox, notifier = subscribe(make()), make()
    for payload in ("a", "b"):
        notifier.publish(scheduled(payload))
        inbox.wait_for(payload)
        eventually(lambda: "queuert-notify-sender" not in threads())


@needs_fork
def test_a_forked_child_connects_by_itself_and_leaves_its_parent_alone(make: Make, admin: psycopg.Connection[Any]) -> None:
    notifier = make()
    inbox = subscribe(notifier)
    other = subscribe(make())
    notifier.publish(scheduled("parent"))
    other.wait_for("parent")
    inbox.notices.clear()

    def child() -> None:
        own = subscribe(notifier)
        assert not inbox.notices
        notifier.publish(scheduled("child"))
        assert own.notices == scheduled("child")
        notifier.close()

    assert run_in_child(child) == 0
    inbox.wait_for("child")
    other.wait_for("child")
    assert inbox.notices == scheduled("child")
    notify(admin, "still listening")
    inbox.wait_for("still listening")
    notifier.publish(scheduled("still sending"))
    other.wait_for("still sending")


def test_a_channel_name_that_postgres_would_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 63 bytes"):
        PostgresNotifier(lambda: psycopg.connect(""), "p" * 60)


def test_many_payloads_travel_several_in_one_and_none_is_too_long() -> None:
    few, many = [str(n) for n in range(sending.BUNDLE_FROM - 1)], [f"größe-{n:036}" for n in range(1_000)]
    assert sorted(sending.bundled(few)) == sorted(few)
    bundles = sending.bundled(many)
    assert 5 < len(bundles) < 20
    assert all(len(bundle.encode()) <= sending.LONGEST_PAYLOAD for bundle in bundles)
    assert sorted(part for bundle in bundles for part in bundle.split(sending.SEPARATOR)) == sorted(many)
    too_long = ["x" * 20_000, *many[:20]]
    assert "x" * 20_000 in sending.bundled(too_long)

"""Wake-ups through servers of their own: Redis and NATS, with and without hints."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import eventually
from support.servers import Server, free_port, nats_server, redis_server

from queuert import Channel, Notice, Notifier, Queuert, QueuertError
from queuert.notify.in_process import InProcessNotifier
from queuert.notify.nats import NatsNotifier
from queuert.notify.protocol import HintingNotifier
from queuert.notify.redis import RedisNotifier
from queuert.testing.conformance import NotifierConformance

A_MINUTE = 60.0


@dataclass
class Kind:
    """A server, and notifiers that go through it."""

    name: str
    server: Server
    make: Callable[[], HintingNotifier]
    code: str
    """The same notifier, for a program."""
    counts: bool
    """Whether the server keeps hints."""


@pytest.fixture(params=["redis", "nats", "nats without jetstream"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "redis":
        server = redis_server(tmp_path)
        url = f"redis://127.0.0.1:{server.port}/0"
        made = Kind("redis", server, lambda: RedisNotifier(url, heartbeat=0.5), f"RedisNotifier({url!r})", counts=True)
    else:
        options = ["-js", "-sd", str(tmp_path)] if request.param == "nats" else []
        server = nats_server(tmp_path, *options)
        url = f"nats://127.0.0.1:{server.port}"
        made = Kind("nats", server, lambda: NatsNotifier(url, heartbeat=0.5), f"NatsNotifier({url!r})", counts=bool(options))
    server.start()
    yield made
    server.stop()


@pytest.fixture
def notifiers(kind: Kind) -> Iterator[Callable[[], HintingNotifier]]:
    """Each stands for a process of its own: they share nothing but the server."""
    made: list[HintingNotifier] = []

    def make() -> HintingNotifier:
        made.append(kind.make())
        return made[-1]

    yield make
    for notifier in made:
        notifier.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("queuert-notify")]


class Listener:
    """A subscriber that remembers; an idle worker if it wants what it hears of."""

    def __init__(self, notifier: HintingNotifier, *, idle: bool | None = None) -> None:
        self.heard: list[Notice] = []
        wants = None if idle is None else lambda notice: idle and notice.channel is Channel.SCHEDULED
        self.subscription = notifier.subscribe(self.heard.append, channels=set(Channel), wants=wants)
        # The first thing that arrives says that from now on nothing is missed.
        eventually(lambda: self.count(""))
        self.heard.clear()

    def count(self, payload: str, channel: Channel = Channel.SCHEDULED) -> int:
        return self.heard.count(Notice(channel, payload))


def test_other_processes_are_told_on_every_channel(notifiers: Callable[[], HintingNotifier]) -> None:
    listener, publisher = Listener(notifiers()), notifiers()
    publisher.publish([Notice(channel, f"ä {channel.value}") for channel in Channel])
    publisher.publish_all(Channel.CHAIN_CLOSED, ["one", "two"])
    eventually(lambda: listener.count("two", Channel.CHAIN_CLOSED))
    assert {(notice.channel, notice.payload) for notice in listener.heard} == {
        *((channel, f"ä {channel.value}") for channel in Channel),
        (Channel.CHAIN_CLOSED, "one"),
        (Channel.CHAIN_CLOSED, "two"),
    }


def test_this_process_is_told_at_once_and_once(notifiers: Callable[[], HintingNotifier]) -> None:
    notifier = notifiers()
    own, other = Listener(notifier), Listener(notifiers())
    notifier.publish([Notice(Channel.SCHEDULED, "mail")])
    assert own.count("mail") == 1
    eventually(lambda: other.count("mail"))
    notifier.publish([Notice(Channel.SCHEDULED, "last")])
    eventually(lambda: other.count("last"))
    assert own.count("mail") == 1


def test_as_many_idle_workers_look_as_there_are_jobs(kind: Kind, notifiers: Callable[[], HintingNotifier]) -> None:
    idle = [Listener(notifiers(), idle=True) for _ in range(8)]
    busy = Listener(notifiers(), idle=False)
    publisher = notifiers()
    publisher.publish([Notice(Channel.SCHEDULED, "mail", 3)])
    publisher.publish_all(Channel.CHAIN_CLOSED, ["end"])  # behind it, on the same way
    eventually(lambda: all(listener.count("end", Channel.CHAIN_CLOSED) for listener in [*idle, busy]))
    assert busy.count("mail") == 1  # it looks when it is free
    assert sum(listener.count("mail") for listener in idle) == (3 if kind.counts else 8)


def test_an_idle_worker_of_the_process_that_starts_a_job_takes_it(kind: Kind, notifiers: Callable[[], HintingNotifier]) -> None:
    notifier = notifiers()
    own, other = Listener(notifier, idle=True), Listener(notifiers(), idle=True)
    notifier.publish([Notice(Channel.SCHEDULED, "mail")])
    notifier.publish_all(Channel.CHAIN_CLOSED, ["end"])
    eventually(lambda: other.count("end", Channel.CHAIN_CLOSED))
    assert (own.count("mail"), other.count("mail")) == (1, 0)


def test_a_server_that_restarts_is_found_again(
    kind: Kind, notifiers: Callable[[], HintingNotifier], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queuert.notify")
    listener, publisher = Listener(notifiers()), notifiers()
    kind.server.stop()
    publisher.publish([Notice(Channel.SCHEDULED, "meanwhile")])  # neither raises nor waits
    eventually(lambda: any("polling" in record.message for record in caplog.records))
    kind.server.start()
    eventually(lambda: listener.count(""), timeout=20)  # everybody looks once
    publisher.publish([Notice(Channel.SCHEDULED, "after")])
    eventually(lambda: listener.count("after"), timeout=20)


def test_a_server_that_falls_silent_is_given_up(kind: Kind, notifiers: Callable[[], HintingNotifier]) -> None:
    listener, publisher = Listener(notifiers()), notifiers()
    kind.server.freeze()
    began = time.monotonic()
    publisher.publish([Notice(Channel.SCHEDULED, "into the silence")])
    assert time.monotonic() - began < 1  # it does not wait for the server
    time.sleep(1.5)  # three heartbeats: long enough to be noticed
    kind.server.thaw()
    eventually(lambda: listener.count(""), timeout=20)


def test_bad_credentials_are_an_error_at_start(tmp_path: Path) -> None:
    for server, notifier in (
        redis_with_password(tmp_path),
        nats_with_password(tmp_path),
    ):
        server.start()
        try:
            app = Queuert(tmp_path / "app.db", notify=notifier)
            app.migrate()
            app.declare("mail")
            with pytest.raises(QueuertError, match="refuses the notifier") as caught:
                app.worker().start()
            assert "wrong" not in str(caught.value)
            app.close()
        finally:
            server.stop()


def redis_with_password(folder: Path) -> tuple[Server, Notifier]:
    server = redis_server(folder, "--requirepass", "right")
    return server, RedisNotifier(f"redis://:wrong@127.0.0.1:{server.port}/0")


def nats_with_password(folder: Path) -> tuple[Server, Notifier]:
    server = nats_server(folder, "--user", "app", "--pass", "right")
    return server, NatsNotifier(f"nats://127.0.0.1:{server.port}", user="app", password="wrong")


@pytest.mark.parametrize("notifier", [RedisNotifier, NatsNotifier])
def test_bad_options_are_refused(notifier: type[RedisNotifier] | type[NatsNotifier]) -> None:
    with pytest.raises(ValueError, match="prefix"):
        notifier("redis://localhost", prefix="two words")
    with pytest.raises((ValueError, TypeError)):
        notifier("" if notifier is NatsNotifier else "secret@nowhere")
    with pytest.raises((ValueError, TypeError)):
        notifier(17)  # type: ignore[arg-type]


class TestInProcess(NotifierConformance):
    reaches_others = False

    def make(self) -> Notifier:
        return InProcessNotifier()


class TestRemote(NotifierConformance):
    @pytest.fixture(autouse=True)
    def server(self, kind: Kind) -> None:
        self.kind = kind

    def make(self) -> Notifier:
        return self.kind.make()


def test_the_notifier_of_the_documentation_does_what_it_should(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
    own = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1:])
    (tmp_path / "test_own.py").write_text(own)
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_own.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "11 passed" in ran.stdout


WORKER = """
import sys
from queuert import Queuert
from queuert.notify.nats import NatsNotifier
from queuert.notify.redis import RedisNotifier

app = Queuert(sys.argv[1], notify={notifier})

@app.job("mail")
def mail(job):
    return job.input

with app.worker(poll_interval=60):
    print("ready", flush=True)
    sys.stdin.read()
app.close()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("pg_url"))


@pytest.mark.parametrize("way", ["own", "transaction", "bare"])
def test_a_worker_in_another_process_does_not_wait_for_its_poll(kind: Kind, url: str, way: str) -> None:
    app = Queuert(url, notify=kind.make())
    app.migrate()
    app.declare("mail")
    program = textwrap.dedent(WORKER).replace("{notifier}", kind.code)
    worker = subprocess.Popen([sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        for _ in range(3):
            chain = app.wait_for(start(app, url, way), timeout=30)
            assert chain.output == {"n": 1}
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(30) == 0
        app.close()


def start(app: Queuert, url: str, way: str) -> str:
    if way == "own":
        return app.start_chain("mail", {"n": 1}).id
    if way == "transaction":
        with app.transaction() as tx:
            return app.start_chain("mail", {"n": 1}, conn=tx).id
    conn = connect(app, url)
    try:
        identity = app.start_chain("mail", {"n": 1}, conn=conn).id
        conn.commit()  # nobody tells the library
        return identity
    finally:
        conn.close()


def connect(app: Queuert, url: str) -> object:
    if url.startswith("sqlite"):
        import sqlite3

        conn = sqlite3.connect(url.removeprefix("sqlite:///"))
        app.configure_connection(conn)
        return conn
    import psycopg

    return psycopg.connect(url)


class Broken(Notifier):
    """A notifier of one's own in which nothing works."""

    def publish(self, notices: object) -> None:
        raise RuntimeError("publish")

    def subscribe(self, callback: object, *, channels: object) -> object:  # type: ignore[override]
        raise RuntimeError("subscribe")

    def close(self) -> None:
        raise RuntimeError("close")


def test_a_notifier_that_raises_costs_a_wake_up_and_nothing_else(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Queuert(url, notify=Broken()) as app:
        app.migrate()

        @app.job("mail")
        def mail(job: object) -> None: ...

        with app.worker(poll_interval=0.05):
            app.wait_for(app.start_chain(mail), timeout=30, poll_interval=0.05)
    assert {"publish", "subscribe", "close"} <= {str(r.exc_info[1]) for r in caplog.records if r.exc_info}


def test_a_port_where_nobody_is_costs_only_wake_ups(url: str) -> None:
    for notifier in (RedisNotifier(f"redis://127.0.0.1:{free_port()}/0"), NatsNotifier(f"nats://127.0.0.1:{free_port()}")):
        with Queuert(url, notify=notifier) as app:
            app.migrate()

            @app.job("mail")
            def mail(job: object) -> None: ...

            with app.worker(poll_interval=A_MINUTE):
                app.wait_for(app.start_chain(mail), timeout=30)  # this process needs no server

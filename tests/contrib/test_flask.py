"""The Flask extension: factories, contexts, configuration, commands, Flask-SQLAlchemy."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import command_names, run, started
from support.inside import context_of
from support.waiting import eventually

flask = pytest.importorskip("flask")

from queuert import JobTypes, Queuert, RunningJob  # noqa: E402 - only where Flask is installed
from queuert.contrib.flask import FlaskQueuert  # noqa: E402 - as above
from queuert.errors import QueuertError, SchemaVersionError  # noqa: E402 - as above
from queuert.testing import advance  # noqa: E402 - as above


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        found: str = request.getfixturevalue("empty_pg_url")
        return found
    return f"sqlite:///{request.getfixturevalue('sqlite_path')}"


def make_app(queue: FlaskQueuert, **config: Any) -> Any:
    app = flask.Flask("shop")
    app.config.update(config)
    queue.init_app(app)
    return app


def test_types_are_defined_before_and_after_init_app(url: str) -> None:
    queue = FlaskQueuert()
    ran: list[str] = []

    @queue.job
    def before(job: RunningJob[str]) -> None:
        ran.append(f"{flask.current_app.name} {job.input}")

    app = make_app(queue, QUEUERT_DATABASE=url)

    @queue.job
    def after(job: RunningJob[str]) -> None:
        ran.append(f"{flask.current_app.name} {job.input}")

    with app.app_context():
        queue.migrate()
        queue.start_chain(before, "one")
        queue.start_chain(after, "two")
    assert queue.drain() == 2
    assert sorted(ran) == ["shop one", "shop two"]
    assert not flask.has_app_context()
    queue.close()


def test_each_application_has_its_own_queue(tmp_path: Path) -> None:
    queue = FlaskQueuert()
    queue.declare("mail")
    first, second = (make_app(queue, QUEUERT_DATABASE=f"sqlite:///{tmp_path}/{n}.db") for n in "ab")
    with pytest.raises(QueuertError, match="app_context"):
        queue.stats()
    for app in (first, second):
        with app.app_context():
            queue.migrate()
    with first.app_context():
        queue.start_chain("mail")
        assert isinstance(queue.queuert, Queuert)
        assert len(queue.list_chains().items) == 1
    with second.app_context():
        assert queue.list_chains().items == []


def test_tasks_and_schedules_belong_to_the_current_application(tmp_path: Path) -> None:
    queue, more = FlaskQueuert(), JobTypes()

    @queue.periodic(60)
    @queue.task
    def tick(n: int = 1) -> str:
        return f"{flask.current_app.name} {n}"

    @more.task
    def other(n: int) -> int:
        return n

    queue.include(more)
    for start in (tick.start, lambda: other.start(1)):
        with pytest.raises(QueuertError, match="No application"):
            start()
    first, second = (make_app(queue, QUEUERT_DATABASE=f"sqlite:///{tmp_path}/{n}.db") for n in "ab")
    with pytest.raises(QueuertError, match="Several applications"):
        tick.start()
    for app in (first, second):
        with app.app_context():
            queue.migrate()
    with first.app_context():
        chains = [tick.start(5), tick.using(priority=1).start(), other.start(3)]
        assert [entry.name for entry in queue.periodics()] == ["tick"]
        advance(queue, 61)
        assert queue.drain() >= 4  # one tick, or two
        assert [queue.result(chain) for chain in chains] == ["shop 5", "shop 1", 3]
        queue.close()
    with second.app_context():
        assert queue.list_chains().items == []
        assert queue.drain() == 0
        queue.close()


def test_the_extension_is_a_queuert_with_nothing_hidden(sqlite_path: Path) -> None:
    queue = FlaskQueuert()
    assert isinstance(queue, Queuert)
    with pytest.raises(AttributeError, match="nonsense"):
        queue.nonsense  # type: ignore[attr-defined]  # noqa: B018 - as mypy says too
    make_app(queue, QUEUERT_DATABASE=f"sqlite:///{sqlite_path}")
    for name in vars(queue.queuert):
        assert getattr(queue, name) is getattr(queue.queuert, name)


def test_handlers_of_a_worker_run_in_the_applications_context(url: str) -> None:
    queue = FlaskQueuert()

    @queue.job
    def greet(job: RunningJob[None]) -> str:
        return str(flask.current_app.config["GREETING"])

    app = make_app(queue, QUEUERT_DATABASE=url, GREETING="hello")
    with app.app_context():
        queue.migrate()
        chain = queue.start_chain(greet)
        with queue.worker():
            assert queue.wait_for(chain, timeout=20).output == "hello"
        queue.close()


def test_options_come_from_the_configuration(sqlite_path: Path) -> None:
    queue = FlaskQueuert()
    app = make_app(queue, QUEUERT_DATABASE=f"sqlite:///{sqlite_path}", QUEUERT_TABLE_PREFIX="shop_", QUEUERT_HISTORY="failures")
    with app.app_context(), pytest.raises(SchemaVersionError, match="shop_job"):
        queue.stats()
    assert context_of(queue.queuert).settings.history == "failures"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "QUEUERT_DATABASE"),
        ({"QUEUERT_DATABASE": "sqlite:///x.db", "QUEUERT_TABEL_PREFIX": "x_"}, "QUEUERT_TABEL_PREFIX"),
        ({"QUEUERT_DATABASE": "mysql://x/y"}, "not a database this library knows"),
    ],
)
def test_a_wrong_configuration_is_named_at_the_start(config: dict[str, str], message: str) -> None:
    with pytest.raises(QueuertError, match=message):
        make_app(FlaskQueuert(), **config)


def test_the_extension_is_initialised_once(sqlite_path: Path) -> None:
    queue = FlaskQueuert()
    app = make_app(queue, QUEUERT_DATABASE=f"sqlite:///{sqlite_path}")
    with pytest.raises(QueuertError, match="once"):
        queue.init_app(app)
    with flask.Flask("other").app_context(), pytest.raises(QueuertError, match="init_app"):
        queue.stats()
    assert not hasattr(queue, "no_such_thing")


# Flask-SQLAlchemy


class Shop:
    """An application with Flask-SQLAlchemy."""

    def __init__(self, url: str) -> None:
        sqlalchemy = pytest.importorskip("flask_sqlalchemy")
        self.db: Any = sqlalchemy.SQLAlchemy()
        db = self.db

        class Order(db.Model):  # type: ignore[misc, name-defined]  # a base that is made at run time
            id = db.Column(db.Integer, primary_key=True)
            state = db.Column(db.Text, nullable=False, default="new")

        self.Order: Any = Order
        self.queue = FlaskQueuert(db=db)
        self.app = flask.Flask("shop")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url.replace("postgresql://", "postgresql+psycopg://")
        db.init_app(self.app)
        self.queue.init_app(self.app)
        with self.app.app_context():
            db.create_all()
            self.queue.migrate()

    def states(self) -> dict[int, str]:
        with self.app.app_context():
            return {order.id: order.state for order in self.db.session.query(self.Order)}


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    yield shop
    shop.queue.close()
    with shop.app.app_context():
        shop.db.engine.dispose()


def test_chains_commit_with_db_session(shop: Shop) -> None:
    queue, db = shop.queue, shop.db
    queue.declare("ship")
    with shop.app.test_request_context():
        db.session.add(shop.Order(id=1))
        queue.start_chain("ship", conn=db.session)
        db.session.rollback()
        db.session.add(shop.Order(id=2))
        chain = queue.start_chain("ship", conn=db.session)
        db.session.commit()
        assert [each.id for each in queue.list_chains().items] == [chain.id]
    assert shop.states() == {2: "new"}


def test_db_session_inside_complete_is_the_completing_transaction(shop: Shop) -> None:
    queue, db, Order = shop.queue, shop.db, shop.Order

    @queue.job(max_attempts=1)
    def pay(job: RunningJob[dict[str, Any]]) -> str:
        order = db.session.get(Order, job.input["order"])
        with job.complete() as session:
            assert session is db.session()
            order.state = "paid"
            queue.start_chain("ship", conn=db.session)
        if job.input["fail"]:
            raise RuntimeError("too late")
        return "done"

    queue.declare("ship")
    with shop.app.app_context():
        db.session.add_all([Order(id=1), Order(id=2)])
        paid = queue.start_chain(pay, {"order": 1, "fail": False}, conn=db.session)
        failed = queue.start_chain(pay, {"order": 2, "fail": True}, conn=db.session)
        db.session.commit()
    with queue.worker(types=["pay"]):
        assert queue.wait_for(paid, timeout=20).output == "done"
        assert queue.wait_for(failed, timeout=20, raise_on_failure=False).status == "failed"
    assert shop.states() == {1: "paid", 2: "new"}
    assert len(queue.list_chains(types=["ship"]).items) == 1


def test_flask_sqlalchemy_must_come_first(sqlite_path: Path) -> None:
    sqlalchemy = pytest.importorskip("flask_sqlalchemy")
    db = sqlalchemy.SQLAlchemy()
    with pytest.raises(QueuertError, match=r"db\.init_app"):
        FlaskQueuert(flask.Flask("shop"), db=db)
    app = flask.Flask("shop")
    app.config.update(SQLALCHEMY_DATABASE_URI=f"sqlite:///{sqlite_path}", QUEUERT_DATABASE="sqlite:///other.db")
    db.init_app(app)
    with pytest.raises(QueuertError, match="two databases"):
        FlaskQueuert(app, db=db)


# Commands, as a user runs them

MODULE = """
import flask
from queuert.contrib.flask import FlaskQueuert

queue = FlaskQueuert()

@queue.job
def mark(job):
    return flask.current_app.name

def create_app():
    app = flask.Flask("module")
    app.config["QUEUERT_DATABASE"] = {url!r}
    queue.init_app(app)
    return app
"""


def test_the_commands_migrate_work_and_tell(url: str, tmp_path: Path) -> None:
    (tmp_path / "shopapp.py").write_text(textwrap.dedent(MODULE).format(url=url))
    command = ("-m", "flask", "--app", "shopapp", "queuert")
    missing = run(tmp_path, *command, "stats")
    worker = run(tmp_path, *command, "worker")
    for refused, code in ((missing, 1), (worker, 2)):
        assert refused.returncode == code
        assert "run `flask queuert migrate`" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert "applied  0001" in run(tmp_path, *command, "migrate").stdout
    assert "up to date" in run(tmp_path, *command, "migrate").stdout
    with (
        started(tmp_path, [*command, "worker", "-c", "2"], tmp_path / "worker.log") as worker,
        Queuert(url) as app,
    ):
        app.declare("mark")
        chain = app.start_chain("mark")
        assert app.wait_for(chain, timeout=30).output == "module"
        assert worker.stop() == 0
    told = json.loads(run(tmp_path, *command, "stats", "--json").stdout)
    assert told["by_status"]["completed"] == 1
    assert "completed" in run(tmp_path, *command, "stats").stdout
    assert "Deleted 0 chains" in run(tmp_path, *command, "cleanup").stdout


def test_every_command_is_there(sqlite_path: Path, tmp_path: Path) -> None:
    (tmp_path / "shopapp.py").write_text(textwrap.dedent(MODULE).format(url=f"sqlite:///{sqlite_path}"))
    command = ("-m", "flask", "--app", "shopapp", "queuert")
    help = run(tmp_path, *command, "--help").stdout
    assert "usage: flask queuert" in help
    assert set(command_names()) <= set(help.split())
    assert run(tmp_path, *command, "migrate").returncode == 0
    begun = run(tmp_path, *command, "start", "mark", "--json")
    chain = json.loads(begun.stdout)["chain"]["id"]
    assert "would fail" not in run(tmp_path, *command, "check").stdout
    assert run(tmp_path, *command, "worker", "--until-empty").returncode == 0
    shown = run(tmp_path, *command, "show", chain[-8:], "--json")
    assert json.loads(shown.stdout)["chain"]["output"] == "module", shown.stderr
    assert "CREATE TABLE" in run(tmp_path, *command, "sql").stdout
    for refused in (run(tmp_path, *command, "stats", "--url", "sqlite:///x.db"), run(tmp_path, *command, "worker", "x:y")):
        assert refused.returncode == 2
        assert "own application" in refused.stderr
    unknown = run(tmp_path, *command, "retyr")
    assert "did you mean 'retry'" in unknown.stderr.lower(), unknown.stderr


def test_a_worker_has_processes(url: str, tmp_path: Path) -> None:
    (tmp_path / "shopapp.py").write_text(textwrap.dedent(MODULE).format(url=url))
    command = ["-m", "flask", "--app", "shopapp", "queuert"]
    assert run(tmp_path, *command, "migrate").returncode == 0
    with (
        started(tmp_path, [*command, "worker", "--processes", "2"], tmp_path / "log") as worker,
        Queuert(url) as app,
    ):
        app.declare("mark")
        assert app.wait_for(app.start_chain("mark"), timeout=30).output == "module"
        worker.says("Process 2 of 2")
        eventually(lambda: len(app.workers()) == 2, 30)
        assert worker.stop() == 0, worker.output()


def test_a_worker_starts_again_when_a_source_changes(url: str, tmp_path: Path) -> None:
    source = tmp_path / "shopapp.py"
    text = textwrap.dedent(MODULE).format(url=url)
    source.write_text(text)
    command = ["-m", "flask", "--app", "shopapp", "queuert"]
    assert run(tmp_path, *command, "migrate").returncode == 0
    with (
        started(tmp_path, [*command, "worker", "--autoreload"], tmp_path / "log") as worker,
        Queuert(url) as app,
    ):
        app.declare("mark")
        assert app.wait_for(app.start_chain("mark"), timeout=30).output == "module"
        source.write_text(text.replace("return flask", "return 'edited ' + flask"))
        worker.says("shopapp.py has changed")
        assert app.wait_for(app.start_chain("mark"), timeout=30).output == "edited module"
        source.write_text("def (")  # half a line, as editors save it
        worker.says("SyntaxError")
        source.write_text(text)
        assert app.wait_for(app.start_chain("mark"), timeout=30).output == "module"
        assert worker.stop() == 0, worker.output()


def test_a_forked_server_process_enqueues(url: str) -> None:
    """As gunicorn with preload does: the application is made, and used, before the fork."""
    queue = FlaskQueuert()
    queue.declare("mail")
    app = make_app(queue, QUEUERT_DATABASE=url)
    with app.app_context():
        queue.migrate()
        queue.start_chain("mail")
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    queue.start_chain("mail")
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        eventually(lambda: len(queue.list_chains().items) == 3)
        queue.close()

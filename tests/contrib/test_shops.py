"""The example shops, started as their READMEs say: tables, own tests, a web server, a worker that is killed and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import Process, Site, free_port, run, started, uwsgi
from support.waiting import eventually

pytest.importorskip("gunicorn")
pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
if not EXAMPLES.is_dir():
    pytest.skip("the examples are not here", allow_module_level=True)


@dataclass(frozen=True)
class Shop:
    """How one of them is used."""

    name: str
    needs: tuple[str, ...]
    tables: tuple[str, ...]
    tests: tuple[str, ...]
    web: str
    worker: tuple[str, ...]
    scheme: str = "postgresql+psycopg"

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", "/dev/null", ".")
SHOPS = {
    "django": Shop(
        "django_shop",
        ("django",),
        ("manage.py", "migrate", "-v", "0"),
        ("manage.py", "test", "--noinput"),
        "shop.wsgi",
        ("manage.py", "queuert_worker"),
        scheme="postgresql",
    ),
    "flask": Shop(
        "flask_shop",
        ("flask", "flask_sqlalchemy"),
        ("-m", "flask", "--app", "shop", "create-tables"),
        PYTEST,
        "shop:create_app()",
        ("-m", "flask", "--app", "shop", "queuert", "worker"),
    ),
    "sqlalchemy": Shop(
        "sqlalchemy_shop",
        ("sqlalchemy",),
        ("shop.py",),
        PYTEST,
        "shop:web",
        ("-m", "queuert", "worker", "shop:app"),
    ),
}


@pytest.fixture(params=SHOPS)
def shop(request: pytest.FixtureRequest) -> Shop:
    shop = SHOPS[request.param]
    for module in shop.needs:
        pytest.importorskip(module)
    return shop


@pytest.fixture(params=["sqlite", "postgres"])
def database(shop: Shop, request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    url: str = request.getfixturevalue("empty_pg_url")
    return shop.scheme + url.removeprefix("postgresql")


class Running:
    """A shop with its web server, and workers that come and go."""

    def __init__(self, shop: Shop, database: str, logs: Path) -> None:
        self._shop = shop
        self._logs = logs
        self._environment = {"SHOP_DATABASE": database, "SHOP_LEASE_SECONDS": "2"}
        done = run(shop.folder, *shop.tables, **self._environment)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def serving(self, server: str = "gunicorn", **settings: str) -> Iterator[Site]:
        port = free_port()
        command = (
            uwsgi("uwsgi.ini", port) if server == "uwsgi" else ["-m", "gunicorn", "-c", "gunicorn.conf.py", self._shop.web]
        )
        environment = {**self._environment, "SHOP_BIND": f"127.0.0.1:{port}", **settings}
        log = self._logs / "web.log"
        with started(self._shop.folder, command, log, **environment) as process:
            site = Site(port)
            eventually(lambda: site.is_up() or _must_run(process), 30)
            yield site
            assert process.stop() == 0, process.output()

    def worker(self, gateway_seconds: float = 0) -> Any:
        settings = {**self._environment, "SHOP_GATEWAY_SECONDS": str(gateway_seconds)}
        return started(self._shop.folder, self._shop.worker, self._logs / "worker.log", **settings)


def _must_run(process: Process) -> bool:
    if not process.running():
        pytest.fail(f"It ended:\n{process.output()}")
    return False


def states(site: Site) -> list[str]:
    """Of the orders on the page, newest first."""
    return [part.partition("<")[0] for part in site.get().split('<td class="state">')[1:]]


def test_the_shops_own_tests_pass(shop: Shop, tmp_path: Path) -> None:
    done = run(shop.folder, *shop.tests, SHOP_DATABASE=f"sqlite:///{tmp_path}/shop.db")
    assert done.returncode == 0, done.stdout + done.stderr


def test_orders_are_served_also_when_the_worker_is_killed(shop: Shop, database: str, tmp_path: Path) -> None:
    running = Running(shop, database, tmp_path)
    with running.serving() as site:
        site.post("/orders", {"product": "teapot"})
        assert states(site) == ["new"]
        with pytest.raises(OSError, match="500"):
            site.post("/orders", {"product": "unicorn"})
        assert states(site) == ["new"]
        with running.worker() as worker:
            eventually(lambda: states(site) == ["shipped"], 30)
            assert worker.stop() == 0, worker.output()

        site.post("/orders", {"product": "kettle"})
        with running.worker(gateway_seconds=600) as doomed:
            doomed.says("has started")
            eventually(lambda: _is_charging(shop, running), 30)
            doomed.kill()
        assert states(site) == ["new", "shipped"]
        with running.worker() as worker:
            eventually(lambda: states(site) == ["shipped", "shipped"], 60)
            assert site.get().count("receipt-") == 2
            assert worker.stop() == 0, worker.output()


def _is_charging(shop: Shop, running: Running) -> bool:
    """Whether a job is running, as an operator would find out."""
    command = {
        "django_shop": ("manage.py", "queuert_stats", "--json"),
        "flask_shop": ("-m", "flask", "--app", "shop", "queuert", "stats", "--json"),
        "sqlalchemy_shop": ("-m", "queuert", "stats", "--app", "shop:app", "--json"),
    }[shop.name]
    done = run(shop.folder, *command, **running._environment)
    assert done.returncode == 0, done.stderr
    return '"running": 1' in done.stdout


SERVERS: dict[str, dict[str, str]] = {
    "sync": {"SHOP_WORKER_CLASS": "sync", "SHOP_WORKERS": "3"},
    "gthread": {"SHOP_WORKER_CLASS": "gthread", "SHOP_WORKERS": "2", "SHOP_THREADS": "4"},
    "uwsgi": {"server": "uwsgi"},
}


@pytest.mark.parametrize(
    ("server", "database"),
    [
        ("sync", "sqlite"),
        ("sync", "postgres"),
        ("gthread", "sqlite"),
        ("gthread", "postgres"),
        ("uwsgi", "postgres"),  # test_uwsgi.py has more of it
    ],
    indirect=["database"],
)
def test_forked_servers_take_orders_at_once(shop: Shop, database: str, server: str, tmp_path: Path) -> None:
    """Both gunicorn (preload_app) and uWSGI load the application before they fork."""
    if server == "uwsgi":
        pytest.importorskip("pyuwsgi")
    running = Running(shop, database, tmp_path)
    with running.serving(**SERVERS[server]) as site, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: site.post("/orders", {"product": f"cup {n}"}), range(24)))
        assert states(site) == ["new"] * 24
        with running.worker() as worker:
            eventually(lambda: states(site) == ["shipped"] * 24, 60)
            assert worker.stop() == 0, worker.output()

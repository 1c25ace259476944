"""uWSGI: an application that is loaded, and used, by the master, and the processes that are forked from it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import Site, free_port, started, uwsgi
from support.waiting import eventually

from queuert import Queuert

pytest.importorskip("pyuwsgi")
pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
HOOKS = "py-call-uwsgi-fork-hooks = true\n"

PROVIDERS = {
    "plain": "queue = Queuert(URL)\n",
    "sqlalchemy": """
import sqlalchemy
from queuert.contrib.sqlalchemy import SQLAlchemyProvider
queue = Queuert(SQLAlchemyProvider(sqlalchemy.create_engine(URL.replace("postgresql", "postgresql+psycopg"))))
""",
    "django": """
import sys
from pathlib import Path
sys.path.append(HERE)
from djangosite import connections, database_settings
where = Path(URL.removeprefix("sqlite:///")) if URL.startswith("sqlite") else URL
connections.databases["shop"] = connections.configure_settings({"default": {}, "shop": database_settings(where)})["shop"]
from queuert.contrib.django import DjangoProvider
queue = Queuert(DjangoProvider("shop"))
""",
}
SITE = """
import json, os
from queuert import Queuert
HERE, URL = {here!r}, {url!r}
{provider}
queue.declare("mail")
queue.migrate()
queue.start_chain("mail")  # in the master

def application(environ, start_response):
    try:
        queue.start_chain("mail")
        answer = {{"pid": os.getpid()}}
    except Exception as error:
        answer = {{"error": str(error)}}
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [json.dumps(answer).encode()]
"""


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if found != "plain":
        pytest.importorskip(found)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("empty_pg_url")
    return found


def configuration() -> str:
    """The one that the documentation shows."""
    if not PAGE.is_file():
        pytest.skip("the documentation is not here")
    (found,) = re.findall(r"```ini\n(\[uwsgi\]\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert HOOKS in found
    return str(found).replace("shop.wsgi", "site_in_uwsgi").replace("processes = 4", "processes = 2")


@contextmanager
def serving(folder: Path, provider: str, url: str, ini: str) -> Iterator[Site]:
    text = SITE.format(here=str(Path(__file__).parent), url=url, provider=PROVIDERS[provider])
    (folder / "site_in_uwsgi.py").write_text(text)
    (folder / "uwsgi.ini").write_text(ini)
    port = free_port()
    with started(folder, uwsgi("uwsgi.ini", port), folder / "uwsgi.log") as server:
        site = Site(port)
        eventually(lambda: site.is_up() or not server.running(), 30)
        assert server.running(), server.output()
        yield site
        if HOOKS in ini:
            assert server.stop() == 0, server.output()


def test_processes_of_a_master_that_used_the_database_enqueue(provider: str, url: str, tmp_path: Path) -> None:
    ran: list[str] = []
    with serving(tmp_path, provider, url, configuration()) as site, Queuert(url) as elsewhere:
        elsewhere.job("mail")(lambda job: ran.append(job.id))
        with ThreadPoolExecutor(8) as pool:
            pids = {json.loads(answer)["pid"] for answer in pool.map(lambda _: site.get(), range(40))}
        before = len(elsewhere.list_chains(limit=200).items)
        assert before >= 41
        os.kill(min(pids), signal.SIGKILL)  # the master forks another
        with elsewhere.worker(poll_interval=60):
            eventually(lambda: len(ran) == before)
            for _ in range(8):
                eventually(lambda: "pid" in _answer(site))
            eventually(lambda: len(ran) >= before + 8)  # woken by the processes that were forked


def _answer(site: Site) -> dict[str, object]:
    try:
        answer: dict[str, object] = json.loads(site.get())
    except OSError:  # what the one that was killed had in hand
        return {}
    return answer


def test_without_its_hooks_a_file_that_the_master_has_open_is_refused(provider: str, sqlite_path: Path, tmp_path: Path) -> None:
    """Rather than written to without a lock, for the master's last close to throw away."""
    with serving(tmp_path, provider, f"sqlite:///{sqlite_path}", configuration().replace(HOOKS, "")) as site:
        with ThreadPoolExecutor(4) as pool:
            answers = [json.loads(answer) for answer in pool.map(lambda _: site.get(), range(12))]
        assert not [answer for answer in answers if "pid" in answer]
        assert all("forked" in answer["error"] for answer in answers)
        if provider != "plain":
            assert all("py-call-uwsgi-fork-hooks" in answer["error"] for answer in answers)

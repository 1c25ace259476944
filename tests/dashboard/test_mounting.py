"""The dashboard inside Flask and Django, and from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.dashboard import Browser, Shop
from werkzeug.test import Client

from queuert import Queuert
from queuert.cli import main
from queuert.contrib.flask import FlaskQueuert, dashboard_blueprint


def test_a_flask_application_has_it_as_a_blueprint(shop: Shop) -> None:
    chain = shop.failed()
    flask = Flask(__name__)
    flask.register_blueprint(dashboard_blueprint(shop.app, authenticate=lambda request: "anna"), url_prefix="/admin/queue")
    browser = Browser(flask, root="/admin/queue")
    for path in ("", "/", "/jobs?status=failed", f"/chains/{chain.id}"):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert 'href="/admin/queue/static/dashboard.css' in answer.text
    assert browser.get("/static/dashboard.css").status_code == 200
    assert browser.get("/nothing").status_code == 404
    assert browser.get(f"/api/chains/{chain.id}").get_json()["chain"]["id"] == chain.id
    answer = browser.post(f"/chains/{chain.id}/retry")
    assert answer.headers["Location"] == f"/admin/queue/chains/{chain.id}?done=retry"
    assert shop.found(chain.id).status == "pending"
    assert Client(flask).post(f"/admin/queue/chains/{chain.id}/cancel").status_code == 403


def test_the_extension_stands_for_the_current_applications_queue(tmp_path: Path) -> None:
    queue, flask = FlaskQueuert(), Flask(__name__)
    flask.config["QUEUERT_DATABASE"] = f"sqlite:///{tmp_path / 'shop.db'}"
    queue.init_app(flask).migrate()
    flask.register_blueprint(dashboard_blueprint(queue, url_prefix="/queue"))
    assert flask.test_client().get("/queue/").status_code == 200
    assert flask.test_client().get("/queue/", headers={"Host": "shop.example"}).status_code == 403


DJANGO = """
import json, sys
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": json.loads(sys.argv[1])}, SECRET_KEY="only for tests", ROOT_URLCONF=__name__, USE_TZ=True,
    ALLOWED_HOSTS=["testserver"], LOGIN_URL="/login/",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "queuert.contrib.django"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware"],
    QUEUERT={"DATABASE": "default"},
)
django.setup()

import re
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import include, path
from queuert.contrib.django import dashboard_urls, queue

urlpatterns = [
    path("queue/", include(dashboard_urls())),
    path("own/", include(dashboard_urls(queue, authenticate=lambda request: request.headers.get("X-User")))),
]
call_command("migrate", verbosity=0)

@queue.job("charge", max_attempts=1)
def charge(job):
    job.fail("TIMEOUT:GATEWAY")

chain = queue.start_chain("charge", None)
queue.drain()

client = Client(enforce_csrf_checks=True)
answer = client.get("/queue/jobs?status=failed")
assert answer.status_code == 302 and answer["Location"] == "/login/?next=/queue/jobs%3Fstatus%3Dfailed", answer["Location"]
assert client.get("/own/").status_code == 401
client.force_login(User.objects.create_user("guest"))
assert client.get("/queue/").status_code == 401
client.force_login(User.objects.create_user("anna", is_staff=True))
for page in ("/queue/", "/queue/jobs?status=failed", f"/queue/chains/{chain.id}", "/queue/static/dashboard.css"):
    answer = client.get(page)
    assert answer.status_code == 200, (page, answer.status_code)
page = client.get(f"/queue/chains/{chain.id}")
assert 'href="/queue/static/dashboard.css' in page.content.decode()
assert "Content-Security-Policy" in page.headers
cookie = client.cookies["queuert_csrf"]
assert cookie["httponly"] and cookie["samesite"] == "Lax"
assert client.post(f"/queue/chains/{chain.id}/retry").status_code == 403
token = re.search(r'name="csrf_token" value="([^"]+)"', page.content.decode())[1]
answer = client.post(f"/queue/chains/{chain.id}/retry", {"csrf_token": token, "reason": "again"})
assert answer.status_code == 303 and answer["Location"] == f"/queue/chains/{chain.id}?done=retry", answer
assert [e.actor for e in queue.timeline(chain.id) if e.event == "RETRIED"] == ["anna"]
assert client.get("/own/", headers={"X-User": "bert"}).status_code == 200
assert client.get("/queue/", headers={"Host": "elsewhere.example"}).status_code == 400
print("fine")
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_django_project_has_it_in_its_urls(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")}
    if kind == "postgres":
        from psycopg.conninfo import conninfo_to_dict

        where = conninfo_to_dict(request.getfixturevalue("empty_pg_url"))
        names = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT", "password": "PASSWORD"}
        database = {"ENGINE": "django.db.backends.postgresql", **{names[k]: v for k, v in where.items() if k in names}}
    program = tmp_path / "project.py"
    program.write_text(DJANGO)
    done = subprocess.run([sys.executable, str(program), json.dumps(database)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr


def test_the_command_line_serves_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Queuert(f"sqlite:///{path}") as app:
        app.migrate()
    command = [sys.executable, "-m", "queuert", "dashboard", "--url", f"sqlite:///{path}", "--port", "0", "--token", "secret"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            [url] = re.findall(r"http://127\.0\.0\.1:\d+/", said)
            assert "secret" not in said
            asked = urllib.request.Request(f"{url}api/overview", headers={"Authorization": "Bearer secret"})
            with urllib.request.urlopen(asked) as answer:
                assert json.load(answer)["stats"]["by_status"]["failed"] == 0
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--host", "0.0.0.0"], "token"), (["--port", "70000"], "port"), (["--base-path", "queue"], "slash")],
)
def test_the_command_line_refuses_what_is_not_safe_or_makes_no_sense(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Queuert(f"sqlite:///{tmp_path / 'shop.db'}") as app:
        app.migrate()
    assert main(["dashboard", "--url", f"sqlite:///{tmp_path / 'shop.db'}", *options]) == 2
    assert said in capsys.readouterr().err

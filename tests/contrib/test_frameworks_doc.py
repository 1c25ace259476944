"""The snippets of docs/frameworks.md, put together as the page says and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
if not PAGE.is_file():
    pytest.skip("the documentation is not here", allow_module_level=True)

SETTINGS = """
SECRET_KEY = "only for tests"
USE_TZ = True
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "orders"]
"""
FILES = {
    "manage.py": (
        "import os, sys\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\n"
        "from django.core.management import execute_from_command_line\nexecute_from_command_line(sys.argv)\n"
    ),
    "urls.py": "from django.urls import path\nfrom orders.views import place\nurlpatterns = [path('place/', place)]\n",
    "orders/__init__.py": "",
    "orders/models.py": (
        "from django.db import models\n"
        "class Order(models.Model):\n"
        "    id = models.BigAutoField(primary_key=True)\n"
        "    state = models.TextField(default='new')\n"
    ),
}


def snippets() -> list[tuple[str, str]]:
    """The name in the first line of each Python block, and the block."""
    blocks = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python"), "a block without a name"
    return [(name, text) for name, text in blocks]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_the_django_snippets_are_a_project(tmp_path: Path) -> None:
    pytest.importorskip("django")
    settings = SETTINGS
    for name, text in snippets():
        if name == "settings.py" and "TASKS" not in text:
            settings += text
        elif name.startswith("orders/"):
            write(tmp_path, name, text)
    for name, text in {**FILES, "settings.py": settings}.items():
        write(tmp_path, name, text)
    done = run(tmp_path, "manage.py", "test", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr


def test_the_settings_of_tasks_are_accepted(tmp_path: Path) -> None:
    django = pytest.importorskip("django")
    if django.VERSION < (6, 0):
        pytest.importorskip("django_tasks")
    text = SETTINGS + "".join(text for name, text in snippets() if name == "settings.py")
    if django.VERSION < (6, 0):
        text += "INSTALLED_APPS += ['django_tasks']\n"
    for name, content in {**FILES, "orders/views.py": "place = None\n", "settings.py": text}.items():
        write(tmp_path, name, content)
    done = run(tmp_path, "-c", _USES_TASKS)
    assert done.returncode == 0, done.stderr


_USES_TASKS = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from queuert.contrib.django import queue
assert "task:default:mail" in [each.name for each in queue.types]
"""


def test_the_progress_bar_of_the_page_works(tmp_path: Path) -> None:
    pytest.importorskip("flask")
    (text,) = [text for name, text in snippets() if name == "flask: bar.py"]
    write(tmp_path, "bar.py", text.replace("/tmp/bar.db", f"{tmp_path}/bar.db"))
    done = run(tmp_path, "-c", _USES_BAR)
    assert done.returncode == 0, done.stderr


_USES_BAR = """
import bar
app = bar.create_app()
client = app.test_client()
with app.app_context():
    bar.queue.migrate()
page = client.post("/imports").location
assert "<progress" in client.get(page).text
assert client.get(page + "/progress").json["fraction"] == 0.0
with app.app_context():
    bar.queue.drain()
assert client.get(page + "/progress").json == {"done": 0, "total": 0, "failed": 0, "fraction": 1.0, "message": None}
assert client.get("/imports/00000000-0000-7000-8000-000000000000/progress").status_code == 404
"""


@pytest.mark.parametrize("framework", ["flask", "sqlalchemy"])
def test_the_module_of_the_page_works(framework: str, tmp_path: Path) -> None:
    pytest.importorskip("flask_sqlalchemy" if framework == "flask" else "sqlalchemy")
    (text,) = [text for name, text in snippets() if name == f"{framework}: shop.py"]
    write(tmp_path, "shop.py", text.replace("/tmp/shop.db", f"{tmp_path}/shop.db"))
    done = run(tmp_path, "-c", _USES[framework])
    assert done.returncode == 0, done.stderr


_USES = {
    "flask": """
import shop
app = shop.create_app()
with app.app_context():
    shop.db.create_all()
    shop.queue.migrate()
assert app.test_client().post("/place").text == "1"
with app.app_context():
    assert shop.queue.drain() == 1
    assert shop.db.session.get(shop.Order, 1).state == "paid"
    assert shop.queue.list_chains().items[0].output == "shop"
""",
    "sqlalchemy": """
import shop
assert shop.app.drain() == 1
with shop.Session(shop.engine) as session:
    assert session.get(shop.Order, 1).state == "paid"
""",
}


def test_the_gunicorn_configuration_is_one(tmp_path: Path) -> None:
    (text,) = [text for name, text in snippets() if name == "gunicorn.conf.py"]
    pytest.importorskip("gunicorn")
    write(tmp_path, "gunicorn.conf.py", text)
    write(tmp_path, "shop.py", "def web(environ, start_response): return []\n")
    done = run(tmp_path, "-m", "gunicorn", "--check-config", "-c", "gunicorn.conf.py", "shop:web")
    assert done.returncode == 0, done.stderr

"""What gets installed: from a wheel and from an editable install, the library finds its SQL files.

The package is built and installed for real, in a fresh virtual environment outside the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]

CHECK = """
import importlib.resources, pathlib, sys
from queuert.postgres.dialect import POSTGRES
from queuert.sqlite.dialect import SQLITE
from queuert.storage import loader
from queuert.storage.names import Names

print(pathlib.Path(loader.__file__).resolve())
sql = importlib.resources.files("queuert.sql")
for dialect in (SQLITE, POSTGRES):
    assert (sql / dialect.name / "queries").is_dir(), dialect
    assert loader.queries(dialect, Names()), dialect
    assert loader.migrations(dialect, Names()), dialect
assert loader.functions(POSTGRES, Names())
assert importlib.resources.files("queuert").joinpath("py.typed").is_file()
"""


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged: a build leaves directories behind."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    source = copy_checkout(tmp_path_factory.mktemp("checkout"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory), str(source))
    [built] = directory.glob("queuert-*.whl")
    return built


def copy_checkout(copy: Path) -> Path:
    for name in ("queuert", "sql"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The Python of a fresh virtual environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    return str(tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")


def install(python: str, *arguments: str) -> None:
    """Install with the pip that runs the tests, which is quicker than giving each environment its own."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", *arguments)


def run(*command: str, cwd: Path | None = None) -> str:
    # Neither the variables of the running environment nor the current directory may lend a hand.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_wheel_has_every_module_and_every_sql_file(wheel: Path) -> None:
    packaged = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "queuert").rglob("*.py")}
    sql = {f"queuert/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "sql").rglob("*.sql")}
    folder = ROOT / "queuert" / "dashboard"
    pages = {path.relative_to(ROOT).as_posix() for part in ("templates", "static") for path in (folder / part).iterdir()}
    assert sql
    assert {"queuert/dashboard/static/dashboard.js", "queuert/dashboard/templates/base.html"} <= pages
    assert (modules | sql | pages | {"queuert/py.typed"}) - packaged == set()


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_a_released_migration_is_what_it_was_byte_for_byte(dialect: str) -> None:
    released = zipfile.ZipFile(ROOT / "tests" / "upgrade" / "queuert-0.1.0-py3-none-any.whl")
    name = f"sql/{dialect}/migrations/0001_initial.sql"
    assert (ROOT / name).read_bytes() == released.read(f"queuert/{name}")


def test_a_wheel_finds_its_sql_files(wheel: Path, python: str, tmp_path: Path) -> None:
    install(python, str(wheel))
    where = run(python, "-c", CHECK, cwd=tmp_path).strip()
    assert Path(where).is_relative_to((tmp_path / "venv").resolve())


def test_an_editable_install_finds_its_sql_files_also_new_ones(checkout: Path, python: str, tmp_path: Path) -> None:
    install(python, "-e", str(checkout))
    for directory in (tmp_path, checkout):
        where = run(python, "-c", CHECK, cwd=directory).strip()
        assert Path(where).is_relative_to(checkout.resolve())
    for dialect in ("sqlite", "postgres"):
        (checkout / "sql" / dialect / "queries" / "added.sql").write_text("-- name: added\n-- New.\nSELECT 1;\n")
    run(python, "-c", CHECK + "assert 'added' in loader.queries(POSTGRES, Names())", cwd=tmp_path)


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert script[-1] in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)

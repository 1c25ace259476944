"""Every file in examples/ runs, on both databases, and does what it says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

OUTPUT = {
    "approval.py": "thank you\ntoo late\n100 paid\n200 turned down\n",
    "compensation.py": (
        "cancelled the hotel\ncancelled the flight\nLisbon: booked flight and hotel\n"
        "['book-flight completed', 'book-flight failed']\n"
    ),
    "fan_out.py": "{'one': 3, 'three': 5, 'seventeen': 9}\n",
    "one_page.py": "{'shipped': 1}\n",
    "polling.py": "task-cat.mp4\n['rescheduled', 'rescheduled', 'rescheduled', 'succeeded']\n",
    "recurring.py": "started twice, running once: True\ndigest 1\ndigest 2\ndigest 3\n",
}


def test_every_example_is_known_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", sorted(OUTPUT))
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_an_example_runs(
    name: str,
    database: str,
    sqlite_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "one_page.py" and database == "postgres":
        pytest.skip("it is the SQLite program; the README says which lines change")
    url = f"sqlite:///{sqlite_path}" if database == "sqlite" else request.getfixturevalue("pg_url")
    monkeypatch.setenv("QUEUERT_URL", url)
    monkeypatch.setattr(sys, "argv", [name, *([str(sqlite_path)] if name == "one_page.py" else [])])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out == OUTPUT[name]

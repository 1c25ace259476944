"""The tests that get another try when they fail, each with the reason; and what is told of those that needed one.

A test that fails now and then is mended, or the library is. Only what neither can help goes here: for example a race that is
decided outside of both, by the machine. A name is a test's without its parameters: `tests/test_x.py::test_something`.
"""

from __future__ import annotations

from typing import Any

import pytest

TRIES = 2  # after the first
RERUNS: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.partition("[")[0] in RERUNS:
            item.add_marker(pytest.mark.flaky(reruns=TRIES))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List each test that needed another try, also where it passed in the end."""
    again = [report.nodeid for report in terminalreporter.stats.get("rerun", [])]
    if not again:
        return
    terminalreporter.section("tests that needed another try")
    for name in dict.fromkeys(again):
        reason = RERUNS.get(name.partition("[")[0], "given on the command line")
        terminalreporter.write_line(f"{name}: {again.count(name)} more ({reason})")

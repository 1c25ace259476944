"""The conformance suite once more: with other default isolation levels, and with a role of least privilege."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.weather import LEAST_PRIVILEGE, LEVELS, VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("weather", [*LEVELS, LEAST_PRIVILEGE])
def test_the_conformance_suite_holds(weather: str, postgres_url: str) -> None:
    """In a process of its own, on the server of this one."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "postgres", str(TESTS / "conformance")]
    environment = {**os.environ, VARIABLE: weather, "QUEUERT_TEST_POSTGRES": postgres_url}
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]

"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; skips the test where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    sandbox = [] if os.name == "nt" or os.geteuid() != 0 else ["--no-sandbox"]  # which does not work for root
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()

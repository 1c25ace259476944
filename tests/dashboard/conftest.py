"""A shop whose queue has something of everything, and a browser that asks without being one."""

from __future__ import annotations

from typing import Any

import pytest
from support.dashboard import SCRIPT, Browser, Shop

from queuert import Queuert
from queuert.dashboard import create_app


@pytest.fixture
def shop(app: Queuert) -> Shop:
    made = Shop(app)

    @app.job("charge", max_attempts=1)
    def charge(job: Any) -> Any:
        if made.broken and isinstance(job.input, dict) and job.input.get("fail"):
            job.fail("TIMEOUT:GATEWAY", f"password=hunter2 {SCRIPT}")
        return {"charged": job.input}

    @app.job("mail")
    def mail(job: Any) -> None:
        return None

    return made


@pytest.fixture
def browser(shop: Shop) -> Browser:
    return Browser(create_app(shop.app))

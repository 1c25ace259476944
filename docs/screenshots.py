"""Makes the pictures of the dashboard in docs/images: a shop in a database of its own, seen by a real browser.

    python docs/screenshots.py

Needs the extras `dashboard` and `test`, and Debian's `chromium`. Look at what it made.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from queuert import NewChain, Queuert
from queuert.dashboard import create_app
from queuert.dashboard.serving import DashboardServer

IMAGES = Path(__file__).parent / "images"
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
ORDERS = 120


def shop(url: str) -> Queuert:
    app = Queuert(url)
    app.migrate()

    @app.job("charge-card", continues_with=["ship-order"], max_attempts=3)
    def charge_card(job: Any) -> Any:
        time.sleep(random.random() * 0.02)
        if job.input["order"] % 17 == 0:
            job.fail("PAYMENT:DECLINED", "The bank declined the card.")
        if job.input["order"] % 23 == 0:
            raise TimeoutError("The gateway did not answer.")
        return job.continue_with("ship-order", job.input)

    @app.job("ship-order", entry=False)
    def ship_order(job: Any) -> dict[str, int]:
        return {"shipped": job.input["order"]}

    @app.job("monthly-report")
    def monthly_report(job: Any) -> dict[str, int]:
        return {"orders": len(job.blockers)}

    @app.job("export-video")
    def export_video(job: Any) -> None:
        job.signal.wait(600)

    @app.job("send-newsletter")
    def send_newsletter(job: Any) -> None:
        return None

    app.periodic(300, name="poll-suppliers")(send_newsletter)
    return app


def fill(app: Queuert) -> dict[str, str]:
    """Work of every kind; the addresses of the pages that are worth a picture."""
    orders = [{"order": n, "customer": {"name": f"Customer {n}", "api_key": "k-123"}} for n in range(1, ORDERS)]
    chains = app.start_chains([NewChain("charge-card", order) for order in orders])
    app.start_chain("monthly-report", {"month": "2026-10"}, blockers=chains[:4] + chains[16:17])
    with app.worker(concurrency=8, name="worker-2") as worker:
        while app.stats().ready:
            time.sleep(0.5)
        worker.stop()
    app.start_chains([NewChain("send-newsletter", {"to": n}, after=3600) for n in range(40)])
    app.start_chain("export-video", {"file": "spring.mov"})
    app.pause("send-newsletter", reason="the mail provider is down", actor="anna")
    report = app.list_chains(types=["monthly-report"]).items[0]
    failed = app.list_chains(statuses=["failed"]).items[0]
    return {"overview": "", "jobs": "jobs", "chain": f"chains/{report.id}", "failed": f"chains/{failed.id}", "types": "types"}


def main() -> int:
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium")
    if browser_path is None:
        print("There is no chromium here: apt-get install chromium.", file=sys.stderr)  # noqa: T201
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, shop(f"sqlite:///{folder}/shop.db") as app, sync_playwright() as playwright:
        pages = fill(app)
        server = DashboardServer(create_app(app, title="shop"), "127.0.0.1", 0)
        server.start()
        worker = app.worker(concurrency=4, name="worker-1")
        worker.start()
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        time.sleep(2)
        for name, path in pages.items():
            _take(browser, server.url + path, f"dashboard-{name}", viewport=WIDE)
        _take(browser, server.url + pages["chain"], "dashboard-chain-dark", viewport=WIDE, color_scheme="dark")
        _take(browser, server.url, "dashboard-phone", viewport=PHONE)
        browser.close()
        worker.stop(timeout=0.1)
        server.stop()
    return 0


def _take(browser: Any, url: str, name: str, **options: Any) -> None:
    page = browser.new_page(**options)
    page.goto(url)
    page.wait_for_timeout(300)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


if __name__ == "__main__":
    sys.exit(main())

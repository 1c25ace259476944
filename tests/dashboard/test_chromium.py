"""The pages in a real browser, with a worker beside it: they update by themselves, act, and run nothing that a job brought."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chromium import chromium
from support.dashboard import SCRIPT, Shop

from queuert import NewChain
from queuert.dashboard import create_app
from queuert.dashboard.serving import DashboardServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PATIENCE = 20_000  # milliseconds until a page must have updated


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    server = DashboardServer(create_app(shop.app), "127.0.0.1", 0)
    thread = server.start()
    yield server.url
    server.stop()
    thread.join()


@pytest.fixture
def page(chrome: Any) -> Iterator[Any]:
    page = chrome.new_page()
    page.set_default_timeout(PATIENCE)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (page.problems.append("a dialog"), dialog.dismiss()))
    yield page
    page.close()


def expect(page: Any, selector: str, text: str) -> None:
    """Wait until something has this text. (A function for the page to wait by would be an eval, which our policy forbids.)"""
    page.locator(selector).filter(has_text=re.compile(f"^{text}$")).wait_for()


def test_an_open_overview_follows_what_workers_do(shop: Shop, url: str, page: Any) -> None:
    page.goto(url)
    assert page.inner_text(".tile.completed .n") == "0"
    with shop.app.worker(concurrency=2):
        shop.app.start_chains([NewChain("charge", {"fail": n == 0}) for n in range(5)])
        expect(page, ".tile.completed .n", "4")
        page.wait_for_selector("text=1 job has failed for good")
    assert page.problems == []


def test_a_failed_chain_is_retried_by_its_button_and_completes_before_our_eyes(shop: Shop, url: str, page: Any) -> None:
    chain = shop.failed()
    page.goto(f"{url}chains/{chain.id}")
    assert page.inner_text("#state") == "failed"
    shop.broken = False
    page.click("summary:has-text('Retry')")
    page.fill("input[name=reason] >> visible=true", "the bank is back")
    with shop.app.worker():
        page.click("details.act[open] button")
        expect(page, "#state", "completed")
    assert "the bank is back" in page.inner_text("#timeline")
    assert page.problems == []


def test_a_type_that_is_paused_by_its_button_stops(shop: Shop, url: str, page: Any) -> None:
    page.goto(f"{url}types")
    row = page.locator("tr", has_text="mail")
    row.locator("summary:has-text('Pause')").click()
    row.locator("form button").click()
    page.wait_for_selector(".status:has-text('paused')")
    with shop.app.worker():
        stopped, other = shop.app.start_chain("mail", None), shop.app.start_chain("charge", {})
        shop.app.wait_for(other, timeout=20)
        assert shop.found(stopped.id).status == "pending"
        page.goto(url)
        page.click("button:has-text('Resume')")
        shop.app.wait_for(stopped, timeout=20)
    assert page.problems == []


def test_what_a_stranded_job_waits_for_is_retried_by_the_button_beside_the_reason(shop: Shop, url: str, page: Any) -> None:
    blocker = shop.failed()
    stranded = shop.app.start_chain("mail", None, blockers=[blocker])
    shop.broken = False
    page.goto(f"{url}chains/{stranded.id}")
    page.click("button:has-text('Retry what failed')")
    page.click("button:has-text('Retry 1')")
    with shop.app.worker():
        expect(page, "#state", "completed")


def test_filters_and_pages_are_in_the_address(shop: Shop, url: str, page: Any) -> None:
    shop.app.start_chains([NewChain("mail", None, after=3600) for _ in range(60)])
    failed = shop.failed()
    page.goto(f"{url}chains")
    page.click("a[rel=next]")
    assert "cursor=" in page.url
    assert page.locator("tbody tr").count() == 11
    page.goto(f"{url}chains")
    page.check("input[name=status][value=failed]")
    page.click("button:has-text('Show')")
    assert "status=failed" in page.url
    assert page.locator("tbody tr").count() == 1
    assert failed.id[-8:] in page.inner_text("tbody")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type(failed.id)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/chains/{failed.id}")


def test_many_are_chosen_counted_and_retried(shop: Shop, url: str, page: Any) -> None:
    failed = [shop.failed() for _ in range(3)]
    page.goto(f"{url}chains?status=failed")
    page.check(f"input[value='{failed[0].id}']")
    page.check(f"input[value='{failed[1].id}']")
    page.click("button:has-text('Retry…')")
    assert page.inner_text("h1") == "Retry 2 chains?"
    page.click("button:has-text('Retry 2')")
    assert "Retried 2." in page.inner_text("main")
    assert [shop.found(chain.id).status.value for chain in failed] == ["pending", "pending", "failed"]


def test_nothing_that_a_job_brings_runs_in_the_browser(shop: Shop, url: str, page: Any) -> None:
    attacks = [
        SCRIPT,
        "<img src=x onerror=alert(1)>",
        "</pre><svg onload=alert(1)>",
        "javascript:alert(1)",
        '" autofocus onfocus="alert(1)',
        "</script><script>alert(1)</script>",
        "{{ 7 * 7 }}",
    ]
    chains = [shop.failed(attack=attack, **{attack: attack}) for attack in attacks]
    shop.app.start_chain("mail", None, blockers=chains)
    for path in ("", "jobs", "chains", *(f"chains/{chain.id}" for chain in chains), f"jobs/{chains[0].id}"):
        page.goto(url + path)
        page.wait_for_load_state()
        assert "owned" not in page.title()
    page.wait_for_timeout(2_500)  # one look for updates, which replaces parts of the page
    assert page.problems == []
    assert "49" not in page.inner_text("pre >> nth=0")


def test_the_policy_stops_an_inline_script_that_got_in_all_the_same(shop: Shop, url: str, page: Any) -> None:
    page.goto(url)
    inject = "const s = document.createElement('script'); s.textContent = 'document.title = `owned`'; document.body.append(s)"
    page.evaluate(f"() => {{ {inject} }}")
    assert page.title() != "owned"
    assert any("Content Security Policy" in problem for problem in page.problems)


def test_a_form_of_another_site_changes_nothing(shop: Shop, url: str, page: Any, tmp_path: Path) -> None:
    chain = shop.failed()
    page.goto(url)
    elsewhere = tmp_path / "elsewhere.html"
    elsewhere.write_text(f'<form method="post" action="{url}chains/{chain.id}/delete"><button>win a prize</button></form>')
    page.goto(elsewhere.as_uri())
    with page.expect_response(re.compile("/delete$")) as answer:
        page.click("button")
    assert answer.value.status == 403
    assert shop.app.get_chain(chain.id) is not None


def test_a_dashboard_that_stops_answering_says_so_and_comes_back(shop: Shop, page: Any) -> None:
    dashboard = create_app(shop.app)
    down = threading.Event()

    def sometimes(environ: Any, start_response: Any) -> Any:
        if down.is_set():
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b""]
        return dashboard(environ, start_response)

    sometimes.settings = dashboard.settings  # type: ignore[attr-defined]
    server = DashboardServer(sometimes, "127.0.0.1", 0)  # type: ignore[arg-type]
    server.start()
    try:
        page.goto(server.url)
        down.set()
        page.wait_for_selector("#offline:not([hidden])")
        shop.completed()
        down.clear()
        page.wait_for_selector("#offline", state="hidden")
        expect(page, ".tile.completed .n", "1")
    finally:
        server.stop()


def test_pages_work_without_scripts(shop: Shop, url: str, chrome: Any) -> None:
    chain = shop.failed()
    context = chrome.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}chains/{chain.id}")
    page.click("summary:has-text('Retry')")
    page.click("details.act[open] button")
    assert "Retried." in page.inner_text("main")
    assert shop.found(chain.id).status == "pending"
    context.close()


@pytest.mark.parametrize("target", ["sqlite-memory"], indirect=True)  # the pages look the same on every database
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(shop: Shop, url: str, chrome: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe()
    failed, done = shop.failed(note="x"), shop.completed()
    waiting = shop.app.start_chain("mail", None, blockers=[failed])
    shop.app.periodic(3600, name="hourly")(shop.app.types.get("mail"))
    # Its script is put into the page, which our policy forbids.
    context = chrome.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page = context.new_page()
    paths = ["", "chains", "jobs?status=failed", "jobs?status=cancelled", "types", "schedules", "nothing"]
    for path in [*paths, f"chains/{failed.id}", f"chains/{waiting.id}", f"jobs/{done.id}"]:
        page.goto(url + path)
        found = axe.run(page).response["violations"]
        serious = [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in ("serious", "critical")]
        assert serious == [], path
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 1, f"{path} is wider than a window of {width}"
    context.close()


def test_times_are_in_the_viewers_zone_with_the_exact_value_on_hover(shop: Shop, url: str, chrome: Any) -> None:
    chain = shop.completed()
    exact = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        context = chrome.new_context(timezone_id=zone, locale="en-US")
        page = context.new_page()
        page.goto(f"{url}chains/{chain.id}")
        page.wait_for_selector("time[data-exact]")
        exact.append(page.get_attribute("#facts time", "title"))
        assert "ago" in page.inner_text("#facts time")
        context.close()
    assert exact[0] != exact[1]
    assert all(chain.created_at.strftime("%Y-%m-%dT%H:%M:%S") in title for title in exact)

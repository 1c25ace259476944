"""What the pages show, on every database, through the WSGI application."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from support.dashboard import SCRIPT, Browser, Shop
from support.waiting import eventually

from queuert import Dedup, Queuert
from queuert.dashboard import create_app


@pytest.mark.parametrize("path", ["/", "/chains", "/jobs", "/types", "/workers", "/schedules", "/limits"])
def test_an_empty_queue_has_pages_that_say_what_to_do(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    if path not in ("/types",):  # the app defines types, so there are some
        assert 'class="empty"' in answer.text or "Nothing is wrong" in answer.text


def test_the_overview_says_what_is_wrong_and_has_the_button_that_repairs_it(shop: Shop, browser: Browser) -> None:
    assert "Nothing is wrong" in browser.get("/").text
    blocker = shop.failed()
    shop.app.start_chain("charge", {}, blockers=[blocker])
    page = Browser(create_app(shop.app)).get("/").text
    assert "1 job has failed for good" in page
    assert "1 job waits for chains that failed" in page
    assert "TIMEOUT:GATEWAY" in page
    assert re.search(r'<form method="post" action="/many/retry">', page)


def test_ten_open_overviews_ask_the_database_once(shop: Shop, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    stats = Queuert.stats
    monkeypatch.setattr(Queuert, "stats", lambda self, **options: asked.append(1) or stats(self, **options))
    for _ in range(10):
        assert browser.get("/").status_code == 200
    assert len(asked) <= 2  # one a second


def test_a_page_that_has_not_changed_is_not_sent_again(browser: Browser) -> None:
    first = browser.get("/chains")
    again = browser.get("/chains", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert again.data == b""


def test_lists_are_filtered_by_address(shop: Shop, browser: Browser) -> None:
    failed, done = shop.failed(), shop.completed()
    other = shop.app.start_chain("mail", None, after=timedelta(days=1))
    for kind in ("chains", "jobs"):
        for query, expected in {
            "status=failed": {failed.id},
            "status=failed,completed": {failed.id, done.id},
            "status=failed&status=completed": {failed.id, done.id},
            "type=mail": {other.id},
            "error_code=TIMEOUT:": {failed.id},
            "error_code=TIMEOUT:GATEWAY": {failed.id},
            f"id={done.id}": {done.id},
            "since=1h": {failed.id, done.id, other.id},
            "until=1h": set(),
            "type=unheard-of": set(),
        }.items():
            page = browser.get(f"/{kind}?{query}")
            assert page.status_code == 200
            assert {each for each in (failed.id, done.id, other.id) if each in page.text} == expected, query
            listed = browser.get(f"/api/{kind}?{query}").get_json()
            assert {entry["id"] for entry in listed["items"]} == expected, query


def test_pages_of_a_list_follow_each_other_without_gap_or_repetition(shop: Shop, browser: Browser) -> None:
    started = [shop.app.start_chain("mail", None).id for _ in range(23)]
    seen: list[str] = []
    address: str | None = "/chains?limit=5&type=mail"
    while address is not None:
        page = browser.get(address).text
        seen.extend(re.findall(r'name="chosen" value="([^"]+)"', page))
        following = re.search(r'<a class="button" href="([^"]+)" rel="next">', page)
        address = following[1].replace("&amp;", "&") if following else None
    assert seen == sorted(started, reverse=True)


def test_a_chain_shows_its_jobs_what_it_waits_for_and_what_waits_for_it(shop: Shop, browser: Browser) -> None:
    blocker = shop.failed(order=77)
    waiting = shop.app.start_chain("mail", None, blockers=[blocker])
    page = browser.get(f"/chains/{blocker.id}").text
    assert "TIMEOUT:GATEWAY" in page
    assert "&#34;order&#34;: 77" in page
    assert f'href="/jobs/{waiting.id}"' in page
    page = browser.get(f"/chains/{waiting.id}").text
    assert f'href="/chains/{blocker.id}"' in page
    page = browser.get(f"/jobs/{waiting.id}").text
    assert "Waits for" in page
    assert blocker.id in page


def test_hundreds_of_blockers_fold_and_the_failed_ones_stay_visible(shop: Shop, browser: Browser) -> None:
    from queuert import NewChain

    blockers = shop.app.start_chains([NewChain("charge", {"fail": n == 150}) for n in range(200)])
    joined = shop.app.start_chain("mail", None, blockers=blockers)
    shop.app.drain()
    page = browser.get(f"/chains/{joined.id}").text
    drawing = page[page.index('<svg class="graph"') : page.index("</svg>", page.index('<svg class="graph"'))]
    assert "194 chains more" in drawing
    assert blockers[150].id in drawing
    assert drawing.count("<a ") < 10


def test_the_address_of_a_continuation_among_chains_leads_to_the_job(shop: Shop, browser: Browser) -> None:
    @shop.app.job("first")
    def first(job):  # type: ignore[no-untyped-def]
        return job.continue_with("mail", None)

    chain = shop.app.start_chain("first", None)
    shop.app.drain()
    tail = shop.found(chain.id).tail_id
    assert tail != chain.id
    answer = browser.get(f"/chains/{tail}")
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/jobs/{tail}"
    assert browser.get(f"/jobs/{tail}").status_code == 200


def test_the_search_box_finds_ids_types_and_codes(shop: Shop, browser: Browser) -> None:
    failed = shop.failed()
    for wanted, place in {
        failed.id: f"/chains/{failed.id}",
        failed.id.upper(): f"/chains/{failed.id}",
        failed.id[-8:]: f"/chains/{failed.id}",
        "mail": "/jobs?type=mail",
        "TIMEOUT:GATEWAY": "/jobs?error_code=TIMEOUT%3AGATEWAY",
    }.items():
        answer = browser.get("/search", query_string={"q": wanted})
        assert (answer.status_code, answer.headers["Location"]) == (303, place)
    assert browser.get("/search?q=mai").status_code == 200
    assert browser.get("/search?q=nothing-of-the-kind").status_code == 404


def test_what_jobs_carry_is_shown_as_text(shop: Shop, browser: Browser) -> None:
    chain = shop.failed(note=SCRIPT, **{SCRIPT: "key"})
    paths = ("/", "/jobs", "/chains", f"/jobs/{chain.id}", f"/chains/{chain.id}", "/search?q=" + SCRIPT)
    for path in paths:
        assert SCRIPT not in browser.get(path).text, path
    assert "&lt;script&gt;" in browser.get(f"/jobs/{chain.id}").text


def test_secrets_are_not_shown(shop: Shop, browser: Browser) -> None:
    chain = shop.failed(password="correct horse", nested=[{"API-Key": "k-123", "fine": "visible"}])
    for path in (f"/jobs/{chain.id}", f"/chains/{chain.id}", f"/api/jobs/{chain.id}", f"/api/chains/{chain.id}", "/api/jobs"):
        text = browser.get(path).text
        for secret in ("correct horse", "k-123", "hunter2"):
            assert secret not in text, (path, secret)
        assert "visible" in text


def test_an_app_can_redact_in_its_own_way(shop: Shop) -> None:
    chain = shop.failed(order=1234567)
    seen = set()

    def redact(kind: str, type_name: str, value: object) -> object:
        seen.add((kind, type_name))
        return "hidden by me"

    page = Browser(create_app(shop.app, redact=redact)).get(f"/jobs/{chain.id}").text
    assert "hidden by me" in page
    assert "1234567" not in page
    assert "hunter2" not in page
    assert {("input", "charge"), ("error", "charge")} <= seen


def test_a_huge_payload_is_cut(shop: Shop, browser: Browser) -> None:
    chain = shop.completed(text="x" * 900_000)
    assert len(browser.get(f"/chains/{chain.id}").data) < 1_000_000
    assert len(browser.get("/api/jobs").data) < 20_000
    job = browser.get("/api/jobs").get_json()["items"][0]
    assert job["input"]["truncated"] is True
    assert job["input"]["characters"] > 900_000


def test_schedules_are_shown_with_their_next_run(shop: Shop, browser: Browser) -> None:
    shop.app.periodic(3600, name="nightly")(shop.app.types.get("mail"))
    page = browser.get("/schedules").text
    assert "nightly" in page
    assert "every 3600 s" in page


def test_types_have_durations(shop: Shop, browser: Browser) -> None:
    for _ in range(3):
        shop.completed()
    kinds = {kind["name"]: kind for kind in browser.get("/api/types").get_json()["items"]}
    assert kinds["charge"]["seconds"]["sample"] == 3
    assert kinds["charge"]["seconds"]["p50"] <= kinds["charge"]["seconds"]["p95"]
    assert kinds["mail"]["seconds"]["sample"] == 0


def test_workers_are_shown_and_nobody_at_work_is_a_trouble(shop: Shop) -> None:
    shop.app.start_chain("mail", None)
    assert "no worker is alive" in Browser(create_app(shop.app)).get("/").text
    with shop.app.worker(concurrency=3, name="packer"):
        eventually(lambda: shop.app.workers())
        browser = Browser(create_app(shop.app))
        for path in ("/", "/workers"):
            page = browser.get(path).text
            assert "packer" in page
            assert "no worker is alive" not in page
        [worker] = browser.get("/api/workers").get_json()["items"]
        assert worker["concurrency"] == 3
        assert worker["lost"] is False
    assert "No worker is there" in Browser(create_app(shop.app)).get("/workers").text


def test_metrics_are_served_as_prometheus_reads_them(shop: Shop, browser: Browser) -> None:
    shop.failed()
    answer = browser.get("/metrics")
    assert answer.status_code == 200
    assert answer.mimetype == "text/plain"
    assert 'queuert_jobs{status="failed",type="charge"} 1.0' in answer.text


def test_a_job_that_does_not_run_says_why(shop: Shop, browser: Browser) -> None:
    blocker = shop.failed()
    waiting = shop.app.start_chain("mail", None, blockers=[blocker])
    for path in (f"/chains/{waiting.id}", f"/jobs/{waiting.id}"):
        page = browser.get(path).text
        assert "Why it does not run" in page
        reasons = browser.get(f"/api{path}").get_json()["why"]["reasons"]
        assert reasons[0]["code"] == "stranded"
        assert reasons[0]["ids"] == [blocker.id]
    assert "Why it does not run" not in browser.get(f"/chains/{blocker.id}").text


def test_what_waits_is_told_apart_and_what_was_done_is_counted(shop: Shop) -> None:
    shop.app.start_chain("mail", None, after=3600)
    with shop.app.worker() as worker:
        chains = [shop.app.start_chain("charge", {}) for _ in range(3)]
        for chain in chains:
            shop.app.wait_for(chain, timeout=20)
        worker.stop()
    browser = Browser(create_app(shop.app))
    page = browser.get("/").text
    tiles = dict(reversed(pair) for pair in re.findall(r'<span class="n">([^<]+)</span><span>([^<]+)</span>', page))
    assert (tiles["scheduled"], tiles["ready"], tiles["backing off"], tiles["completed"]) == ("1", "0", "0", "3")
    overview = browser.get("/api/overview").get_json()
    assert len(overview["pace"]) == 12
    kinds = {kind["name"]: kind for kind in browser.get("/api/types").get_json()["items"]}
    assert sum(part["completed"] for part in overview["pace"]) == kinds["charge"]["rates"]["hour"]["completed"] == 3
    assert kinds["charge"]["failure_share"] == 0


def test_jobs_are_found_by_worker_key_and_field_of_the_input(shop: Shop, browser: Browser) -> None:
    done = shop.completed(order=7, customer={"name": "Ann"})
    other = shop.completed(order=77)
    keyed = shop.app.start_chain("mail", None, dedup=Dedup("monday"))
    worker = shop.app.get_job(done.id).completed_by  # type: ignore[union-attr]
    for query, expected in {
        "input=order%3D7": {done.id},
        "input=customer.name%3DAnn": {done.id},
        "input=customer.age%3D7": set(),
        "key=monday": {keyed.id},
        "key=mon": set(),
        f"worker={worker}": {done.id} if worker != shop.app.get_job(other.id).completed_by else {done.id, other.id},  # type: ignore[union-attr]
        "worker=nobody": set(),
    }.items():
        assert {job["id"] for job in browser.get(f"/api/jobs?{query}").get_json()["items"]} == expected, query
        page = browser.get(f"/jobs?{query}").text
        assert {each for each in (done.id, other.id, keyed.id) if f'value="{each}"' in page} == expected, query
        assert "of 3 looked at" in page
    for query in ("input=order", "input=%3D7", "input=password%3Dx", "input=a.api_key%3Dx"):
        assert browser.get(f"/jobs?{query}").status_code == 400, query


def test_a_scan_stops_and_its_next_page_goes_on(shop: Shop, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuert.dashboard import scanning

    monkeypatch.setattr(scanning, "LOOKED_AT", 10)
    wanted = shop.app.start_chain("mail", None, dedup=Dedup("monday"))
    for _ in range(25):
        shop.app.start_chain("mail", None)
    cursor, found, pages = "", [], 0
    while cursor is not None:
        page = browser.get(f"/api/jobs?key=monday&limit=5&cursor={cursor}").get_json()
        found, cursor, pages = [*found, *page["items"]], page["next_cursor"], pages + 1
    assert [job["id"] for job in found] == [wanted.id]
    assert pages == 3

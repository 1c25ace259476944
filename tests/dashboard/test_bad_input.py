"""What cannot be answered gets a page that says why, and the right status; never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.dashboard import Browser, Shop
from support.waiting import eventually

from queuert import Queuert
from queuert.dashboard import create_app

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"

ADDRESSES = {
    "/nothing": 404,
    "/chains/nonsense": 404,
    f"/chains/{UNKNOWN}": 404,
    f"/jobs/{UNKNOWN}": 404,
    "/chains/%00": 404,
    "/jobs/%ff%fe": 404,
    "/jobs?cursor=broken": 400,
    "/jobs?cursor=" + "x" * 5_000: 400,
    "/jobs?limit=1000000": 400,
    "/jobs?limit=0": 400,
    "/jobs?limit=-1": 400,
    "/jobs?limit=" + "9" * 500: 400,
    "/jobs?limit=%D9%A3": 400,
    "/jobs?status=unheard-of": 400,
    "/jobs?type=%00": 400,
    "/jobs?since=yesterday-ish": 400,
    "/jobs?since=0001-01-01T00:00%2B14:00": 400,
    "/jobs?since=9999999999999999999d": 400,
    "/jobs?order=sideways": 400,
    "/jobs?id=nonsense": 404,
    "/jobs?type=" + "x" * 10_000: 400,
    "/static/../wsgi.py": 404,
    "/static/nothing.js": 404,
    "/static/%2e%2e/wsgi.py": 404,
}


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_bad_addresses_get_a_page_and_a_status(browser: Browser, prefix: str) -> None:
    for address, status in ADDRESSES.items():
        if prefix and address.startswith("/static"):
            continue
        answer = browser.get(prefix + address)
        assert answer.status_code == status, address
        assert "Traceback" not in answer.text
        if prefix:
            assert answer.get_json()["error"]
        else:
            assert "<h1>" in answer.text


def test_the_api_refuses_a_filter_that_it_does_not_know(browser: Browser) -> None:
    answer = browser.get("/api/jobs?staus=failed")
    assert answer.status_code == 400
    assert "staus" in answer.get_json()["error"]
    assert browser.get("/api/overview?x=1").status_code == 400


def test_a_cursor_of_another_list_is_refused(shop: Shop, browser: Browser) -> None:
    for _ in range(3):
        shop.app.start_chain("mail", None)
    cursor = browser.get("/api/jobs?limit=1").get_json()["next_cursor"]
    assert browser.get(f"/api/jobs?limit=1&cursor={cursor}").status_code == 200
    assert browser.get(f"/api/chains?cursor={cursor}").status_code == 400


def test_an_error_that_nobody_expected_is_a_page_and_a_line_in_the_log(
    shop: Shop, browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(Queuert, "stats", broken)
    answer = browser.get("/")
    assert answer.status_code == 500
    assert "secret inside" not in answer.text
    assert "RuntimeError: secret inside" in caplog.text


def test_a_database_without_tables_is_said_so(empty_target: str) -> None:
    with Queuert(empty_target) as app:
        browser = Browser(create_app(app))
        answer = browser.get("/")
        assert answer.status_code == 503
        assert "migrate" in answer.text
        app.migrate()
        assert browser.get("/").status_code == 200


def test_a_database_that_is_away_gets_a_page_that_comes_back(pg_url: str, postgres_url: str) -> None:
    name = conninfo_to_dict(pg_url)["dbname"]
    with Queuert(pg_url) as app, psycopg.connect(postgres_url, autocommit=True) as admin:
        browser = Browser(create_app(app))
        assert browser.get("/jobs").status_code == 200
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            answer = eventually(lambda: _unlike(browser.get("/jobs"), 200))
            assert answer.status_code == 503
            assert 'http-equiv="refresh"' in answer.text
            assert answer.headers["Retry-After"]
            assert browser.get("/api/overview").status_code == 503
        finally:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        assert eventually(lambda: _unlike(browser.get("/jobs"), 503), timeout=30).status_code == 200


def _unlike(answer: Any, status: int) -> Any:
    return None if answer.status_code == status else answer


def test_a_sqlite_file_that_cannot_be_read_gets_a_page(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.write_bytes(b"this is no database, and is long enough to have a header of one" * 100)
    with Queuert(f"sqlite:///{path}") as app:
        answer = Browser(create_app(app)).get("/")
        assert answer.status_code in (400, 500, 503)
        assert "Traceback" not in answer.text

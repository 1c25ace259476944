"""Who is let in, by which name, and what the browser is told to forbid."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support.dashboard import Browser, Shop
from werkzeug.test import Client
from werkzeug.utils import redirect

from queuert import Queuert
from queuert.dashboard import create_app
from queuert.dashboard.serving import DashboardServer

TOKEN = "a token that nobody guesses"


def test_without_a_token_it_answers_only_on_this_machine(shop: Shop) -> None:
    client = Client(create_app(shop.app))
    for host in ("localhost", "127.0.0.1:8765", "[::1]:8765", "app.localhost"):
        assert client.get("/", headers={"Host": host}).status_code == 200, host
    for host in ("elsewhere.example", "localhost.elsewhere.example", "10.0.0.7", "[::2]", "localhost@elsewhere.example"):
        assert client.get("/", headers={"Host": host}).status_code in (400, 403), host
        assert client.get("/api/jobs", headers={"Host": host}).status_code in (400, 403), host
    assert client.get("/", headers={"X-Forwarded-For": "10.0.0.7"}).status_code == 403
    assert client.get("/", environ_overrides={"REMOTE_ADDR": "10.0.0.7"}).status_code == 403


def test_the_server_refuses_an_open_address_without_a_token(shop: Shop) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.7", ""):
        with pytest.raises(ValueError, match="token"):
            DashboardServer(create_app(shop.app), host, 0)


def test_a_token_opens_the_door(shop: Shop) -> None:
    client = Client(create_app(shop.app, token=TOKEN))
    for path in ("/", "/jobs", "/api/jobs", "/api/openapi.json", "/unheard-of"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "Bearer" in answer.headers["WWW-Authenticate"]
    assert client.get("/static/dashboard.css").status_code == 200
    for wrong in ("Bearer wrong", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
        assert client.get("/", headers={"Authorization": wrong}).status_code == 401, wrong
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}", "Host": "shop.example"}).status_code == 200


def test_a_token_in_the_address_moves_to_a_cookie(shop: Shop) -> None:
    client = Client(create_app(shop.app, token=TOKEN))
    assert client.get("/jobs?token=wrong").status_code == 401
    answer = client.get("/jobs", query_string={"status": "failed", "token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/jobs?status=failed"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert TOKEN not in cookie
    assert client.get("/jobs").status_code == 200
    client.set_cookie("queuert_token", "0" * 64)
    assert client.get("/jobs").status_code == 401


def test_authenticate_says_who_it_is(shop: Shop) -> None:
    def authenticate(request: Any) -> Any:
        name = request.headers.get("X-User")
        return redirect("/login") if name is None else name if name != "nobody" else None

    client = Client(create_app(shop.app, authenticate=authenticate))
    assert client.get("/").headers["Location"] == "/login"
    assert client.get("/", headers={"X-User": "nobody"}).status_code == 401
    assert client.get("/", headers={"X-User": "anna", "Host": "shop.example"}).status_code == 200


def test_names_of_hosts_can_be_given(shop: Shop) -> None:
    client = Client(create_app(shop.app, token=TOKEN, allowed_hosts=["Queue.Example"]))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers={**bearer, "Host": "queue.example:443"}).status_code == 200
    assert client.get("/", headers={**bearer, "Host": "elsewhere.example"}).status_code == 400


def test_every_answer_forbids_what_pages_do_not_need(shop: Shop, browser: Browser) -> None:
    for path in ("/", "/jobs", "/unheard-of", "/api/jobs", "/static/dashboard.js", "/jobs?limit=0"):
        headers = browser.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert browser.get("/").headers["Cache-Control"] == "no-store"


def test_pages_have_no_inline_scripts_or_styles_and_load_nothing_from_elsewhere(shop: Shop, browser: Browser) -> None:
    chain = shop.failed()
    for path in ("/", "/jobs", "/chains", "/types", "/schedules", f"/chains/{chain.id}", f"/jobs/{chain.id}", "/nope"):
        page = browser.get(path).text
        assert " style=" not in page
        assert "<style" not in page
        assert page.count("<script") == 1
        assert "onclick" not in page
        assert "http://" not in page.replace("http://localhost", "")
        assert "https://" not in page


@pytest.mark.parametrize(
    ("options", "script_name", "path"),
    [
        ({"base_path": "/queue"}, "", "/queue"),  # the server leaves it on
        ({"base_path": "/queue"}, "", ""),  # a proxy takes it off
        ({}, "/queue", ""),  # mounted
        ({"base_path": "/queue"}, "/queue", ""),  # mounted, and told so
    ],
)
def test_it_works_under_any_path(shop: Shop, options: dict[str, str], script_name: str, path: str) -> None:
    chain = shop.failed()
    client = Client(create_app(shop.app, **options))
    mounted = {"SCRIPT_NAME": script_name}
    for page in ("", "/", "/jobs", f"/chains/{chain.id}"):
        answer = client.get(f"{path}{page}" or "/", environ_overrides=mounted)
        assert answer.status_code == 200, page
        assert 'href="/queue/static/dashboard.css' in answer.text
        assert 'href="/queue/jobs"' in answer.text


def test_bad_options_are_refused(app: Queuert) -> None:
    for options in ({"base_path": "queue"}, {"token": ""}, {"token": "  "}):
        with pytest.raises(ValueError, match="must"):
            create_app(app, **options)
    for options in ({"authenticate": "me"}, {"redact": 3}, {"allowed_hosts": "localhost"}):
        with pytest.raises(TypeError):
            create_app(app, **options)
    with pytest.raises(TypeError, match="Queuert"):
        create_app("sqlite:///shop.db")


def test_a_form_that_is_too_large_is_refused(browser: Browser) -> None:
    answer = browser.client.post("/many/retry", data={"csrf_token": browser.token(), "reason": "x" * 3_000_000})
    assert answer.status_code == 413
    endless = browser.client.post(
        "/many/retry", input_stream=io.BytesIO(b"x=" + b"y" * 3_000_000), content_type="application/x-www-form-urlencoded"
    )
    assert endless.status_code in (403, 413)

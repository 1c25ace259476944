"""Acting through the pages: with a form's token, recorded with who and why, one or many."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.dashboard import Browser, Shop

from queuert import Limit
from queuert.dashboard import create_app


def test_a_failed_chain_is_retried_and_completes(shop: Shop, browser: Browser) -> None:
    chain = shop.failed()
    shop.broken = False
    answer = browser.post(f"/chains/{chain.id}/retry", {"reason": "the bank is back"})
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/chains/{chain.id}?done=retry"
    shop.app.drain()
    assert shop.found(chain.id).status == "completed"
    retried = [entry for entry in shop.app.timeline(chain.id) if entry.event == "RETRIED"]
    assert [entry.actor for entry in retried] == ["dashboard"]
    assert retried[0].detail["reason"] == "the bank is back"
    page = browser.get(answer.headers["Location"]).text
    assert "Retried." in page


def test_chains_are_cancelled_finished_and_deleted(shop: Shop, browser: Browser) -> None:
    chain = shop.app.start_chain("mail", None)
    assert browser.post(f"/chains/{chain.id}/cancel").status_code == 303
    assert shop.found(chain.id).status == "cancelled"
    other = shop.failed()
    assert browser.post(f"/chains/{other.id}/delete").headers["Location"].startswith("/chains?")
    assert shop.app.get_chain(other.id) is None
    third = shop.app.start_chain("mail", None)
    assert browser.post(f"/chains/{third.id}/finish", {"output": "null"}).status_code == 303
    assert shop.found(third.id).status == "completed"


def test_a_scheduled_job_is_run_now(shop: Shop, browser: Browser) -> None:
    chain = shop.app.start_chain("mail", None, after=timedelta(days=1))
    assert browser.post(f"/jobs/{chain.id}/trigger").status_code == 303
    shop.app.drain()
    assert shop.found(chain.id).status == "completed"


def test_cancelling_with_cascade_cancels_what_waits(shop: Shop, browser: Browser) -> None:
    blocker = shop.app.start_chain("mail", None, after=60)
    waiting = shop.app.start_chain("mail", None, blockers=[blocker])
    browser.post(f"/chains/{blocker.id}/cancel", {"cascade": "yes"})
    assert shop.found(waiting.id).status == "cancelled"


def test_many_are_asked_about_first_and_then_done(shop: Shop, browser: Browser) -> None:
    failed = [shop.failed().id for _ in range(3)]
    other = shop.completed()
    answer = browser.post("/many/retry", {"kind": "chains", "status": "failed", "type": "charge"})
    assert answer.status_code == 200
    assert "Retry 3 chains?" in answer.text
    assert all(shop.found(id).status == "failed" for id in failed)
    answer = browser.post("/many/retry", {"kind": "chains", "status": "failed", "type": "charge", "confirmed": "yes"})
    assert answer.status_code == 303
    assert "number=3" in answer.headers["Location"]
    assert "Retried 3." in browser.get(answer.headers["Location"]).text
    assert all(shop.found(id).status == "pending" for id in failed)
    assert shop.found(other.id).status == "completed"


def test_one_of_many_that_has_moved_on_is_left_alone(shop: Shop, browser: Browser) -> None:
    failed, done = shop.failed(), shop.completed()
    answer = browser.post("/many/retry", {"kind": "chains", "chosen": [failed.id, done.id], "confirmed": "yes"})
    assert "number=1&skipped=1" in answer.headers["Location"]
    assert shop.found(failed.id).status == "pending"
    assert shop.found(done.id).status == "completed"


def test_nothing_that_matches_is_said_so(shop: Shop, browser: Browser) -> None:
    answer = browser.post("/many/delete", {"kind": "chains", "status": "cancelled", "confirmed": "yes"})
    assert answer.status_code == 200
    assert "Nothing to delete" in answer.text


def test_an_act_that_comes_too_late_changes_nothing_and_says_why(shop: Shop, browser: Browser) -> None:
    chain = shop.completed()
    for path in (f"/chains/{chain.id}/retry", f"/jobs/{chain.id}/trigger", f"/chains/{chain.id}/finish"):
        answer = browser.post(path)
        assert answer.status_code == 409, path
        assert "Nothing was changed" in answer.text
    assert shop.found(chain.id).status == "completed"


@pytest.mark.parametrize("output", ["{", "[" * 100_000])
def test_an_output_that_is_no_json_is_refused(shop: Shop, browser: Browser, output: str) -> None:
    chain = shop.app.start_chain("mail", None)
    assert browser.post(f"/chains/{chain.id}/finish", {"output": output}).status_code == 400
    assert shop.found(chain.id).status == "pending"


def test_an_act_without_the_token_of_a_form_is_refused(shop: Shop, browser: Browser) -> None:
    chain = shop.failed()
    browser.token()
    for form in ({}, {"csrf_token": ""}, {"csrf_token": "wrong"}, {"csrf_token": "é"}):
        assert browser.client.post(f"/chains/{chain.id}/retry", data=form).status_code == 403
    right = {"csrf_token": browser.token()}
    for headers in ({"Origin": "http://elsewhere.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert browser.client.post(f"/chains/{chain.id}/retry", data=right, headers=headers).status_code == 403
    stranger = Browser(browser.client.application)
    assert stranger.client.post(f"/chains/{chain.id}/retry", data=right).status_code == 403
    assert shop.found(chain.id).status == "failed"
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert browser.client.post(f"/chains/{chain.id}/retry", data=right, headers=own).status_code == 303


def test_looking_changes_nothing(shop: Shop, browser: Browser) -> None:
    chain = shop.failed()
    for act in ("retry", "cancel", "delete"):
        assert browser.get(f"/chains/{chain.id}/{act}").status_code == 405
    assert shop.found(chain.id).status == "failed"


def test_a_read_only_dashboard_has_no_buttons_and_refuses(shop: Shop) -> None:
    chain = shop.failed()
    browser = Browser(create_app(shop.app, read_only=True))
    for path in ("/", "/chains", f"/chains/{chain.id}", f"/jobs/{chain.id}"):
        page = browser.get(path)
        assert page.status_code == 200
        assert 'method="post"' not in page.text
    assert browser.post(f"/chains/{chain.id}/retry").status_code == 403
    assert shop.found(chain.id).status == "failed"


def test_a_callable_decides_who_may_act(shop: Shop) -> None:
    chain = shop.failed()
    asked = []

    def may_act(name: str, act: str) -> bool:
        asked.append((name, act))
        return act == "retry"

    browser = Browser(create_app(shop.app, authenticate=lambda request: "anna", may_act=may_act))
    page = browser.get(f"/chains/{chain.id}").text
    assert f'action="/chains/{chain.id}/retry"' in page
    assert f'action="/chains/{chain.id}/delete"' not in page
    assert browser.post(f"/chains/{chain.id}/delete").status_code == 403
    assert browser.post(f"/chains/{chain.id}/retry").status_code == 303
    assert ("anna", "retry") in asked
    assert [entry.actor for entry in shop.app.timeline(chain.id) if entry.event == "RETRIED"] == ["anna"]


@pytest.mark.parametrize("back", ["//elsewhere.example/", "http://elsewhere.example/", "/\\elsewhere.example", "javascript:0"])
def test_an_act_leads_back_to_no_other_site(shop: Shop, browser: Browser, back: str) -> None:
    chain = shop.failed()
    assert browser.post(f"/chains/{chain.id}/retry", {"back": back}).headers["Location"].startswith(f"/chains/{chain.id}")


def test_a_paused_type_is_not_run_until_it_is_resumed(shop: Shop, browser: Browser) -> None:
    assert browser.post("/types/mail/pause", {"reason": "the provider is down", "for": "2h"}).status_code == 303
    [pause] = shop.app.pauses()
    assert (pause.type_name, pause.reason, pause.actor) == ("mail", "the provider is down", "dashboard")
    assert pause.until is not None
    assert timedelta(hours=1) < pause.until - pause.since <= timedelta(hours=2, seconds=5)
    chain = shop.app.start_chain("mail", None)
    shop.app.drain()
    assert shop.found(chain.id).status == "pending"
    for path in ("/", "/types"):
        assert "the provider is down" in browser.get(path).text
    assert 'action="/types/mail/resume"' in browser.get("/").text
    assert browser.post("/types/mail/resume").status_code == 303
    shop.app.drain()
    assert shop.found(chain.id).status == "completed"


def test_everything_is_paused_and_resumed(shop: Shop, browser: Browser) -> None:
    browser.post("/pause")
    chain = shop.app.start_chain("mail", None)
    shop.app.drain()
    assert shop.found(chain.id).status == "pending"
    assert "Everything is paused" in browser.get("/").text
    browser.post("/resume")
    assert shop.app.pauses() == []


def test_a_schedule_is_paused_resumed_and_run_now(shop: Shop, browser: Browser) -> None:
    shop.app.periodic(3600, name="hourly/mail")(shop.app.types.get("mail"))
    assert browser.post("/schedules/hourly%2Fmail/pause", {"reason": "holidays"}).status_code == 303
    assert "holidays" in browser.get("/schedules").text
    assert browser.post("/schedules/hourly%2Fmail/resume").status_code == 303
    assert "holidays" not in browser.get("/schedules").text
    assert browser.post("/schedules/hourly%2Fmail/start").status_code == 303
    assert [chain.type_name for chain in shop.app.list_chains().items] == ["mail"]
    assert browser.post("/schedules/unheard-of/start").status_code == 400


def test_a_pause_for_nonsense_is_refused(shop: Shop, browser: Browser) -> None:
    for wrong in ("soon", "9" * 30 + "d", "-1"):
        assert browser.post("/types/mail/pause", {"for": wrong}).status_code == 400
    assert shop.app.pauses() == []


def test_a_limit_is_set_and_reset(shop: Shop, browser: Browser) -> None:
    shop.app.job("call", limit=Limit(3, name="bank/eu"))(lambda job: None)
    shop.app.start_chain("call")
    assert "bank/eu" in browser.get("/limits").text
    answer = browser.post("/limits/bank%2Feu/set", {"concurrency": "7", "rate": "100", "per": "60", "burst": ""})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/limits?done=limit")
    [limit] = shop.app.limits()
    assert (limit.concurrency, limit.rate, limit.per, limit.set_by) == (7, 100, 60, "dashboard")
    page = browser.get(answer.headers["Location"]).text
    assert "The limit is set." in page
    assert "100 in 60 s" in page
    [shown] = browser.get("/api/limits").get_json()["items"]
    assert (shown["name"], shown["concurrency"], shown["waiting"]) == ("bank/eu", 7, 1)
    assert browser.post("/limits/bank%2Feu/reset").status_code == 303
    [limit] = shop.app.limits()
    assert (limit.concurrency, limit.set_by) == (3, None)


def test_a_limit_is_not_set_to_nonsense_nor_by_a_stranger(shop: Shop, browser: Browser) -> None:
    shop.app.job("call", limit=Limit(3))(lambda job: None)
    shop.app.start_chain("call")
    for wrong in ({}, {"concurrency": "0"}, {"concurrency": "many"}, {"rate": "nan"}, {"per": "-1"}, {"burst": "1.5"}):
        assert browser.post("/limits/call/set", wrong).status_code == 400, wrong
    assert browser.client.post("/limits/call/set", data={"concurrency": "7"}).status_code == 403
    reader = Browser(create_app(shop.app, read_only=True))
    assert reader.client.post("/limits/call/set", data={"concurrency": "7"}).status_code == 403
    assert "/limits/call/set" not in reader.get("/limits").text
    [limit] = shop.app.limits()
    assert (limit.concurrency, limit.set_by) == (3, None)

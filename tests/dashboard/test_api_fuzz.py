"""Every route of the JSON, as its own description has it, with whatever a generator thinks of: no answer is a 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.dashboard import Browser, Shop

from queuert.dashboard import create_app

schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = 40


def test_no_route_of_the_description_fails_whatever_it_is_asked(shop: Shop) -> None:
    for _ in range(3):
        shop.failed(), shop.completed()
    wsgi = create_app(shop.app)
    schema = schemathesis.openapi.from_wsgi("/api/openapi.json", wsgi)
    routes = [operation.ok() for operation in schema.get_all_operations()]
    described = Browser(wsgi).get("/api/openapi.json").get_json()["paths"]
    assert {route.path for route in routes} == set(described)
    for route in routes:
        _fuzz(route)


def _fuzz(route: Any) -> None:
    from hypothesis import given

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(case=route.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call()
        assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
        case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])

    run: Callable[[], None] = ask
    run()


def test_every_route_under_api_is_described(shop: Shop) -> None:
    from queuert.dashboard.routes import ROUTES

    described = set(Browser(create_app(shop.app)).get("/api/openapi.json").get_json()["paths"])
    served = {rule.rule.replace("<id>", "{id}") for rule in ROUTES.iter_rules() if rule.rule.startswith("/api/")}
    assert served - {"/api/openapi.json"} == described

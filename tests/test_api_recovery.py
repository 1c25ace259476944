"""Answers that get lost on the way from the server: what was committed is found, what was not is done again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.proxy import Fault, Proxy

from queuert import Chain, Dedup, DuplicateJobIdError, NewChain, Queuert

CHOSEN = "0190a0b0-0000-7000-8000-000000000001"
SINGLE, COMMIT = b'INSERT INTO "public"."queuert_job" (', b"COMMIT"


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.fixture
def app(proxy: Proxy) -> Iterator[Queuert]:
    with Queuert(proxy.url, prepared_statements=False) as app:
        app.declare("work", input=dict)
        app.list_chains()  # connected, so that the fault meets what is tested
        yield app


@pytest.mark.parametrize("fault", ["lose the answer", "lose the request"])
@pytest.mark.parametrize("chosen", [None, CHOSEN])
def test_a_chain_is_started_once_whatever_gets_lost(app: Queuert, proxy: Proxy, fault: Fault, chosen: str | None) -> None:
    proxy.arm(SINGLE, fault)
    chain = app.start_chain("work", {"n": 1}, id=chosen)
    assert proxy.cuts == 1
    assert app.list_chains().items == [chain]
    assert chain.id == (chosen or chain.id)


@pytest.mark.parametrize("fault", ["lose the answer", "lose the request"])
def test_a_batch_with_keys_and_blockers_is_started_once(app: Queuert, proxy: Proxy, fault: Fault) -> None:
    blocker = app.start_chain("work", {})
    proxy.arm(COMMIT, fault)
    batch = [NewChain("work", {"n": n}, dedup=Dedup(f"k{n // 2}"), blockers=[blocker]) for n in range(4)]
    chains = app.start_chains(batch)
    assert proxy.cuts == 1
    assert [chain.deduplicated for chain in chains] == [False, True, False, True]
    found: list[Chain] = app.list_chains(statuses=["blocked"], order="asc").items
    assert [chains[0], chains[2]] == found


def test_an_id_that_was_there_before_is_still_a_duplicate(app: Queuert, proxy: Proxy) -> None:
    app.start_chain("work", {"n": 1}, id=CHOSEN)
    proxy.arm(SINGLE, "lose the answer")
    with pytest.raises(DuplicateJobIdError):
        app.start_chain("work", {"n": 2}, id=CHOSEN)
    assert proxy.cuts == 1

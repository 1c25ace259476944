"""Waiting for a chain: closed, failed, cancelled, in time or not; by notification and by polling."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support import eventually
from support.handlers import held
from support.inside import subscribers_of

from queuert import (
    Chain,
    ChainCancelledError,
    ChainFailedError,
    ChainNotFoundError,
    Continuation,
    Queuert,
    RunningJob,
    WaitTimeoutError,
)

FOREVER = 3600.0


@pytest.fixture(autouse=True)
def _types(app: Queuert) -> None:
    app.declare("work")


def finish(app: Queuert, chain: Chain, output: object = None) -> None:
    with app.complete_chain(chain.id) as tail:
        tail.finish(output)


class Waiter:
    """Waits in a thread."""

    def __init__(self, app: Queuert, chain: Any, **options: Any) -> None:
        self.answer: Any = None
        self._app = app
        self._call = lambda: app.wait_for(chain, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

        eventually(self._waits)

    def _waits(self) -> bool:
        notifier: Any = self._app._context.notifier
        bus = notifier.buses.peek()
        return not self._thread.is_alive() or bool(bus and bus._subscribers)

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except Exception as error:
            self.answer = error

    def result(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive(), "still waiting"
        return self.answer


def test_a_closed_chain_is_given_back_at_once(app: Queuert) -> None:
    chain = app.start_chain("work")
    finish(app, chain, {"a": 1})
    for ref in (chain, chain.id, chain.id.upper()):
        done = app.wait_for(ref, timeout=0)
        assert done.output == {"a": 1}
        assert done == app.get_chain(chain.id)


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_a_chain_that_stays_open_is_a_timeout(app: Queuert, timeout: Any) -> None:
    chain = app.start_chain("work")
    with pytest.raises(WaitTimeoutError) as raised:
        app.wait_for(chain, timeout=timeout)
    assert isinstance(raised.value, TimeoutError)
    assert (raised.value.chain_id, raised.value.status) == (chain.id, "pending")


def test_a_failed_chain_raises_with_its_record(app: Queuert) -> None:
    @app.job
    def broken(job: RunningJob[None]) -> None:
        job.fail("PAYMENT:DECLINED", "no money")

    chain = app.start_chain(broken)
    app.drain()
    with pytest.raises(ChainFailedError, match="PAYMENT:DECLINED") as raised:
        app.wait_for(chain, timeout=5)
    assert raised.value.chain == app.get_chain(chain.id)
    assert app.wait_for(chain, timeout=5, raise_on_failure=False).status == "failed"


def test_a_cancelled_chain_raises_with_its_record(app: Queuert) -> None:
    chain = app.start_chain("work")
    app.cancel_chain(chain.id)
    with pytest.raises(ChainCancelledError) as raised:
        app.wait_for(chain, timeout=5)
    assert raised.value.chain == app.get_chain(chain.id)
    assert app.wait_for(chain, timeout=5, raise_on_failure=False).status == "cancelled"


def test_an_unknown_or_deleted_chain_is_not_found(app: Queuert) -> None:
    with pytest.raises(ChainNotFoundError):
        app.wait_for("0190a0b0-0000-7000-8000-000000000009", timeout=5)
    chain = app.start_chain("work")
    waiter = Waiter(app, chain, timeout=20, poll_interval=FOREVER)
    app.delete_chain(chain.id)
    assert isinstance(waiter.result(), ChainNotFoundError)


@pytest.mark.parametrize("ending", ["finish", "cancel", "fail", "worker"])
def test_a_notification_wakes_whatever_the_poll_interval(app: Queuert, ending: str) -> None:
    @app.job
    def ends(job: RunningJob[None]) -> str:
        if ending == "fail":
            job.fail("NO:GOOD")
        return "done"

    chain = app.start_chain(ends)
    waiter = Waiter(app, chain, timeout=20, poll_interval=FOREVER, raise_on_failure=False)
    if ending == "finish":
        finish(app, chain, "done")
    elif ending == "cancel":
        app.cancel_chain(chain.id)
    else:
        app.drain()
    expected = {"finish": "completed", "cancel": "cancelled", "fail": "failed", "worker": "completed"}[ending]
    assert waiter.result().status == expected


def test_polling_finds_what_nobody_told_of(app: Queuert, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has one app, which tells itself")
    chain = app.start_chain("work")
    with Queuert(target, notify="none") as deaf:
        waiter = Waiter(deaf, chain.id, timeout=20, poll_interval=0.02)
        finish(app, chain)
        assert waiter.result().status == "completed"


def test_another_app_on_the_same_database_is_told(app: Queuert, target: str) -> None:
    if ":memory:" in target:
        pytest.skip("an in-memory database has one app")
    chain = app.start_chain("work")
    with Queuert(target) as other:
        waiter = Waiter(other, chain.id, timeout=20, poll_interval=FOREVER)
        finish(app, chain)
        assert waiter.result().status == "completed"


def test_a_continuation_does_not_end_the_wait(app: Queuert) -> None:
    @app.job
    def first(job: RunningJob[None]) -> Continuation:
        return job.continue_with("work")

    chain = app.start_chain(first)
    waiter = Waiter(app, chain, timeout=20, poll_interval=0.01)
    app.drain()
    with pytest.raises(WaitTimeoutError):
        app.wait_for(chain, timeout=0.05)
    finish(app, chain, "end")
    assert waiter.result().output == "end"


def test_many_threads_wait_at_once(app: Queuert) -> None:
    chains = [app.start_chain("work", n) for n in range(4)]
    with ThreadPoolExecutor(24) as pool:
        waiting = [pool.submit(app.wait_for, chains[n % 4], timeout=20, poll_interval=FOREVER) for n in range(24)]
        eventually(lambda: len(subscribers_of(app)) == 24)
        for number, chain in enumerate(chains):
            finish(app, chain, number)
        assert [future.result(20).output for future in waiting] == [n % 4 for n in range(24)]


def test_waiting_leaves_no_thread_behind(app: Queuert, target: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    chain = app.start_chain("work")
    with pytest.raises(WaitTimeoutError):
        app.wait_for(chain, timeout=0.05)
    app.close()
    eventually(lambda: {thread.name for thread in threading.enumerate()} <= before)


def test_a_running_chain_is_waited_for(app: Queuert) -> None:
    with held(app) as running:
        waiter = Waiter(app, running.chain, timeout=20, poll_interval=FOREVER)
        with pytest.raises(WaitTimeoutError, match="running"):
            app.wait_for(running.chain, timeout=0.01)
        running.let_go()
        assert waiter.result().output == "by the handler"


def test_bad_options_are_refused(app: Queuert) -> None:
    chain = app.start_chain("work")
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"timeout": -1}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": 1, "poll_interval": 0}, ValueError),
        ({"timeout": 1, "poll_interval": -1}, ValueError),
        ({"timeout": 1, "poll_interval": "1"}, TypeError),
    ]
    for options, error in cases:
        with pytest.raises(error):
            app.wait_for(chain, **options)


def test_without_a_timeout_it_waits_for_as_long_as_it_takes(app: Queuert) -> None:
    chain = app.start_chain("work")
    waiter = Waiter(app, chain)
    finish(app, chain, 1)
    assert waiter.result().output == 1


def test_a_commit_of_the_users_own_transaction_wakes(app: Queuert) -> None:
    chain = app.start_chain("work")
    waiter = Waiter(app, chain, timeout=20, poll_interval=FOREVER)
    with app.transaction() as tx, app.complete_chain(chain.id, conn=tx) as tail:
        tail.finish("done")
    assert waiter.result().output == "done"

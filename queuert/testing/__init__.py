"""For the tests of applications: an app in memory, running what is due, and time that passes without waiting.

With pytest these fixtures are there as soon as the library is installed:

    def test_a_reminder_is_sent_after_three_days(queuert_app, queuert_advance, queuert_drain):
        queuert_app.include(shop.jobs)
        shop.place_order(queuert_app, "someone@example.com")
        queuert_advance(timedelta(days=3))
        queuert_drain()
        assert ...

An application that has an app of its own for its tests overrides `queuert_app`; the others then work on that one. Without
pytest, `advance(app, ...)` and `app.drain()` do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queuert.app import Queuert
    from queuert.options import Duration

Advance = Callable[["Duration"], None]
Drain = Callable[..., int]


def advance(app: Queuert, by: Duration) -> None:
    """Let time pass: everything in the app's tables becomes older by so many seconds, or a timedelta.

    What was scheduled comes due, retries stop waiting, leases and deduplication windows run out, closed chains come of age
    for `cleanup()`. Schedules of `app.periodic` that tick meanwhile start their chains. Nothing is run: call `drain()`.
    """
    from queuert.notify.protocol import ANYTHING
    from queuert.options import seconds

    moved = seconds(by, "the time to let pass", positive=True)
    context = app._context
    _look_at_schedules(app)  # so that each has a next tick to pass
    context.write(None, lambda session: context.repository.make_older(session, moved))
    _look_at_schedules(app)
    app._cleaner._look_at = 0.0
    context.notifier.publish(ANYTHING)


def _look_at_schedules(app: Queuert) -> None:
    from queuert.chains.periodic import Noted

    ticker = app._ticker
    now, rows = app._context.read(None, ticker._noted)
    for periodic in ticker._all.values():
        noted = rows.get(periodic.name, Noted())
        due = noted.following
        if noted.pause is not None and noted.pause.lasts:
            continue
        # One that is not due stays as it is: moved into the past it is not a tick, and would be set right.
        if due is None or due <= now:
            ticker._tick(periodic, noted, now)


@pytest.fixture
def queuert_app() -> Iterator[Queuert]:
    """An app on an empty database in memory, migrated, and closed after the test. Give it your job types: `include(...)`."""
    from queuert.app import Queuert

    with Queuert("sqlite:///:memory:") as app:
        app.migrate()
        yield app


@pytest.fixture
def queuert_drain(queuert_app: Queuert) -> Drain:
    """Run everything that is due, in the test's own thread: `queuert_app.drain`."""
    return queuert_app.drain


@pytest.fixture
def queuert_advance(queuert_app: Queuert) -> Advance:
    """Let time pass for `queuert_app`: seconds or a timedelta."""

    def pass_time(by: Duration) -> None:
        advance(queuert_app, by)

    return pass_time

"""The newsletter's own tests, with the fixtures that come with the library."""

from __future__ import annotations

from datetime import timedelta

import newsletter
import pytest

from queuert import Queuert
from queuert.testing import Advance, Drain


@pytest.fixture
def app(queuert_app: Queuert) -> Queuert:
    newsletter.install(queuert_app)
    newsletter.outbox.clear()
    with queuert_app.transaction() as tx:
        tx.execute(newsletter.SCHEMA)
    return queuert_app


def sign_up(app: Queuert, email: str) -> str:
    with app.transaction() as tx:
        return newsletter.sign_up(app, tx, email).id


def test_who_confirms_is_left_alone(app: Queuert, queuert_drain: Drain, queuert_advance: Advance) -> None:
    chain = sign_up(app, "a@example.com")
    queuert_drain()
    assert newsletter.outbox == [("a@example.com", "Please confirm your address")]
    with app.transaction() as tx:
        newsletter.confirm(tx, "a@example.com")
    queuert_advance(timedelta(days=3))
    assert queuert_drain() == 1
    assert app.wait_for(chain).output == "not needed"
    assert len(newsletter.outbox) == 1


def test_who_does_not_is_removed_after_three_days(app: Queuert, queuert_drain: Drain, queuert_advance: Advance) -> None:
    chain = sign_up(app, "b@example.com")
    queuert_drain()
    queuert_advance(timedelta(days=2, hours=23))
    assert queuert_drain() == 0
    queuert_advance(timedelta(hours=1))
    assert queuert_drain() == 1
    assert app.wait_for(chain).output == "removed"


def test_a_sign_up_that_is_rolled_back_sends_nothing(app: Queuert, queuert_drain: Drain) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        newsletter.sign_up(app, tx, "c@example.com")
        raise ZeroDivisionError
    assert queuert_drain() == 0
    assert newsletter.outbox == []


def test_there_is_one_digest_a_week(app: Queuert, queuert_drain: Drain, queuert_advance: Advance) -> None:
    sign_up(app, "d@example.com")
    with app.transaction() as tx:
        newsletter.confirm(tx, "d@example.com")
    queuert_drain()
    newsletter.outbox.clear()
    for _ in range(3):
        queuert_advance(timedelta(days=7))
        queuert_drain()
    assert newsletter.outbox == [("d@example.com", "This week")] * 3

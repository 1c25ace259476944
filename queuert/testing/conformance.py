"""What every notifier must do, as tests to run against one's own.

    from queuert.testing.conformance import NotifierConformance

    class TestMine(NotifierConformance):
        def make(self):
            return MyNotifier("somewhere")

Each notifier that `make` returns stands for a process of its own; they reach each other only through what they share.
`reaches_others = False` is for one that stays in its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from queuert.notify.protocol import Channel, Notice, Notifier

PATIENCE = 10.0
"""Seconds within which a notice must arrive."""


class NotifierConformance:
    """Inherit it in a class whose name starts with `Test`, and say how a notifier is made."""

    reaches_others = True

    def make(self) -> Notifier:
        """A new notifier."""
        raise NotImplementedError("Say how a notifier is made: def make(self) -> Notifier.")

    @pytest.fixture
    def notifiers(self) -> Iterator[Callable[[], Notifier]]:
        """Makes notifiers that are closed after the test."""
        made: list[Notifier] = []

        def make() -> Notifier:
            made.append(self.make())
            return made[-1]

        yield make
        for notifier in made:
            notifier.close()

    @pytest.mark.parametrize("channel", list(Channel))
    def test_a_subscriber_of_this_process_is_told(self, notifiers: Callable[[], Notifier], channel: Channel) -> None:
        notifier, inbox = notifiers(), Inbox()
        with notifier.subscribe(inbox, channels={channel}):
            inbox.until(notifier, Notice(channel, "something"))

    @pytest.mark.parametrize("channel", list(Channel))
    def test_a_subscriber_of_another_process_is_told(self, notifiers: Callable[[], Notifier], channel: Channel) -> None:
        if not self.reaches_others:
            pytest.skip("This notifier stays in its process.")
        listening, telling, inbox = notifiers(), notifiers(), Inbox()
        with listening.subscribe(inbox, channels={channel}):
            inbox.until(telling, Notice(channel, "something ä"))

    def test_only_the_channels_asked_for_are_heard(self, notifiers: Callable[[], Notifier]) -> None:
        notifier, inbox = notifiers(), Inbox()
        with notifier.subscribe(inbox, channels={Channel.CHAIN_CLOSED}):
            notifier.publish([Notice(Channel.SCHEDULED, "not for us")])
            inbox.until(notifier, Notice(Channel.CHAIN_CLOSED, "for us"))
        assert {notice.channel for notice in inbox.heard} == {Channel.CHAIN_CLOSED}

    def test_a_subscriber_that_raises_does_not_keep_others_from_being_told(self, notifiers: Callable[[], Notifier]) -> None:
        def broken(notice: Notice) -> None:
            raise RuntimeError("a broken subscriber")

        notifier, inbox = notifiers(), Inbox()
        with (
            notifier.subscribe(broken, channels={Channel.SCHEDULED}),
            notifier.subscribe(inbox, channels={Channel.SCHEDULED}),
        ):
            inbox.until(notifier, Notice(Channel.SCHEDULED, "mail"))
            inbox.until(notifier, Notice(Channel.SCHEDULED, "more mail"))

    def test_a_closed_subscription_hears_nothing(self, notifiers: Callable[[], Notifier]) -> None:
        notifier, closed, inbox = notifiers(), Inbox(), Inbox()
        subscription = notifier.subscribe(closed, channels={Channel.SCHEDULED})
        subscription.close()
        subscription.close()
        closed.heard.clear()
        with notifier.subscribe(inbox, channels={Channel.SCHEDULED}):
            inbox.until(notifier, Notice(Channel.SCHEDULED, "mail"))
        assert closed.heard == []

    def test_many_are_told_of_at_once(self, notifiers: Callable[[], Notifier]) -> None:
        notifier, inbox = notifiers(), Inbox()
        with notifier.subscribe(inbox, channels={Channel.CHAIN_CLOSED}):
            wanted = [f"chain {number}" for number in range(100)]
            inbox.until(notifier, Notice(Channel.CHAIN_CLOSED, "first"))
            notifier.publish_all(Channel.CHAIN_CLOSED, wanted)
            inbox.wait(lambda: set(wanted) <= {notice.payload for notice in inbox.heard} or inbox.missed)

    def test_closing_twice_is_fine_and_a_later_call_starts_again(self, notifiers: Callable[[], Notifier]) -> None:
        notifier, inbox = notifiers(), Inbox()
        notifier.subscribe(Inbox(), channels={Channel.SCHEDULED})
        notifier.close()
        notifier.close()
        with notifier.subscribe(inbox, channels={Channel.SCHEDULED}):
            inbox.until(notifier, Notice(Channel.SCHEDULED, "mail"))


class Inbox:
    """A callback that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[Notice] = []
        self._changed = Event()

    def __call__(self, notice: Notice) -> None:
        self.heard.append(notice)
        self._changed.set()

    @property
    def missed(self) -> bool:
        """Whether it was told that anything may have happened: it would look at everything."""
        return any(not notice.payload for notice in self.heard)

    def until(self, notifier: Notifier, notice: Notice) -> None:
        """Publish it until it arrives: a notice is a hint, and one may be lost while a connection is being made."""
        deadline = time.monotonic() + PATIENCE
        while notice not in self.heard:
            assert time.monotonic() < deadline, f"{notice} did not arrive within {PATIENCE:g} seconds."
            notifier.publish([notice])
            self._changed.wait(0.1)
            self._changed.clear()

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"Not everything arrived within {PATIENCE:g} seconds."
            self._changed.wait(0.1)
            self._changed.clear()

"""Notices within this process: the bus that `:memory:` uses alone, and through which every other notifier delivers.

Callbacks run in the publisher's thread, so a wake-up costs no thread switch of its own. Notifiers that reach further
bring a watcher, which runs while somebody is subscribed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from queuert.notify.protocol import Callback, Channel, Notice, Notifier, PerProcess, Subscription, Wants
from queuert.notify.watcher import Watcher

logger = logging.getLogger("queuert.notify")

Deliver = Callable[[Iterable[Notice]], None]


@dataclass(frozen=True, eq=False)
class _Subscriber:
    callback: Callback
    channels: Container[Channel]
    wants: Wants | None = None

    def tell(self, notice: Notice) -> None:
        try:
            self.callback(notice)
        except Exception:
            logger.exception("A subscriber raised on %s; the others are still told.", notice)


class InProcessNotifier(Notifier):
    """Tells the subscribers of this process, and nobody else."""

    def __init__(self) -> None:
        self.buses = PerProcess(lambda: Bus(self._make_watcher))

    def publish(self, notices: Iterable[Notice]) -> None:
        self.buses.get().deliver(notices)

    def publish_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        bus = self.buses.get()
        if bus.has_subscribers(channel):
            bus.deliver(Notice(channel, payload) for payload in payloads)

    def subscribe(self, callback: Callback, *, channels: Container[Channel]) -> Subscription:
        return self.buses.get().subscribe(callback, channels)

    def close(self) -> None:
        bus = self.buses.peek()
        if bus is not None:
            bus.close()

    def _make_watcher(self, deliver: Deliver) -> Watcher | None:
        """What brings news from elsewhere; made for the first subscriber, stopped after the last."""
        return None


class Bus:
    """The subscribers of one process, and their watcher."""

    def __init__(self, make_watcher: Callable[[Deliver], Watcher | None]) -> None:
        self._pid = os.getpid()
        self._make_watcher = make_watcher
        self._lock = threading.Lock()
        # Replaced, never changed: delivery reads it without the lock, so a callback may subscribe or close.
        self._subscribers: tuple[_Subscriber, ...] = ()
        self._watcher: Watcher | None = None

    def has_subscribers(self, channel: Channel) -> bool:
        return any(channel in subscriber.channels for subscriber in self._subscribers)

    def deliver(self, notices: Iterable[Notice]) -> None:
        if not self._subscribers:
            return
        for notice in dict.fromkeys(notices):
            for subscriber in self._subscribers:
                if notice.channel in subscriber.channels:
                    subscriber.tell(notice)

    def tell(self, notice: Notice) -> int:
        """Deliver one; how many subscribers wanted it."""
        taken = 0
        for subscriber in self._subscribers:
            if notice.channel in subscriber.channels:
                taken += subscriber.wants is not None and subscriber.wants(notice)
                subscriber.tell(notice)
        return taken

    def offer(self, notice: Notice, take: Callable[[], bool]) -> None:
        """Deliver it to those who do not want it; who does is told if `take` says that there is a job left for it."""
        for subscriber in self._subscribers:
            if notice.channel in subscriber.channels and (subscriber.wants is None or not subscriber.wants(notice) or take()):
                subscriber.tell(notice)

    def subscribe(self, callback: Callback, channels: Container[Channel], wants: Wants | None = None) -> Subscription:
        subscriber = _Subscriber(callback, channels, wants)
        with self._lock:
            # Before the watcher starts: what it delivers first covers all that has happened until then.
            self._subscribers = (*self._subscribers, subscriber)
            if self._watcher is None:
                watcher = self._make_watcher(self.deliver)
                if watcher is not None:
                    try:
                        watcher.start()
                    except RuntimeError:  # no more threads
                        self._subscribers = self._subscribers[:-1]
                        raise
                self._watcher = watcher
        return Subscription(lambda: self._unsubscribe(subscriber))

    def _unsubscribe(self, subscriber: _Subscriber) -> None:
        if os.getpid() != self._pid:
            return  # Inherited through a fork: the lock may be held for ever, and the subscriber is the parent's.
        with self._lock:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)
            watcher = None if self._subscribers else self._take_watcher()
        if watcher is not None:
            watcher.stop()

    def close(self) -> None:
        with self._lock:
            self._subscribers = ()
            watcher = self._take_watcher()
        if watcher is not None:
            watcher.stop()

    def _take_watcher(self) -> Watcher | None:
        watcher, self._watcher = self._watcher, None
        return watcher

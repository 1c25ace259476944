"""What notifiers share that reach other processes through a server of their own: Redis, NATS.

This process is told at once, others by a thread that sends what has gathered. A notice of ready jobs carries a hint: a
counter on the server, from which every process with an idle worker takes one before that worker looks. So of any number
of idle workers about as many look as there are jobs. Who is busy takes none, and looks when it is free. A counter that
cannot be asked is ignored: a needless look costs a query, a missed one the time until the next poll.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import secrets
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from queuert.notify.in_process import Bus, Deliver, InProcessNotifier
from queuert.notify.protocol import Callback, Channel, HintingNotifier, Notice, PerProcess, Subscription, Wants
from queuert.notify.watcher import Watcher

logger = logging.getLogger("queuert.notify")

HINT_SECONDS = 60
"""How long a counter is kept: whoever has not looked by then finds the job by polling."""
FLUSH_WITHIN = 2.0
"""Seconds that `close` and the end of the process give what still waits to be sent."""
PAUSE_AFTER_FAILURE = 0.5
MOST_WAITING = 10_000
"""Notices that may wait for a server that is away; beyond them one says that anything may have happened."""
_MARK = "\x1f"

Waiting = dict[Notice, int]


class Message(NamedTuple):
    """A notice on the wire: the payload, who sent it, and the counter of its jobs, if there is one."""

    payload: str
    sender: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return _MARK.join(self)

    @classmethod
    def parse(cls, text: str) -> Message:
        """Somebody who is not this library may send the payload alone."""
        return cls(*text.split(_MARK, 2))


class RemoteNotifier(InProcessNotifier, HintingNotifier):
    """Subclasses say how to send, and bring the watcher that receives."""

    server: str
    """What the notices go through, for the log."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        if not prefix or not prefix.isprintable() or any(c.isspace() or c in "*>?[]." for c in prefix):
            raise ValueError(f"prefix must be a name without spaces, dots and wildcards, not {prefix!r}.")
        self._prefix = prefix
        self._senders = PerProcess(lambda: _Sender(self.server, self._send))

    def publish(self, notices: Iterable[Notice]) -> None:
        bus = self.buses.get()
        waiting: Waiting = {}
        for notice in notices:
            taken = bus.tell(notice)
            if notice.channel is not Channel.SCHEDULED or not notice.payload or taken < notice.count:
                waiting[notice] = waiting.get(notice, 0) + notice.count - taken
        if waiting:
            self._senders.get().put(waiting)

    def publish_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        self.publish([Notice(channel, payload) for payload in payloads])

    def subscribe(self, callback: Callback, *, channels: Container[Channel], wants: Wants | None = None) -> Subscription:
        self._check()
        return self.buses.get().subscribe(callback, channels, wants)

    def close(self) -> None:
        super().close()
        sender = self._senders.peek()
        if sender is not None:
            sender.close()

    @abstractmethod
    def _check(self) -> None:
        """Raise a QueuertError if the server refuses us for good; one that is away may come back."""

    @abstractmethod
    def _send(self, messages: Sequence[tuple[Channel, Message, int]]) -> None:
        """Send them, with a counter of so many jobs for each message that names a hint."""

    @abstractmethod
    def _make_watcher(self, deliver: Deliver) -> Watcher: ...

    def _name(self, channel: Channel) -> str:
        return f"{self._prefix}_{channel.value}"

    def arrived(self, channel: Channel, text: str, take: Callable[[str], bool]) -> None:
        """Pass a message on to this process. `take` takes one of the jobs of a hint, if there is one left."""
        message = Message.parse(text)
        sender = self._senders.peek()
        if sender is not None and message.sender == sender.identity:
            return  # delivered when it was published
        bus: Bus = self.buses.get()
        notice = Notice(channel, message.payload)
        if message.hint:
            bus.offer(notice, lambda: take(message.hint))
        else:
            bus.deliver([notice])


class _Sender:
    """The notices of one process that wait to be sent, and the thread that sends them. Its lock is the innermost."""

    def __init__(self, server: str, send: Callable[[Sequence[tuple[Channel, Message, int]]], None]) -> None:
        self.identity = secrets.token_hex(8)
        self._server = server
        self._send = send
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._waiting: Waiting = {}
        self._thread: threading.Thread | None = None
        self._close_by: float | None = None
        self._out = False
        _senders.add(self)

    def put(self, waiting: Waiting) -> None:
        with self._changed:
            if len(self._waiting) + len(waiting) > MOST_WAITING:
                self._waiting = {Notice(channel, ""): 1 for channel in Channel}
            else:
                for notice, count in waiting.items():
                    self._waiting[notice] = self._waiting.get(notice, 0) + count
            if self._thread is None:
                thread = threading.Thread(target=self._main, name=f"queuert-notify-{self._server.lower()}-sender", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads, or the interpreter is about to end
                    self._waiting = {}
                    logger.warning("Notices are not sent: %s.", error)
                    return
                self._thread, self._close_by = thread, None
            self._changed.notify()

    def close(self) -> None:
        """Send what waits, if that is possible soon, and end the thread."""
        with self._changed:
            thread = self._thread
            self._close_by = time.monotonic() + FLUSH_WITHIN
            self._changed.notify()
        if thread is not None:
            thread.join(FLUSH_WITHIN + 1.0)

    def belongs_here(self) -> bool:
        return self._pid == os.getpid()

    def _main(self) -> None:
        while (batch := self._next()) is not None:
            messages = [(notice.channel, self._message(notice), max(0, count)) for notice, count in batch.items()]
            try:
                self._send(messages)
            except Exception as error:
                self._failed(batch, error)
            else:
                if self._out:
                    self._out = False
                    logger.info("Notices are sent to %s again.", self._server)

    def _message(self, notice: Notice) -> Message:
        counted = notice.channel is Channel.SCHEDULED and notice.payload
        return Message(notice.payload, self.identity, f"{self.identity}-{next(self._numbers)}" if counted else "")

    def _next(self) -> Waiting | None:
        """What to send; None ends the thread."""
        with self._changed:
            while not self._waiting:
                if self._close_by is not None:
                    self._thread = None
                    return None
                self._changed.wait()
            batch, self._waiting = self._waiting, {}
            return batch

    def _failed(self, batch: Waiting, error: Exception) -> None:
        if not self._out:
            self._out = True
            logger.warning(
                "Notices cannot be sent to %s (%s): until they can, other processes find news by polling.",
                self._server,
                type(error).__name__,
            )
        again_at = time.monotonic() + PAUSE_AFTER_FAILURE
        with self._changed:
            while (now := time.monotonic()) < min(again_at, self._close_by or again_at):
                self._changed.wait(again_at - now)
            if self._close_by is not None and now >= self._close_by:
                self._waiting = {}
            elif len(self._waiting) + len(batch) <= MOST_WAITING:
                self._waiting = {**batch, **self._waiting}


_senders: weakref.WeakSet[_Sender] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """A script that enqueues and ends must not take its notices with it."""
    for sender in list(_senders):
        if sender.belongs_here():
            sender.close()

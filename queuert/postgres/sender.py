"""Sends notices to other processes from a thread and a connection of its own.

A transaction that calls `pg_notify` holds a lock of the whole server while it commits. In an enqueuer's own transaction
that would put all enqueuers in one queue, so what they have to tell waits here, each thing once, and goes out in one
short transaction that does not wait for the disk.

While nothing is under way, whoever has something to tell sends it himself, over the same connection, which spares the first
notice after a pause the way through the thread. The thread then reads the answer.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial

from queuert.notify.protocol import Channel, Notice
from queuert.postgres.dialect import POSTGRES
from queuert.postgres.link import Connect, Link, Waker
from queuert.storage.loader import Query, queries
from queuert.storage.names import Names

logger = logging.getLogger("queuert.notify")

IDLE = 30.0
"""Seconds without work after which the thread and its connection go."""
ANSWER_WITHIN = 5.0
CLOSE_WITHIN = 1.0
MOST_WAITING = 10_000
"""Payloads that may wait on one channel; beyond, listeners are told to look at everything, which is cheaper by then."""
LONGEST_PAYLOAD = 7_999  # bytes: what pg_notify takes
TRIES = 2
BUNDLE_FROM = 16
"""Payloads of one channel from which on several travel as one."""
SEPARATOR = "\n"  # in no name and no id

GAP, LONGEST_GAP = 0.005, 0.020
"""Seconds between two sends. It doubles as long as notices wait for it: who sends so many has busy listeners. For 2,600
notices/s: without a gap 2,360 sends and 58 % CPU, with 0.002 350 sends and 27 %."""
GAP_AFTER_FAILURE = 0.5
PATIENCE = 0.015
"""Seconds more that the end of chains may wait after a send: every job of a busy worker brings one, and few are waited for."""


@lru_cache(maxsize=2)
def notify_query(name: str = "notify") -> Query:
    """A named query. It names no table, so any names do."""
    return queries(POSTGRES, Names())[name]


def items(notices: Iterable[Notice], names: Mapping[Channel, str]) -> str:
    """The notices, each once, as the query `notify` takes them."""
    return _json(_distinct(notices, names))


def sending(notices: Iterable[Notice], names: Mapping[Channel, str]) -> tuple[bytes, list[bytes]]:
    """The query that sends them, as libpq takes it, and its parameters."""
    found = _distinct(notices, names)
    if len(found) == 1:
        channel, payload = found[0]
        return notify_query("notify_one").statements[0].encode(), [channel.encode(), payload.encode()]
    return notify_query().statements[0].encode(), [_json(found).encode()]


def _distinct(notices: Iterable[Notice], names: Mapping[Channel, str]) -> list[tuple[str, str]]:
    return sorted({(names[notice.channel], _payload(notice.payload)) for notice in notices})


def _json(found: Iterable[tuple[str, str]]) -> str:
    return json.dumps([{"channel": channel, "payload": payload} for channel, payload in found])


def _payload(payload: str) -> str:
    """The payload, or "look at everything" where PostgreSQL could not carry it."""
    try:
        fits = len(payload.encode()) <= LONGEST_PAYLOAD and "\0" not in payload
    except UnicodeEncodeError:
        fits = False
    return payload if fits else ""


def bundled(payloads: Collection[str]) -> list[str]:
    """The payloads; if they are many, several in one. PostgreSQL keeps and delivers each payload by itself, which for every
    chain of a busy worker costs a tenth of the server's time."""
    if len(payloads) < BUNDLE_FROM:
        return list(payloads)
    bundles: list[list[str]] = [[]]
    size = 0
    for payload in sorted(payloads):
        length = len(payload.encode("utf-8", "replace")) + len(SEPARATOR)
        if size + length > LONGEST_PAYLOAD and bundles[-1]:
            bundles.append([])
            size = 0
        bundles[-1].append(payload)
        size += length
    return [SEPARATOR.join(bundle) for bundle in bundles]


Waiting = dict[Channel, set[str]]


class Sender:
    """The notices of one process that wait to be sent, and the thread that sends them while there are any."""

    def __init__(self, connect: Connect, names: Mapping[Channel, str], *, idle: float = IDLE) -> None:
        self.backend_pid = 0
        """The server process behind the connection, or 0. What it sends, this process knows already."""
        self._pid = os.getpid()
        self._connect = connect
        self._names = names
        self._idle = idle
        self._lock = threading.Lock()
        self._waiting: Waiting = {}
        self._resting: Link | None = None
        """The thread's link, while the thread does nothing but wait on it."""
        self._begun: Waiting = {}
        """What was sent over it meanwhile, and not answered yet."""
        self._not_before = 0.0
        """When the next send is due, if there is something to send."""
        self._idle_until = 0.0
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._close_by: float | None = None
        self._out = False
        _senders.add(self)

    def send(self, notices: Iterable[Notice]) -> None:
        """Have them sent soon."""
        by_channel: dict[Channel, list[str]] = {}
        for notice in notices:
            by_channel.setdefault(notice.channel, []).append(notice.payload)
        if by_channel:
            self._take(by_channel)

    def send_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        """Have many of one channel sent soon."""
        if payloads:
            self._take({channel: payloads})

    def _take(self, by_channel: Mapping[Channel, Sequence[str]]) -> None:
        with self._lock:
            if self._resting is not None and self._send_now(self._resting, by_channel):
                return
            is_new = not by_channel.keys() <= self._waiting.keys()  # another channel may be more urgent
            for channel, payloads in by_channel.items():
                self._wait_with(channel, payloads)
            if self._thread is None:
                self._start()
            elif is_new and self._waker is not None:
                self._waker.wake()

    def close(self, within: float = CLOSE_WITHIN) -> None:
        """Send what waits, if that takes no longer than `within`, and end the thread."""
        with self._lock:
            thread = self._thread
            if thread is None or self._waker is None:
                return
            self._close_by = time.monotonic() + within
            self._waker.wake()
        if threading.current_thread() is not thread:
            thread.join(within + 0.1)

    # Under the lock.

    def _send_now(self, link: Link, by_channel: Mapping[Channel, Sequence[str]]) -> bool:
        """Send it from here, if it is the first after a pause; whether it was."""
        now = time.monotonic()
        due = self._not_before + (PATIENCE if by_channel.keys() <= {Channel.CHAIN_CLOSED} else 0.0)
        if now < due or self._waiting or self._begun or self._close_by is not None:
            return False
        notices = [Notice(channel, payload) for channel, payloads in by_channel.items() for payload in payloads]
        if len(notices) >= BUNDLE_FROM:
            return False
        try:
            link.begin(*sending(notices, self._names))
        except Exception:
            return False  # the thread will see what is wrong with its link
        self._begun = {channel: set(payloads) for channel, payloads in by_channel.items()}
        self._not_before, self._idle_until = now + GAP, now + self._idle
        return True

    def _wait_with(self, channel: Channel, payloads: Iterable[str]) -> None:
        waiting = self._waiting.setdefault(channel, set())
        if "" not in waiting:
            waiting.update(payloads)
            if "" in waiting or len(waiting) > MOST_WAITING:
                self._waiting[channel] = {""}

    def _start(self) -> None:
        waker = Waker()
        thread = threading.Thread(target=self._main, args=(waker,), name="queuert-notify-sender", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is about to end
            waker.close()
            self._waiting = {}
            logger.warning("Notices are not sent: %s.", error)
        else:
            self._thread, self._waker = thread, waker

    def _end(self) -> None:
        self._thread = self._waker = self._close_by = None
        self._not_before = 0.0

    # In the thread. The link is passed along, not shared: the next thread may start before this one has closed its own.

    def _main(self, waker: Waker) -> None:
        link: Link | None = None
        gap, held_up = GAP, False
        self._idle_until = time.monotonic() + self._idle
        try:
            while (step := self._next_step()) is not None:
                batch, wait_until = step
                if batch:
                    gap = min(gap * 2, LONGEST_GAP) if held_up else GAP
                    held_up = False
                    link, sent = self._flush(batch, link, waker)
                    with self._lock:
                        self._not_before = time.monotonic() + (gap if sent else GAP_AFTER_FAILURE)
                        self._idle_until = time.monotonic() + self._idle
                else:
                    held_up = wait_until < self._idle_until
                    link = self._wait(wait_until, link, waker)
        except Exception:
            logger.exception("The sender of notices broke; the next notice starts another.")
            with self._lock:
                self._end()
        finally:
            self._drop(link)
            waker.close()

    def _next_step(self) -> tuple[Waiting, float] | None:
        """What to send now, or nothing yet and how long to wait; None ends the thread."""
        now = time.monotonic()
        with self._lock:
            not_before, idle_until = self._not_before, self._idle_until
            if self._waiting and self._waiting.keys() <= {Channel.CHAIN_CLOSED}:
                not_before += PATIENCE
            if self._waiting and (now >= not_before if self._close_by is None else now < self._close_by):
                batch, self._waiting = self._waiting, {}
                return batch, now
            if self._close_by is not None or (not self._waiting and now >= idle_until):
                self._end()
                return None
            return {}, not_before if self._waiting else idle_until

    def _wait(self, until: float, link: Link | None, waker: Waker) -> Link | None:
        seconds = until - time.monotonic()
        if link is None:
            waker.wait(seconds)
            return None
        begun: Waiting = {}
        with self._lock:
            self._resting = link
        try:
            try:
                ready = link.select(min(seconds, ANSWER_WITHIN))  # what is sent meanwhile may stay without an answer
            finally:
                with self._lock:  # from here on the link is this thread's alone again
                    self._resting = None
                    begun, self._begun = self._begun, {}
            link.receive(ready)
            if begun:
                link.finish(deadline=partial(self._deadline, time.monotonic() + ANSWER_WITHIN))
        except Exception:
            # Gone, maybe while nobody needed it. Its backend's number may be given to another process now.
            self._drop(link)
            with self._lock:
                for channel, payloads in begun.items():
                    self._wait_with(channel, payloads)
            return None
        return link

    def _flush(self, batch: Waiting, link: Link | None, waker: Waker) -> tuple[Link | None, bool]:
        """Send the batch, or drop it; the link, if it is sound, and whether it was sent."""
        notices = (Notice(channel, payload) for channel, payloads in batch.items() for payload in bundled(payloads))
        text, params = sending(notices, self._names)
        for _ in range(TRIES):
            deadline = partial(self._deadline, time.monotonic() + ANSWER_WITHIN)
            try:
                if link is None:
                    link = Link(self._connect, waker, deadline=deadline)
                    self.backend_pid = link.backend_pid
                link.execute(text, params, deadline=deadline)
            except Exception as error:
                self._drop(link)
                link, problem = None, type(error).__name__
                if self._close_by is not None and time.monotonic() >= self._close_by:
                    break
            else:
                if self._out:
                    self._out = False
                    logger.info("Notices are sent again.")
                return link, True
        if not self._out:
            self._out = True
            logger.warning("Notices could not be sent (%s): until they can, other processes find news by polling.", problem)
        return None, False

    def _deadline(self, usual: float) -> float:
        close_by = self._close_by
        return usual if close_by is None else min(close_by, usual)

    def _drop(self, link: Link | None) -> None:
        if link is not None:
            if self.backend_pid == link.backend_pid:
                self.backend_pid = 0
            link.close()


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """A script that enqueues and ends must not take its notices with it."""
    for sender in list(_senders):
        if sender._pid == os.getpid():
            sender.close()

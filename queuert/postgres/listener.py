"""Notices between processes by PostgreSQL's LISTEN and NOTIFY.

One connection and one thread listen for all subscribers of this process; another pair sends (`postgres_sender`). Both
are there only while they are needed.

A listener can fall silent without an error: a firewall forgets the connection, a proxy keeps it and forwards nothing, a
pooler runs UNLISTEN. So silence is put to the test. On a channel that brought nothing for a heartbeat, the listener
sends itself a ping over its own connection, the whole way through the server. If that does not come back within
another heartbeat, the connection is replaced. Whatever arrives on a channel proves that it works, the pings of other
processes too, so that many listeners together need hardly more pings than one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from queuert.notify.in_process import Deliver, InProcessNotifier
from queuert.notify.protocol import ANYTHING, Channel, Notice, PerProcess
from queuert.notify.watcher import Watcher
from queuert.postgres.link import Connect, Link, Waker
from queuert.postgres.sender import SEPARATOR, Sender, items, notify_query, sending
from queuert.storage.protocol import Session

HEARTBEAT = 5.0
LISTEN_WITHIN = 5.0
PING = ":ping:"
LONGEST_NAME = 63  # bytes: what PostgreSQL keeps of an identifier


class PostgresNotifier(InProcessNotifier):
    """Tells this process at once, and other processes through PostgreSQL.

    `connect` opens a connection of its own, in autocommit, directly to the server (LISTEN does not pass a pooler in
    transaction mode), with a `connect_timeout`. `channel_prefix` is the table prefix without its last underscore. A
    connection that went silent is replaced after at most about two heartbeats. `sends` is asked whether other processes
    are to be told at all.
    """

    tells_in_transaction = True

    def __init__(
        self,
        connect: Connect,
        channel_prefix: str,
        *,
        heartbeat: float = HEARTBEAT,
        sends: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        names = {channel: f"{channel_prefix}_{channel.value}" for channel in Channel}
        for name in names.values():
            if len(name.encode()) > LONGEST_NAME:
                raise ValueError(f"The channel name {name!r} is longer than {LONGEST_NAME} bytes: shorten the prefix.")
        self._connect = connect
        self._names: Mapping[Channel, str] = names
        self._heartbeat = heartbeat
        self._sends = sends
        self._senders = PerProcess(lambda: Sender(connect, names))

    def publish(self, notices: Iterable[Notice]) -> None:
        distinct = list(dict.fromkeys(notices))
        super().publish(distinct)
        if self._sends():
            self._senders.get().send(distinct)

    def publish_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        super().publish_all(channel, payloads)
        if self._sends():
            self._senders.get().send_all(channel, payloads)

    def notify_in_transaction(self, session: Session, notices: Iterable[Notice]) -> None:
        distinct = list(dict.fromkeys(notices))
        if distinct:
            session.run(notify_query(), {"items": items(distinct, self._names)})

    def close(self) -> None:
        super().close()
        sender = self._senders.peek()
        if sender is not None:
            sender.close()

    def _make_watcher(self, deliver: Deliver) -> Watcher:
        sender = self._senders.get()
        return _Listener(self._connect, self._names, deliver, lambda: sender.backend_pid, self._heartbeat)


class _Listener(Watcher):
    source = "PostgreSQL"

    def __init__(
        self,
        connect: Connect,
        names: Mapping[Channel, str],
        deliver: Deliver,
        own_sender: Callable[[], int],
        heartbeat: float,
    ) -> None:
        super().__init__("queuert-notify-listener")
        self._connect = connect
        self._names = names
        self._channels = {name.encode(): channel for channel, name in names.items()}
        self._deliver = deliver
        self._own_sender = own_sender
        self._heartbeat = heartbeat
        self._waker: Waker | None = None

    def interrupt(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def describe(self, error: Exception) -> str:
        return str(error) if isinstance(error, TimeoutError) else super().describe(error)

    def watch(self) -> None:
        self._waker = waker = Waker()
        try:
            listen = "".join(f"LISTEN {_quoted(name)};" for name in self._names.values())
            link = Link(self._connect, waker, setup=listen.encode(), deadline=self._deadline(LISTEN_WITHIN))
            try:
                self.works()
                self._deliver(ANYTHING)
                self._listen(link)
            finally:
                link.close()
        finally:
            waker.close()

    def _listen(self, link: Link) -> None:
        pulse = _Pulse(self._channels.values(), self._heartbeat)
        while not self.stopping.is_set():
            if silent := pulse.ask():
                pings = [Notice(channel, PING) for channel in silent]
                link.execute(*sending(pings, self._names), deadline=self._deadline(self._heartbeat))
            # What a ping's answer brought along waits in libpq already, and would not end a wait for the socket.
            self._deliver(self._arrived(link, pulse))
            link.wait(pulse.next_look - time.monotonic())
            self._deliver(self._arrived(link, pulse))
            pulse.check()

    def _arrived(self, link: Link, pulse: _Pulse) -> list[Notice]:
        own = self._own_sender()
        notices = []
        for notification in link.notifications():
            channel = self._channels[notification.relname]
            pulse.heard(channel)
            payload = notification.extra.decode("utf-8", "replace")
            # What our own sender sent was delivered when it was published.
            if payload != PING and notification.be_pid != own:
                notices += [Notice(channel, part) for part in payload.split(SEPARATOR)]
        return notices

    def _deadline(self, seconds: float) -> Callable[[], float]:
        usual = time.monotonic() + seconds
        return lambda: 0.0 if self.stopping.is_set() else usual


class _Pulse:
    """When each channel last gave a sign of life, and which were asked for one."""

    def __init__(self, channels: Iterable[Channel], heartbeat: float) -> None:
        self._heartbeat = heartbeat
        # Not all processes at once: the first one's ping answers for the others.
        self._patience = heartbeat * random.uniform(0.75, 1.0)
        self._heard_at = dict.fromkeys(channels, time.monotonic())
        self._asked_at: dict[Channel, float] = {}

    def heard(self, channel: Channel) -> None:
        self._heard_at[channel] = time.monotonic()
        self._asked_at.pop(channel, None)

    def ask(self) -> list[Channel]:
        """The channels that were silent for so long that they have to be pinged now."""
        now = time.monotonic()
        silent = [c for c, at in self._heard_at.items() if c not in self._asked_at and now - at >= self._patience]
        self._asked_at.update(dict.fromkeys(silent, now))
        return silent

    def check(self) -> None:
        """Raise if one that was asked has not answered. To be called with everything read that has arrived."""
        if self._asked_at and time.monotonic() - min(self._asked_at.values()) >= self._heartbeat:
            raise TimeoutError("a ping was not answered")

    @property
    def next_look(self) -> float:
        """When there is something to ask or to check, unless something arrives before."""
        waiting = [at + self._patience for c, at in self._heard_at.items() if c not in self._asked_at]
        return min([*waiting, *(at + self._heartbeat for at in self._asked_at.values())])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

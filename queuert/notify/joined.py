"""A notifier that the user chose, and the database's own beside it.

The chosen one carries what is told after our commits. What is started on a bare `conn=` is committed by somebody who tells
us nothing: only the database can tell of that.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from queuert.errors import QueuertError
from queuert.notify.protocol import Callback, Channel, HintingNotifier, Notice, Notifier, Subscription, Wants

if TYPE_CHECKING:
    from queuert.storage.protocol import Session

logger = logging.getLogger("queuert.notify")


class JoinedNotifier(HintingNotifier):
    """Sends through `chosen`, listens to both. Whatever `chosen` raises costs a wake-up and nothing else."""

    def __init__(self, chosen: Notifier, database: Notifier | None) -> None:
        self._chosen = chosen
        self._database = database
        self.tells_in_transaction = database is not None and database.tells_in_transaction

    def publish(self, notices: Iterable[Notice]) -> None:
        try:
            self._chosen.publish(list(dict.fromkeys(notices)))
        except Exception:
            logger.exception("%s could not tell others; they find news by polling.", type(self._chosen).__name__)

    def publish_all(self, channel: Channel, payloads: Sequence[str]) -> None:
        try:
            self._chosen.publish_all(channel, payloads)
        except Exception:
            logger.exception("%s could not tell others; they find news by polling.", type(self._chosen).__name__)

    def subscribe(self, callback: Callback, *, channels: Container[Channel], wants: Wants | None = None) -> Subscription:
        subscriptions = []
        if self._database is not None:
            subscriptions.append(self._database.subscribe(callback, channels=channels))
        try:
            if isinstance(self._chosen, HintingNotifier):
                subscriptions.append(self._chosen.subscribe(callback, channels=channels, wants=wants))
            else:
                subscriptions.append(self._chosen.subscribe(callback, channels=channels))
        except QueuertError:
            for subscription in subscriptions:
                subscription.close()
            raise
        except Exception:
            logger.exception("%s could not subscribe; news is found by polling.", type(self._chosen).__name__)

        def end() -> None:
            for subscription in subscriptions:
                subscription.close()

        return Subscription(end)

    def close(self) -> None:
        try:
            self._chosen.close()
        except Exception:
            logger.exception("%s could not be closed.", type(self._chosen).__name__)
        if self._database is not None:
            self._database.close()

    def notify_in_transaction(self, session: Session, notices: Iterable[Notice]) -> None:
        if self._database is not None:
            self._database.notify_in_transaction(session, notices)

"""Wake-ups: who waits for something is told that it may have happened.

A wake-up is a hint, never a fact: whoever gets one looks at the database. A lost one costs the time until the next
poll, a needless one costs a query. That is why nothing here is retried for long, and why `publish` can promise to
never fail.

What a database itself can carry is in its package: `queuert.postgres.listener`, `queuert.sqlite.watcher`.
"""

from queuert.notify.in_process import InProcessNotifier
from queuert.notify.protocol import Callback, Channel, Notice, Notifier, Subscription

__all__ = [
    "Callback",
    "Channel",
    "InProcessNotifier",
    "Notice",
    "Notifier",
    "Subscription",
]

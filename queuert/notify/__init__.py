"""Wake-ups: who waits for something is told that it may have happened.

A wake-up is a hint, never a fact: whoever gets one looks at the database. A lost one costs the time until the next
poll, a needless one costs a query. That is why nothing here is retried for long, and why `publish` can promise to
never fail.

`queuert.notify.postgres` needs psycopg and is imported by those who use it.
"""

from queuert.notify.base import Callback, Channel, Notice, Notifier, Subscription
from queuert.notify.in_process import InProcessNotifier
from queuert.notify.sqlite_file import SqliteFileNotifier

__all__ = [
    "Callback",
    "Channel",
    "InProcessNotifier",
    "Notice",
    "Notifier",
    "SqliteFileNotifier",
    "Subscription",
]

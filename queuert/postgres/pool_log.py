"""Keeps the pool's log quiet during an outage: the worker says once that it began and once that it is over.

The pool's own warnings come with every try of every connection (173 lines in 54 s were counted), and they go on over whatever
else is on the screen. Only those about our pools are left out; the application's own pools say what they like.
"""

from __future__ import annotations

import logging
from typing import Any

POOL_NAME = "queuert-pool"

_REPEATED = ("error connecting", "reconnection attempt", "discarding broken", "discarding closed")


class _Repeated(logging.Filter):
    """Lets everything pass but what our pools repeat."""

    def __init__(self, connection: type[Any]) -> None:
        super().__init__()
        self._connection = connection

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_REPEATED):
            return True
        args = record.args if isinstance(record.args, tuple) else ()
        return not any(arg == POOL_NAME or isinstance(arg, self._connection) for arg in args)


def quiet(connection: type[Any]) -> None:
    """From now on; `connection` is the class of our pools' connections. To be called as often as one likes."""
    logger = logging.getLogger("psycopg.pool")
    if not any(isinstance(each, _Repeated) for each in logger.filters):
        logger.addFilter(_Repeated(connection))

"""Has a pool lend the connection that was used last, instead of taking turns.

psycopg_pool takes turns: after a burst a worker that has little to do would come to each of many connections for the first
time, and the server would plan everything anew. Medians of five alternating runs of 7,000 plain jobs with 10 slots, two cores:
22,700 a second with this and 19,800 without. The idle connections are in `_pool`, which is not public: where that is not the
deque it was, or `ENABLED` is False, connections take turns.
"""

from __future__ import annotations

from collections import deque
from typing import Any

ENABLED = True


class _Stack(deque[Any]):
    append = deque.appendleft


def lend_last_used(pool: Any) -> None:
    """To be called before the pool is opened."""
    if ENABLED and type(getattr(pool, "_pool", None)) is deque and not pool._pool:
        pool._pool = _Stack()

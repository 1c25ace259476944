"""The ways into the library for tests that cannot show what they are about through its public names. All of them are here.

A part that moves or gets another name is changed in one place. Prefer the public API wherever it can show the same.
"""

from __future__ import annotations

from typing import Any

from queuert import Queuert
from queuert.app import context_of
from queuert.worker.worker import Worker
from support.finding import found

__all__ = [
    *("context_of", "database_of", "notifier_of", "repository_of", "cleaner_of", "ticker_of", "look_now"),
    *("worker_threads", "dispatcher_of", "keeper_of", "completer_of", "slots_of"),
    *("lock_of", "connections_of", "subscribers_of"),
]

# Of an app.


def database_of(app: Queuert) -> Any:
    """What the app's sessions come from."""
    return context_of(app).database


def notifier_of(app: Queuert) -> Any:
    return context_of(app).notifier


def repository_of(app: Queuert) -> Any:
    return context_of(app).repository


def cleaner_of(app: Queuert) -> Any:
    """What deletes closed chains."""
    return app._cleaner


def ticker_of(app: Queuert) -> Any:
    """What starts the chains of schedules."""
    return app._ticker


def look_now(housekeeper: Any) -> None:
    """Have a cleaner or a ticker forget that it has just looked whether there is something to do."""
    housekeeper._look_at = 0


def subscribers_of(app: Queuert) -> Any:
    """Who listens to the app's notices in this process."""
    return notifier_of(app).buses.get()._subscribers


# Of a worker that runs: its threads, by their roles.


def worker_threads(worker: Worker) -> Any:
    return found(worker._threads)


def dispatcher_of(worker: Worker) -> Any:
    return worker_threads(worker)._dispatcher


def keeper_of(worker: Worker) -> Any:
    """Who renews its leases."""
    return worker_threads(worker)._keeper


def completer_of(worker: Worker) -> Any:
    return worker_threads(worker)._completer


def slots_of(worker: Worker) -> Any:
    return worker_threads(worker)._slots


# Of a database.


def lock_of(database: Any) -> Any:
    """The lock that the writers of a SQLite file queue for."""
    return database._lock


def connections_of(database: Any) -> Any:
    return database._connections

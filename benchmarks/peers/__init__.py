"""Other job queues from PyPI, each with its own worker and the settings its documentation calls fast."""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import PackageNotFoundError, version

from benchmarks.peers.base import Peer

# Module and class, by database. Modules import what they measure, so each is loaded only when asked for.
PEERS = {
    "postgres": [
        ("procrastinate", "Procrastinate"),
        ("pgqueuer", "PgQueuer"),
        ("pgqueuer", "PgQueuerTuned"),
        ("pgqueuer", "PgQueuerHundred"),
        ("chancy", "Chancy"),
    ],
    "sqlite": [("huey", "Huey"), ("huey", "HueyNormal"), ("litequeue", "LiteQueue"), ("litequeue", "LiteQueueNormal")],
}


def load_peers(dialect: str) -> tuple[list[type[Peer]], list[str]]:
    """Those that can be measured here, and for each of the others why it cannot."""
    found: list[type[Peer]] = []
    missing: dict[str, str] = {}
    for module, name in PEERS[dialect]:
        try:
            found.append(getattr(importlib.import_module(f"benchmarks.peers.{module}"), name))
            logging.getLogger(module).setLevel(logging.WARNING)
        except ImportError as error:
            missing[module] = f"{module} was not measured: {error}."
    return found, list(missing.values())


def versions() -> str:
    """What is installed, in one line."""
    names = dict.fromkeys(module for peers in PEERS.values() for module, _ in peers)
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} (not installed)")
    return ", ".join(found)

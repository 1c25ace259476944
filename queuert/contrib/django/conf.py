"""The project's `Queuert`, from the settings.

QUEUERT = {
    "DATABASE": "default",           # an alias of DATABASES
    "TABLE_PREFIX": "queuert_",      # and every other option of Queuert, in capitals
    "CONCURRENCY": 4,                # of `manage.py queuert_worker`
    "APP": "shop.queue:app",         # instead of all that: a Queuert of your own, on a DjangoProvider
}
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from queuert import Queuert
from queuert.contrib.django.provider import DjangoProvider
from queuert.errors import QueuertError
from queuert.storage.names import Names

SETTING = "QUEUERT"
WORKER_KEYS = ("CONCURRENCY", "POLL_INTERVAL", "STOP_TIMEOUT")
OWN_KEYS = ("APP", "DATABASE", *WORKER_KEYS)

_lock = threading.RLock()
_queue: Queuert | None = None


def project_queue() -> Queuert:
    """The same object every time; ImproperlyConfigured says what is wrong with the settings."""
    global _queue
    with _lock:
        if _queue is None:
            _queue = _make()
        return _queue


def configured() -> dict[str, Any]:
    found = getattr(settings, SETTING, {})
    if not isinstance(found, dict):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {type(found).__name__}.")
    known = _options()
    if unknown := sorted(map(str, set(found) - set(known) - set(OWN_KEYS))):
        raise ImproperlyConfigured(
            f"{SETTING} has an unknown key {unknown[0]!r}: it takes {', '.join(sorted([*OWN_KEYS, *known]))}."
        )
    return found


def names() -> Names:
    """What the tables are called."""
    found = configured()
    if "APP" in found:
        return project_queue()._names
    options = {key: found[key.upper()] for key in ("schema", "id_type", "id_default") if key.upper() in found}
    return Names(found.get("TABLE_PREFIX", "queuert_"), **options)


def alias() -> str:
    """The database that the tables are in."""
    found = configured()
    if "APP" in found:
        database: Any = project_queue()._database
        return str(database.alias)
    return str(found.get("DATABASE", "default"))


def _make() -> Queuert:
    found = configured()
    if "APP" in found:
        return _imported(found)
    options = {name: found[key] for key, name in _options().items() if key in found}
    try:
        return Queuert(DjangoProvider(found.get("DATABASE", "default")), **options)
    except (QueuertError, ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from error


def _imported(found: dict[str, Any]) -> Queuert:
    if rest := sorted(set(found) - {"APP", *WORKER_KEYS}):
        raise ImproperlyConfigured(f"{SETTING} has APP, so {', '.join(rest)} must be given to that app instead.")
    try:
        app = import_string(str(found["APP"]).replace(":", "."))
    except ImportError as error:
        raise ImproperlyConfigured(f"{SETTING}['APP'] cannot be imported: {error}") from error
    if not isinstance(app, Queuert) or not hasattr(app._database, "alias"):
        raise ImproperlyConfigured(f"{SETTING}['APP'] must be a Queuert on a DjangoProvider, not {app!r}.")
    return app


def _options() -> dict[str, str]:
    return {name.upper(): name for name in inspect.signature(Queuert).parameters if name != "target"}

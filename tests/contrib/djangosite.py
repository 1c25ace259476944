"""Django without a project: settings, a model, and databases that come and go with the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[],
        USE_TZ=True,
        SECRET_KEY="only for tests",
    )
    django.setup()

from django.db import connections, models

ALIAS = "shop"


class Order(models.Model):
    id = models.IntegerField(primary_key=True)
    state = models.TextField(default="new")

    class Meta:
        app_label = "djangosite"
        db_table = "orders"


def database_settings(target: str | Path, **options: Any) -> dict[str, Any]:
    """The entry of DATABASES for a SQLite file or a PostgreSQL URL."""
    if isinstance(target, Path):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(target), **options}
    url = urlsplit(target)
    query = parse_qs(url.query)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.lstrip("/"),
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.hostname or query.get("host", [""])[0],
        "PORT": str(url.port or ""),
        **options,
    }


@contextmanager
def django_database(entry: dict[str, Any], alias: str = ALIAS) -> Iterator[str]:
    """A database of Django's for as long as the block."""
    configured = connections.configure_settings({"default": {"ENGINE": "django.db.backends.dummy"}, alias: entry})
    connections.databases[alias] = configured[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        pools = getattr(type(connections[alias]), "_connection_pools", {})
        if alias in pools:
            connections[alias].close_pool()
        del connections[alias]
        del connections.databases[alias]


def create_orders(alias: str = ALIAS) -> None:
    with connections[alias].schema_editor() as editor:
        editor.create_model(Order)


def orders(alias: str = ALIAS) -> dict[int, str]:
    return {order.id: order.state for order in Order.objects.using(alias)}

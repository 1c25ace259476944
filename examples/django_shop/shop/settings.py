"""Settings of the shop. What is special about them is at the end."""

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "an example has no secrets")
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "orders", "queuert.contrib.django"]


def database(url: str) -> dict[str, object]:
    if not url:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parents[1] / "shop.db"}
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path.removeprefix("/")}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or parse_qs(parts.query).get("host", [""])[0],
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 60,
    }


DATABASES = {"default": {**database(os.environ.get("SHOP_DATABASE", "")), "ATOMIC_REQUESTS": True}}

QUEUERT = {"DATABASE": "default", "CONCURRENCY": 4}

GATEWAY_SECONDS = float(os.environ.get("SHOP_GATEWAY_SECONDS", "0"))  # how long the payment provider takes
LEASE_SECONDS = float(os.environ.get("SHOP_LEASE_SECONDS", "30"))  # after which a dead worker's order is charged by another

"""Django: the library on Django's own connections, in `transaction.atomic()`, with commands, admin and test helpers.

    INSTALLED_APPS = [..., "queuert.contrib.django"]
    QUEUERT = {"DATABASE": "default"}

    from queuert.contrib.django import queue      # in jobs.py of any app

    @queue.job
    def send_receipt(job): ...

`queue` is the project's `Queuert`, made from the settings when it is first used.
"""

from typing import TYPE_CHECKING, Any

from queuert.contrib.django.provider import DjangoProvider

if TYPE_CHECKING:
    from queuert import Queuert
    from queuert.contrib.django.dashboard import dashboard_urls

    queue: Queuert

__all__ = ["DjangoProvider", "dashboard_urls", "queue"]


def __getattr__(name: str) -> Any:
    if name == "queue":
        from queuert.contrib.django.conf import project_queue

        return project_queue()
    if name == "dashboard_urls":  # its libraries are an extra
        from queuert.contrib.django.dashboard import dashboard_urls

        return dashboard_urls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The Django app: finds `jobs.py` in every installed app, and checks the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules


class QueuertConfig(AppConfig):
    name = "queuert.contrib.django"
    label = "queuert"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(check_settings, checks.Tags.database)
        checks.register(check_settings)
        autodiscover_modules("jobs")
        if getattr(settings, "TASKS", None):
            register_tasks()


def register_tasks() -> None:
    """The job types of Django's tasks, where the project has some and the framework is there."""
    backends = [params.get("BACKEND", "") for params in settings.TASKS.values()]
    if any(backend.startswith("queuert.contrib.django.") for backend in backends):
        from queuert.contrib.django.tasks import register_backends

        register_backends()


def check_settings(app_configs: Sequence[Any] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """What is wrong with the settings is said by `manage.py check`, and before any command that runs the checks."""
    from queuert.contrib.django.conf import project_queue

    try:
        project_queue()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="queuert.E001")]
    return []

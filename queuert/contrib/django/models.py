"""The tables as models: for the admin, for permissions, and so that tests empty them.

Our SQL creates and changes them, and the library writes them. Treat these as read-only.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from queuert import Status
from queuert.app import context_of
from queuert.contrib.django.conf import names, project_queue
from queuert.errors import InvalidJobIdError


def table(name: str) -> str:
    """The name of a table, with the prefix and, where there is one, the schema."""
    found = names()
    plain = f"{found.prefix}{name}"
    return plain if found.schema == "public" else f'{found.schema}"."{plain}'


class IdField(models.CharField):
    """A UUID on PostgreSQL, a text on SQLite; always a string here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 200)
        super().__init__(*args, **kwargs)

    def from_db_value(self, value: Any, *_: Any) -> str | None:
        return None if value is None else str(value)

    def get_prep_value(self, value: Any) -> Any:
        """A malformed id is a wrong value here already: PostgreSQL would refuse to compare it."""
        if isinstance(value, str):
            try:
                context_of(project_queue()).ids.check(value)
            except InvalidJobIdError as error:
                raise ValueError(str(error)) from error
        return super().get_prep_value(value)


class JsonTextField(models.TextField):
    """jsonb on PostgreSQL, a text on SQLite; only to be shown."""

    def from_db_value(self, value: Any, *_: Any) -> str | None:
        return None if value is None else str(value)


class Job(models.Model):
    id = IdField(primary_key=True)
    type_name = models.TextField("type")
    chain_id = IdField("chain")
    chain_type_name = models.TextField("chain's type")
    chain_index = models.IntegerField("position in the chain", default=0)
    status = models.TextField(choices=[(status.value, status.value) for status in Status])
    priority = models.IntegerField(default=0)
    input = JsonTextField()
    output = JsonTextField(null=True)
    created_at = models.DateTimeField()
    scheduled_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    completed_by = models.TextField(null=True)
    attempt = models.IntegerField("attempts", default=0)
    max_attempts = models.IntegerField(null=True)
    last_attempt_at = models.DateTimeField(null=True)
    last_attempt_error = models.TextField(null=True)
    error_code = models.TextField(null=True)
    leased_by = models.TextField("worker", null=True)
    leased_until = models.DateTimeField(null=True)
    deduplication_key = models.TextField(null=True)

    class Meta:
        db_table = table("job")
        verbose_name = "job"
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"


class JobBlocker(models.Model):
    job_id = IdField(primary_key=True)

    class Meta:
        db_table = table("job_blocker")
        default_permissions = ()


class JobKey(models.Model):
    deduplication_key = models.TextField(primary_key=True)

    class Meta:
        db_table = table("job_key")
        default_permissions = ()


class JobAttempt(models.Model):
    job_id = IdField(primary_key=True)

    class Meta:
        db_table = table("job_attempt")
        default_permissions = ()


class JobEvent(models.Model):
    job_id = IdField(primary_key=True)

    class Meta:
        db_table = table("job_event")
        default_permissions = ()


class Singleton(models.Model):
    name = models.TextField(primary_key=True)

    class Meta:
        db_table = table("singleton")
        default_permissions = ()


class Worker(models.Model):
    id = models.TextField(primary_key=True)

    class Meta:
        db_table = table("worker")
        default_permissions = ()


class WorkerRate(models.Model):
    worker_id = models.TextField(primary_key=True)

    class Meta:
        db_table = table("worker_rate")
        default_permissions = ()


class Pause(models.Model):
    name = models.TextField(primary_key=True)

    class Meta:
        db_table = table("pause")
        default_permissions = ()


class Limit(models.Model):
    name = models.TextField(primary_key=True)

    class Meta:
        db_table = table("limit")
        default_permissions = ()


class LimitKey(models.Model):
    limit_key = models.TextField(primary_key=True)

    class Meta:
        db_table = table("limit_key")
        default_permissions = ()

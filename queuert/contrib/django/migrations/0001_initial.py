"""Our tables: Django keeps the record of the models, our own SQL makes the tables."""

from typing import ClassVar

from django.db import migrations, models

import queuert.contrib.django.models
from queuert import Status
from queuert.contrib.django.models import table
from queuert.contrib.django.operations import ApplySql

JOB = [
    ("id", queuert.contrib.django.models.IdField(primary_key=True, serialize=False)),
    ("type_name", models.TextField(verbose_name="type")),
    ("chain_id", queuert.contrib.django.models.IdField(verbose_name="chain")),
    ("chain_type_name", models.TextField(verbose_name="chain's type")),
    ("chain_index", models.IntegerField(default=0, verbose_name="position in the chain")),
    ("status", models.TextField(choices=[(status.value, status.value) for status in Status])),
    ("priority", models.IntegerField(default=0)),
    ("input", queuert.contrib.django.models.JsonTextField()),
    ("output", queuert.contrib.django.models.JsonTextField(null=True)),
    ("created_at", models.DateTimeField()),
    ("scheduled_at", models.DateTimeField()),
    ("completed_at", models.DateTimeField(null=True)),
    ("completed_by", models.TextField(null=True)),
    ("attempt", models.IntegerField(default=0, verbose_name="attempts")),
    ("max_attempts", models.IntegerField(null=True)),
    ("last_attempt_at", models.DateTimeField(null=True)),
    ("last_attempt_error", models.TextField(null=True)),
    ("error_code", models.TextField(null=True)),
    ("leased_by", models.TextField(null=True, verbose_name="worker")),
    ("leased_until", models.DateTimeField(null=True)),
    ("deduplication_key", models.TextField(null=True)),
]


def _other(name: str, table_name: str, key: str, field: models.Field) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name, fields=[(key, field)], options={"db_table": table(table_name), "default_permissions": ()}
    )


class Migration(migrations.Migration):
    initial = True
    atomic = False  # our own SQL has a transaction and a lock of its own
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.SeparateDatabaseAndState(
            database_operations=[ApplySql()],
            state_operations=[
                migrations.CreateModel(
                    name="Job",
                    fields=JOB,
                    options={"db_table": table("job"), "verbose_name": "job", "ordering": ("-created_at", "-id")},
                ),
                _other(
                    "JobBlocker",
                    "job_blocker",
                    "job_id",
                    queuert.contrib.django.models.IdField(primary_key=True, serialize=False),
                ),
                _other("JobKey", "job_key", "deduplication_key", models.TextField(primary_key=True, serialize=False)),
                _other(
                    "JobAttempt",
                    "job_attempt",
                    "job_id",
                    queuert.contrib.django.models.IdField(primary_key=True, serialize=False),
                ),
                _other(
                    "JobEvent",
                    "job_event",
                    "job_id",
                    queuert.contrib.django.models.IdField(primary_key=True, serialize=False),
                ),
                _other("Singleton", "singleton", "name", models.TextField(primary_key=True, serialize=False)),
            ],
        )
    ]

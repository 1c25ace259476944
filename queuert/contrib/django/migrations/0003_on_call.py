"""Tables of workers, of what they did lately, and of pauses."""

from typing import ClassVar

from django.db import migrations, models

from queuert.contrib.django.models import table
from queuert.contrib.django.operations import ApplySql


def _table(name: str, table_name: str, key: str) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[(key, models.TextField(primary_key=True, serialize=False))],
        options={"db_table": table(table_name), "default_permissions": ()},
    )


class Migration(migrations.Migration):
    atomic = False  # our own SQL has a transaction and a lock of its own
    dependencies: ClassVar = [("queuert", "0002_open_keys")]
    operations: ClassVar = [
        migrations.SeparateDatabaseAndState(
            database_operations=[ApplySql(first=False)],
            state_operations=[
                _table("Worker", "worker", "id"),
                _table("WorkerRate", "worker_rate", "worker_id"),
                _table("Pause", "pause", "name"),
            ],
        )
    ]

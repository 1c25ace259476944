"""Tables and columns for limits."""

from typing import Any, ClassVar

from django.db import migrations, models

from queuert.contrib.django.models import table
from queuert.contrib.django.operations import ApplySql


def _table(name: str, table_name: str, key: str) -> Any:
    return migrations.CreateModel(
        name=name,
        fields=[(key, models.TextField(primary_key=True, serialize=False))],
        options={"db_table": table(table_name), "default_permissions": ()},
    )


class Migration(migrations.Migration):
    atomic = False  # indexes that are built while workers run are built outside of transactions
    dependencies: ClassVar = [("queuert", "0006_losses")]
    operations: ClassVar = [
        migrations.SeparateDatabaseAndState(
            database_operations=[ApplySql(first=False)],
            state_operations=[_table("Limit", "limit", "name"), _table("LimitKey", "limit_key", "limit_key")],
        )
    ]

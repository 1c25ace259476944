"""How often in a row a job was lost with its worker, or excused."""

from typing import ClassVar

from django.db import migrations

from queuert.contrib.django.operations import ApplySql


class Migration(migrations.Migration):
    dependencies: ClassVar = [("queuert", "0005_guards")]
    operations: ClassVar = [ApplySql(first=False)]

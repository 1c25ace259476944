"""How far a job is, as its handler has told."""

from typing import ClassVar

from django.db import migrations

from queuert.contrib.django.operations import ApplySql


class Migration(migrations.Migration):
    dependencies: ClassVar = [("queuert", "0007_limits")]
    operations: ClassVar = [ApplySql(first=False)]

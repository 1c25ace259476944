"""Columns for what is started when a job fails, and for jobs that wait until their blockers have closed."""

from typing import ClassVar

from django.db import migrations

from queuert.contrib.django.operations import ApplySql


class Migration(migrations.Migration):
    atomic = False  # indexes that are built while workers run are built outside of transactions
    dependencies: ClassVar = [("queuert", "0003_on_call")]
    operations: ClassVar = [ApplySql(first=False)]

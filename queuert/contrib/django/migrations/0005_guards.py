"""Rows that no worker could read are refused where they are written."""

from typing import ClassVar

from django.db import migrations

from queuert.contrib.django.operations import ApplySql


class Migration(migrations.Migration):
    atomic = False
    dependencies: ClassVar = [("queuert", "0004_flow")]
    operations: ClassVar = [ApplySql(first=False)]

"""An index for the open chains of a deduplication key."""

from typing import ClassVar

from django.db import migrations

from queuert.contrib.django.operations import ApplySql


class Migration(migrations.Migration):
    atomic = False  # an index that is built while workers run is built outside of transactions
    dependencies: ClassVar = [("queuert", "0001_initial")]
    operations: ClassVar = [ApplySql(first=False)]

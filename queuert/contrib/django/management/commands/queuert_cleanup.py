"""`manage.py queuert_cleanup`: delete what the retention lets go."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queuert.contrib.django.conf import project_queue
from queuert.errors import QueuertError


class Command(BaseCommand):
    help = "Delete the closed chains that the retention lets go, in small batches."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--max-seconds", type=float, metavar="N", help="stop after that long")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            deleted = project_queue().cleanup(max_seconds=options["max_seconds"])
        except QueuertError as error:
            raise CommandError(str(error)) from error
        for state, number in deleted.items():
            self.stdout.write(f"{state}: {number}")

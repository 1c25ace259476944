"""`manage.py queuert_stats`: how things stand."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queuert.cli.output import Output
from queuert.cli.stats import draw, oldest_kept, stats_json
from queuert.contrib.django.conf import project_queue
from queuert.errors import QueuertError


class Command(BaseCommand):
    help = "How things stand: states, what is stuck, retries, errors, what is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--types", metavar="A,B", help="only jobs of these types")
        parser.add_argument("--json", action="store_true", help="print JSON and nothing else")

    def handle(self, *_: Any, **options: Any) -> None:
        queue = project_queue()
        types = None if options["types"] is None else options["types"].split(",")
        try:
            stats, kept = queue.stats(types=types), oldest_kept(queue, types)
        except QueuertError as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(stats_json(stats, kept), indent=2))
        else:
            draw(Output(), stats, kept)

"""`manage.py queuert_worker`: run jobs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queuert.cli.logs import LEVELS, configure_logging
from queuert.contrib.django.conf import configured, project_queue
from queuert.errors import QueuertError


class Command(BaseCommand):
    help = "Run jobs until SIGTERM or Ctrl-C; a second one ends it at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("-c", "--concurrency", type=int, metavar="N", help="jobs at a time (CONCURRENCY, or 1)")
        parser.add_argument("--types", metavar="A,B", help="only jobs of these types")
        parser.add_argument("--name", help="begins the worker's id")
        parser.add_argument("--stop-timeout", type=float, metavar="SECONDS", help="for running jobs to finish in (30)")
        parser.add_argument("--log-level", choices=LEVELS, default="info", help="unless LOGGING says otherwise (info)")

    def handle(self, *_: Any, **options: Any) -> None:
        settings, queue = configured(), project_queue()
        configure_logging(options["log_level"])
        types = options["types"]
        try:
            worker = queue.worker(
                concurrency=options["concurrency"] or settings.get("CONCURRENCY", 1),
                types=None if types is None else [name.strip() for name in types.split(",") if name.strip()],
                name=options["name"],
                poll_interval=settings.get("POLL_INTERVAL"),
            )
            timeout = options["stop_timeout"]
            ended = worker.run(timeout=settings.get("STOP_TIMEOUT", 30) if timeout is None else timeout)
        except (QueuertError, ValueError) as error:
            raise CommandError(str(error)) from error
        if not ended:
            raise CommandError(f"Handlers still run: {', '.join(worker.unfinished)}.")
        queue.close()

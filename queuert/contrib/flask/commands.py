"""`flask queuert worker`, `stats`, `migrate`, `cleanup`."""

from __future__ import annotations

import json
from typing import Any

import click
from flask import current_app
from flask.cli import AppGroup

from queuert import Queuert
from queuert.cli.logs import LEVELS, configure_logging
from queuert.cli.output import Output
from queuert.cli.stats import draw, oldest_kept, stats_json
from queuert.errors import QueuertError

group = AppGroup("queuert", short_help="Run jobs, and see how they stand.")


@group.command("worker")
@click.option("-c", "--concurrency", type=click.IntRange(1), help="Jobs at a time (QUEUERT_CONCURRENCY, or 1).")
@click.option("--types", help="Only jobs of these types, with commas between them.")
@click.option("--name", help="Begins the worker's id.")
@click.option("--stop-timeout", type=float, default=30.0, show_default=True, help="Seconds for running jobs to finish in.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def worker(concurrency: int | None, types: str | None, name: str | None, stop_timeout: float, log_level: str) -> None:
    """Run jobs until SIGTERM or Ctrl-C; a second one ends it at once."""
    app, config = _queuert(), current_app.config
    configure_logging(log_level)
    try:
        runner = app.worker(
            concurrency=concurrency or config.get("QUEUERT_CONCURRENCY", 1),
            types=None if types is None else [each.strip() for each in types.split(",") if each.strip()],
            name=name,
            poll_interval=config.get("QUEUERT_POLL_INTERVAL"),
        )
        ended = runner.run(timeout=stop_timeout)
    except (QueuertError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not ended:
        raise click.ClickException(f"Handlers still run: {', '.join(runner.unfinished)}.")
    app.close()


@group.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def stats(as_json: bool) -> None:
    """How things stand: states, what is stuck, retries, errors, what is kept."""
    app = _queuert()
    found, kept = _called(app.stats), _called(lambda: oldest_kept(app, None))
    if as_json:
        click.echo(json.dumps(stats_json(found, kept), indent=2))
    else:
        draw(Output(), found, kept)


@group.command("migrate")
def migrate() -> None:
    """Create the tables, or bring them to the newest version."""
    app = _queuert()
    before = _called(app.migration_status)
    _called(app.migrate)
    for name in before.pending:
        click.echo(f"applied {name}")
    if not before.pending:
        click.echo("nothing to do")


@group.command("cleanup")
def cleanup() -> None:
    """Delete the closed chains that the retention lets go."""
    for state, number in _called(_queuert().cleanup).items():
        click.echo(f"{state}: {number}")


def _queuert() -> Queuert:
    found: Queuert = current_app.extensions["queuert"]
    return found


def _called(function: Any) -> Any:
    try:
        return function()
    except QueuertError as error:
        raise click.ClickException(str(error)) from error

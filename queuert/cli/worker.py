"""`queuert worker MODULE:APP`: run jobs, in this process or in several that it looks after."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from queuert import Queuert, UnknownJobTypeError, Worker
from queuert.cli.exits import OK, REFUSED, UsageError
from queuert.cli.loading import load_app
from queuert.cli.logs import LEVELS, configure_logging
from queuert.cli.parser import add_command, names, positive
from queuert.cli.supervisor import Supervisor
from queuert.cli.values import duration

logger = logging.getLogger("queuert.worker")


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "worker",
        "run jobs until SIGTERM or Ctrl-C; a second one ends it at once",
        details="More than one process is for work that needs the CPU: threads wait well, but compute in turns.",
        example="""
            queuert worker shop:app -c 10
            queuert worker shop:app -c 10 --processes 4 --types charge-card,ship-order""",
        database=False,
    )
    command.add_argument("app", nargs="?", metavar="MODULE:APP", help="the application's Queuert object (or QUEUERT_APP)")
    command.add_argument("--app", dest="app_option", metavar="MODULE:APP", help="the same, as the other commands take it")
    command.add_argument(
        "-c", "--concurrency", type=positive, default=1, metavar="N", help="jobs at a time, in each process (1)"
    )
    command.add_argument("-p", "--processes", type=positive, default=1, metavar="N", help="processes (1)")
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    command.add_argument("--name", help="begins the worker's id")
    command.add_argument("--poll-interval", type=duration, metavar="SECONDS", help="the safety net behind the wake-ups")
    command.add_argument("--reap-interval", type=duration, metavar="SECONDS", help="how often to look for dead workers' jobs")
    command.add_argument(
        "--stop-timeout", type=duration, default=30.0, metavar="SECONDS", help="for running jobs to finish in (30)"
    )
    command.add_argument("--log-level", choices=LEVELS, default="info", help="unless the application sets up logging (info)")
    command.add_argument("--watch-fd", type=int, help=argparse.SUPPRESS)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.app and args.app_option:
        raise UsageError("Name the application once: MODULE:APP or --app.")
    spec = args.app or args.app_option or os.environ.get("QUEUERT_APP")
    if not spec:
        raise UsageError("Which application? Pass MODULE:APP, such as shop:app, or set QUEUERT_APP.")
    if args.processes > 1:
        if os.name != "posix":
            raise UsageError("--processes needs POSIX: start `queuert worker` several times instead.")
        configure_logging(args.log_level)
        return Supervisor(lambda number, watched: child_command(args, spec, number, watched), args.processes).run()
    app = load_app(spec)
    configure_logging(args.log_level)
    return work(app, args)


def child_command(args: argparse.Namespace, spec: str, number: int, watched: int) -> Sequence[str]:
    """The command line of one of several processes."""
    command = [sys.executable, "-m", "queuert", "worker", spec, "--concurrency", str(args.concurrency)]
    command += ["--name", f"{args.name or 'worker'}-{number}", "--watch-fd", str(watched)]
    command += ["--stop-timeout", str(args.stop_timeout), "--log-level", args.log_level]
    if args.types:
        command += ["--types", ",".join(args.types)]
    for option in ("poll_interval", "reap_interval"):
        if (value := getattr(args, option)) is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    return [*command, "--debug"] if args.debug else command


def work(app: Queuert, args: argparse.Namespace) -> int:
    """Run a worker in this process until it is told to stop."""
    if not app.types.names_with_handlers():
        raise UsageError("This application has no handlers: import the modules that define them where it is made.")
    try:
        worker = app.worker(
            concurrency=args.concurrency,
            types=args.types,
            name=args.name,
            poll_interval=args.poll_interval,
            reap_interval=args.reap_interval,
        )
    except (UnknownJobTypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    with _stopping_with_parent(worker, args):
        ended = worker.run(timeout=args.stop_timeout)
    if not ended:  # their threads are daemons: they end with this process, and their leases bring the jobs back
        logger.warning("Ending although handlers still run: %s.", ", ".join(worker.unfinished))
        return REFUSED
    app.close()
    return OK


@contextmanager
def _stopping_with_parent(worker: Worker, args: argparse.Namespace) -> Iterator[None]:
    """Stop the worker when the supervisor is gone: nobody writes to this descriptor, so it can only come to its end."""
    if args.watch_fd is None:
        yield
        return
    os.set_inheritable(args.watch_fd, False)
    over = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            os.read(args.watch_fd, 1)
        while not over.is_set():
            if worker.running:
                logger.warning("The supervisor is gone: stopping.")
                with suppress(Exception):  # what killed the worker is raised where it runs
                    worker.stop(args.stop_timeout)
                return
            over.wait(0.05)  # it has not started yet, or stops already

    threading.Thread(target=watch, name="queuert-parent-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()

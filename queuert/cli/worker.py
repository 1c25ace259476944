"""`queuert worker MODULE:APP`: run jobs, in this process or in several that it looks after."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from queuert import DatabaseUnavailableError, Job, Queuert, SchemaVersionError, UnknownJobTypeError, Worker
from queuert.app import context_of
from queuert.cli.exits import CHANGED, OK, REFUSED, UsageError
from queuert.cli.health_server import serving
from queuert.cli.loading import host_of, load_app
from queuert.cli.logs import LEVELS, configure_logging
from queuert.cli.messages import message_of
from queuert.cli.parser import add_command, names, port, positive
from queuert.cli.reloading import stopping_when_changed
from queuert.cli.supervisor import LONGEST_DELAY, Supervisor
from queuert.cli.values import duration

logger = logging.getLogger("queuert.worker")

FIRST: Final = "0001_initial"
NAMED: Final = 20  # jobs of a killed process
LOOK_EVERY: Final = 0.2
EDITED_AFTER: Final = 2.0  # seconds between starts of code that does not run yet


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "worker",
        "run jobs until SIGTERM or Ctrl-C; a second one ends it at once",
        details="More than one process is for work that needs the CPU: threads wait well, but compute in turns.",
        example="""
            queuert worker shop:app -c 10
            queuert worker shop:app -c 10 --processes 4 --types charge-card,ship-order
            queuert worker shop:app -c 10 --health 8080""",
        database=False,
    )
    command.add_argument("app", nargs="?", metavar="MODULE:APP", help="the application's Queuert object (or QUEUERT_APP)")
    command.add_argument("--app", dest="app_option", metavar="MODULE:APP", help="the same, as the other commands take it")
    command.add_argument("-c", "--concurrency", type=positive, metavar="N", help="jobs at a time, in each process (1)")
    command.add_argument("-p", "--processes", type=positive, default=1, metavar="N", help="processes (1)")
    command.add_argument("--autoreload", action="store_true", help="for development: start again when a source file changes")
    command.add_argument("--types", "--type", type=names, metavar="A,B", help="only jobs of these types")
    command.add_argument("--exclude", type=names, metavar="A,B", help="all types but these")
    command.add_argument(
        "--until-empty",
        action="store_true",
        help="end when nothing is ready any more; what is scheduled or backing off is not waited for",
    )
    command.add_argument(
        "--health",
        type=port,
        metavar="PORT",
        help="serve /healthz, /readyz and /metrics there; the second of several processes on the port after it, and so on",
    )
    command.add_argument("--name", help="begins the worker's id")
    command.add_argument("--poll-interval", type=duration, metavar="SECONDS", help="the safety net behind the wake-ups")
    command.add_argument("--reap-interval", type=duration, metavar="SECONDS", help="how often to look for dead workers' jobs")
    command.add_argument("--stop-timeout", type=duration, metavar="SECONDS", help="for running jobs to finish in (30)")
    command.add_argument("--log-level", choices=LEVELS, default="info", help="unless the application sets up logging (info)")
    command.add_argument("--watch-fd", type=int, help=argparse.SUPPRESS)
    command.add_argument("--watch-sources", action="store_true", help=argparse.SUPPRESS)
    command.add_argument("--name-jobs-of", type=int, help=argparse.SUPPRESS)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    command, find = _application(args)
    if args.processes > 1 or args.autoreload:
        if os.name != "posix":
            raise UsageError("--processes and --autoreload need POSIX: start `queuert worker` several times instead.")
        configure_logging(args.log_level)
        return Supervisor(
            lambda number, watched: [*command, *child_options(args, number, watched)],
            args.processes,
            until_done=args.until_empty,
            mourn=lambda pid: [*command, "--name-jobs-of", str(pid), "--log-level", args.log_level],
            patient=args.autoreload,
            longest_delay=EDITED_AFTER if args.autoreload else LONGEST_DELAY,
        ).run()
    app = find()
    configure_logging(args.log_level)
    if args.name_jobs_of is not None:
        return name_jobs_of(app, args.name_jobs_of)
    return work(app, args)


def _application(args: argparse.Namespace) -> tuple[Sequence[str], Callable[[], Queuert]]:
    """What starts a worker of the application in another process, and what finds it in this one."""
    if args.app and args.app_option:
        raise UsageError("Name the application once: MODULE:APP or --app.")
    named, host = args.app or args.app_option, host_of(args)
    settings = {} if host is None else host.worker
    for option, default in (("concurrency", 1), ("stop_timeout", 30.0), ("poll_interval", None)):
        if getattr(args, option) is None:
            setattr(args, option, settings.get(option, default))
    if host is not None:
        if named:
            raise UsageError(f"`{host.program} worker` runs its own application: leave {named!r} out, or use `queuert worker`.")
        return [*host.command, "worker"], lambda: host.app
    spec = named or os.environ.get("QUEUERT_APP")
    if not spec:
        raise UsageError("Which application? Pass MODULE:APP, such as shop:app, or set QUEUERT_APP.")
    return [sys.executable, "-m", "queuert", "worker", spec], lambda: load_app(spec)


def child_options(args: argparse.Namespace, number: int, watched: int) -> Sequence[str]:
    """The options of one of several processes."""
    command = ["--concurrency", str(args.concurrency)]
    command += ["--name", f"{args.name or 'worker'}-{number}", "--watch-fd", str(watched)]
    command += ["--stop-timeout", str(args.stop_timeout), "--log-level", args.log_level]
    for option in ("types", "exclude"):
        if (value := getattr(args, option)) is not None:
            command += [f"--{option}", ",".join(value)]
    if args.health is not None:
        command += ["--health", str(args.health + number - 1 if args.health else 0)]
    if args.until_empty:
        command += ["--until-empty"]
    if args.autoreload:
        command += ["--watch-sources"]
    for option in ("poll_interval", "reap_interval"):
        if (value := getattr(args, option)) is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    return [*command, "--debug"] if args.debug else command


def work(app: Queuert, args: argparse.Namespace) -> int:
    """Run a worker in this process until it is told to stop, or until nothing is ready."""
    types = _types(app, args)
    try:
        worker = app.worker(
            concurrency=args.concurrency,
            types=types,
            name=args.name,
            poll_interval=args.poll_interval,
            reap_interval=args.reap_interval,
        )
    except (UnknownJobTypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    _require_schema(app)
    with (
        serving(app, worker, args.health),
        _stopping_with_parent(worker, args),
        _stopping_when_empty(app, worker, types, args),
        stopping_when_changed(worker, args.stop_timeout, watch=args.watch_sources) as changed,
    ):
        ended = worker.run(timeout=args.stop_timeout)
    if changed.is_set():
        return CHANGED
    if not ended:  # their threads are daemons: they end with this process, and their leases bring the jobs back
        logger.warning("Ending although handlers still run: %s.", ", ".join(worker.unfinished))
        return REFUSED
    app.close()
    return OK


def _types(app: Queuert, args: argparse.Namespace) -> list[str] | None:
    known = app.types.names_with_handlers()
    if not known:
        raise UsageError("This application has no handlers: import the modules that define them where it is made.")
    if args.exclude is None:
        return cast("list[str] | None", args.types)
    if strange := [name for name in args.exclude if app.types.find(name) is None]:
        raise UsageError(f"--exclude: there is no job type {', '.join(strange)}; there are {', '.join(sorted(known))}.")
    chosen = [name for name in args.types or sorted(known) if name not in args.exclude]
    if not chosen:
        raise UsageError("--exclude leaves no job type to run.")
    return chosen


def _require_schema(app: Queuert) -> None:
    """End at once, with the reason, where starting again cannot help. A database that is away may come back."""
    try:
        pending = app.migration_status().pending
    except SchemaVersionError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        if isinstance(error, DatabaseUnavailableError) or context_of(app).database.is_transient(error):
            return
        raise UsageError(message_of(error)) from error
    if FIRST in pending:
        remedy = context_of(app).database.remedy
        raise UsageError(f"The database has no tables for jobs (pending: {', '.join(pending)}): {remedy}.")


def name_jobs_of(app: Queuert, pid: int) -> int:
    """Say in the log which jobs a process had in hand that was killed."""
    mark = f"@{socket.gethostname()[:60]}:{pid}:"
    jobs: list[Job] = []
    cursor: str | None = None
    with app:
        while True:
            page = app.list_jobs(statuses=["running"], limit=1_000, cursor=cursor)
            jobs += [job for job in page.items if mark in (job.leased_by or "")]
            cursor = page.next_cursor
            if cursor is None:
                break
    for job in jobs[:NAMED]:
        about = {"event": "job_of_killed_process", "job_id": job.id, "type_name": job.type_name, "worker_id": job.leased_by}
        until = "" if job.leased_until is None else f"{job.leased_until:%H:%M:%S} UTC"
        logger.warning("Process %d had %s %s in hand: it comes back at %s.", pid, job.type_name, job.id, until, extra=about)
    if len(jobs) > NAMED:
        logger.warning("Process %d had %d more jobs in hand.", pid, len(jobs) - NAMED)
    return OK


@contextmanager
def _stopping_when_empty(app: Queuert, worker: Worker, types: list[str] | None, args: argparse.Namespace) -> Iterator[None]:
    """Stop the worker when nothing of its types is ready, and nothing that it has claimed is open."""
    if not args.until_empty:
        yield
        return
    over = threading.Event()
    wanted = types or sorted(app.types.names_with_handlers())

    def watch() -> None:
        empty = 0
        while not over.wait(LOOK_EVERY):
            try:
                empty = 0 if _busy(app, worker, wanted) else empty + 1
            except Exception as error:  # an outage ends nothing
                logger.debug("Whether anything is ready could not be read: %s", error)
                continue
            # Twice: a job that ended between two questions may have gone on to the next of its chain.
            if empty >= 2 and worker.running:
                logger.info("Nothing is ready any more: stopping.")
                with suppress(Exception):  # what killed the worker is raised where it runs
                    worker.stop(args.stop_timeout)
                return

    watcher = threading.Thread(target=watch, name="queuert-until-empty", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _busy(app: Queuert, worker: Worker, types: list[str]) -> bool:
    context = context_of(app)
    if not worker.running:
        return True
    own = [job for job in app.list_jobs(types=types, statuses=["running"], limit=1_000).items if job.leased_by == worker.id]
    paused = {pause.type_name for pause in app.pauses()}
    free = [] if None in paused else [name for name in types if name not in paused]
    due = context.read(None, lambda session: context.repository.next_due(session, free)) if free else None
    return bool(own) or (due is not None and due <= 0)


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

"""Finds the app that a command works on: the application's own object, or a bare one on a URL.

A bare app knows no job types, so payloads come back as the JSON that is stored. That is all an operator needs, and it
works on a machine that has the database but not the application.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from queuert import Queuert
from queuert.app import context_of
from queuert.cli.exits import CommandError, UsageError
from queuert.cli.host import Host
from queuert.cli.output import clean
from queuert.suggestions import did_you_mean


@contextmanager
def open_app(args: argparse.Namespace, *, create: bool = False) -> Iterator[Queuert]:
    """The app that the options or the environment name, closed afterwards. `create` allows a SQLite file to be made."""
    app = find_app(args)
    if not create:
        _refuse_missing_file(app)
    with nullcontext() if host_of(args) is not None else app:  # a host's is its own to close
        _tell_unknown_types(app, args)
        yield app


def find_app(args: argparse.Namespace) -> Queuert:
    spec, url = named(args)
    host = host_of(args)
    if host is not None:
        return host.app
    table_options = {
        "table_prefix": args.prefix,
        "schema": args.schema,
        "id_type": args.id_type,
    }
    given = {name: value for name, value in table_options.items() if value is not None}
    if spec is not None:
        if given:
            raise UsageError("--prefix, --schema and --id-type go with --url: an application's object has its own.")
        return load_app(spec)
    if url is None:
        raise UsageError("Which database? Pass --app MODULE:APP, --url or --url-file, or set QUEUERT_APP or QUEUERT_URL.")
    try:
        # Ids of the usual type can be made without the application, others only by it.
        return Queuert(url, generate_id=None if args.id_type is None else _never, **given)
    except ValueError as error:
        raise UsageError(str(error)) from error


def named(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """The application or the URL that is meant, one of them or neither: an option wins over the environment."""
    if getattr(args, "url_file", None) is not None:
        args.url = _url_in(args.url_file)
    host = host_of(args)
    if host is not None:
        if args.app is not None or args.url is not None:
            raise UsageError(f"`{host.program}` works on its own application: leave --app and --url out, or use `queuert`.")
        return host.program, None
    if args.app is not None or args.url is not None:
        return args.app, args.url
    if spec := os.environ.get("QUEUERT_APP"):
        return spec, None
    return None, os.environ.get("QUEUERT_URL") or None


def host_of(args: argparse.Namespace) -> Host | None:
    """The framework whose command line this is."""
    host: Host | None = getattr(args, "framework", None)
    return host


def _url_in(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            url = file.readline(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"--url-file {path!r} cannot be read: {reason}.") from None
    if not url:
        raise UsageError(f"--url-file {path!r} is empty: its first line must be the URL.")
    return url


def load_app(spec: str) -> Queuert:
    """Import `module:app`; the name after the colon may be dotted, and may be a function that makes the app."""
    module_name, _, path = spec.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        name = module_name.removesuffix(".py").strip(f".{os.sep}").replace(os.sep, ".")
        raise UsageError(f"{spec!r} is a file: write it as a module, such as {name}:{path or 'app'}.")
    if not module_name or module_name.startswith(".") or ":" in path:
        raise UsageError(f"{spec!r} is not an application: write MODULE:APP, such as shop:app.")
    found: Any = _import(module_name)
    for name in (path or "app").split("."):
        if not hasattr(found, name):
            raise UsageError(f"{spec!r}: {_called(found)} has no {name!r}.{_suggest(found)}")
        found = getattr(found, name)
    if not isinstance(found, Queuert) and callable(found) and not isinstance(found, type):
        found = found()
    if not isinstance(found, Queuert):
        raise UsageError(f"{spec!r} is {_a(found)}, not a Queuert.{_suggest(sys.modules[module_name])}")
    return found


def _import(name: str) -> Any:
    # As `python -m` does: a console script has its own directory there instead.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == name or name.startswith(f"{missing}."):
            raise UsageError(f"There is no module {missing!r} in {here} or on Python's path.") from error
        raise UsageError(f"Importing {name!r} failed: there is no module {missing!r}.") from error
    except Exception as error:
        raise UsageError(f"Importing {name!r} failed: {type(error).__name__}: {error}") from error


def _suggest(module: Any) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, Queuert)] if hasattr(module, "__dict__") else []
    return f" It has {', '.join(apps)}." if apps else ""


def _called(found: Any) -> str:
    return f"module {found.__name__}" if hasattr(found, "__path__") or hasattr(found, "__file__") else _a(found)


def _a(found: object) -> str:
    name = type(found).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _tell_unknown_types(app: Queuert, args: argparse.Namespace) -> None:
    """A filter by a type that nobody has ever heard of finds nothing, and is probably misspelled."""
    filters = [getattr(args, name, None) for name in ("type", "types", "chain_type")]
    for name in dict.fromkeys(name for names in filters if isinstance(names, list) for name in names):
        if app.types.find(name) is None and not app.list_jobs(types=[name], limit=1).items:
            hint = did_you_mean(name, (job_type.name for job_type in app.types))
            message = f"neither the application nor the database knows a job type {name!r}.{hint}"
            print(f"queuert: {clean(message)}", file=sys.stderr)


def _refuse_missing_file(app: Queuert) -> None:
    """Looking at a file that is not there would make an empty one."""
    database = context_of(app).database
    path = database.missing_file()
    if path is not None:
        raise CommandError(f"There is no database file {path}: {database.remedy}.")


def _never() -> str:
    raise UsageError("How ids are made is known to the application alone: pass --id, or --app.")

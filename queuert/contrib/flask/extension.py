"""The extension: one registry of job types, and one `Queuert` for each Flask application that it is initialised with.

Configuration, from `app.config`:

- `QUEUERT_DATABASE`: a URL; not needed with Flask-SQLAlchemy.
- `QUEUERT_<OPTION>`: the options of `Queuert`, such as `QUEUERT_TABLE_PREFIX`, `QUEUERT_HISTORY` or `QUEUERT_RETENTION`.
- `QUEUERT_CONCURRENCY`, `QUEUERT_POLL_INTERVAL`: of `flask queuert worker`.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from flask import Flask, current_app, has_app_context

from queuert import JobTypes, Queuert
from queuert.contrib.flask.commands import command
from queuert.errors import QueuertError

KEY = "queuert"
PREFIX = "QUEUERT_"
REMEDY = "run `flask queuert migrate`"
WORKER_KEYS = ("CONCURRENCY", "POLL_INTERVAL")


class FlaskQueuert(Queuert):
    """Job types for Flask applications: a `Queuert` whose state is that of the current application's own.

    Types and schedules are defined once, for all applications; `start_chain` and everything else works on the current one.

    `db` is a Flask-SQLAlchemy object: the chains are then in its database, a call takes part in the transaction of `db.session`
    if one is open, and inside `with job.complete():` of a handler `db.session` is the completing transaction.
    """

    def __init__(self, app: Flask | None = None, *, db: Any = None) -> None:
        # Not that of `Queuert`: there is no database yet, and later there may be several.
        self._registry = JobTypes()
        self._registry.belongs_to = self._current
        self._db = db
        self._apps: list[Flask] = []
        if app is not None:
            self.init_app(app)

    @property
    def _job_types(self) -> JobTypes:
        return self._registry

    def init_app(self, app: Flask, *, db: Any = None) -> Queuert:
        """Make the application's `Queuert`; connects to nothing."""
        if KEY in app.extensions:
            raise QueuertError(f"The Flask application {app.name!r} has this extension already: call init_app once.")
        queuert = Queuert(_target(app, self._db if db is None else db), **_options(app))
        queuert.include(self._registry)
        queuert.types.belongs_to = self._current
        queuert._database.around_attempt = _contexts(app)
        queuert._database.remedy = REMEDY
        app.extensions[KEY] = queuert
        app.cli.add_command(command)
        self._apps.append(app)
        return queuert

    @property
    def queuert(self) -> Queuert:
        """The current application's `Queuert`; outside of a context that of the only application there is."""
        if has_app_context():
            found: Queuert | None = current_app.extensions.get(KEY)
            if found is None:
                raise QueuertError(f"The application {current_app.name!r} has no queue: call init_app(app) where it is made.")
            return found
        if len(self._apps) != 1:
            state = "No application is" if not self._apps else "Several applications are"
            raise QueuertError(f"{state} initialised, so which one is meant? Work inside `with app.app_context():`.")
        only: Queuert = self._apps[0].extensions[KEY]
        return only

    def _current(self) -> Queuert:
        return self.queuert

    def __repr__(self) -> str:
        return f"FlaskQueuert(applications={[app.name for app in self._apps]})"

    if not TYPE_CHECKING:  # what is public comes from the class above, with its types

        def __getattr__(self, name: str) -> Any:
            """The state of the current application's `Queuert`, which the methods of that class use."""
            if not name.startswith("_") or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.queuert, name)


def _contexts(app: Flask) -> Any:
    def context() -> AbstractContextManager[Any]:
        pushed: AbstractContextManager[Any] = app.app_context()
        return pushed

    return context


def _target(app: Flask, db: Any) -> object:
    url = app.config.get(f"{PREFIX}DATABASE")
    if db is None:
        if not url:
            raise QueuertError(
                f"Where are the jobs to be? Set {PREFIX}DATABASE to a URL, or pass Flask-SQLAlchemy: init_app(app, db=db)."
            )
        return url
    if url:
        raise QueuertError(f"{PREFIX}DATABASE and db= name two databases: give one of them.")
    if "sqlalchemy" not in app.extensions:
        raise QueuertError("Flask-SQLAlchemy is not initialised yet: call db.init_app(app) before this init_app.")
    from queuert.contrib.sqlalchemy import SQLAlchemyProvider  # an extra of its own

    with app.app_context():
        return SQLAlchemyProvider(db.engine, session=db.session)


def _options(app: Flask) -> dict[str, Any]:
    known = {name.upper(): name for name in inspect.signature(Queuert).parameters if name != "target"}
    options: dict[str, Any] = {}
    for key, value in app.config.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name in known:
            options[known[name]] = value
        elif name != "DATABASE" and name not in WORKER_KEYS:
            names = ", ".join(sorted(["DATABASE", *WORKER_KEYS, *known]))
            raise QueuertError(f"{key} is no option of this extension: after {PREFIX} comes one of {names}.")
    return options

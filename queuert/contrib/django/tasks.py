"""A backend for Django's tasks: `django.tasks` on Django 6, the `django-tasks` package before.

    TASKS = {"default": {"BACKEND": "queuert.contrib.django.tasks.QueuertBackend", "QUEUES": ["default", "mail"]}}

`task.enqueue()` inside `atomic()` is part of the transaction. Each queue is a job type, `task:<alias>:<queue>`, which
`manage.py queuert_worker --types` can choose. A task that raises has failed: Django's tasks are not tried again, unless
`"OPTIONS": {"max_attempts": 5}` says so. A task whose worker died is tried again all the same.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from queuert import Job, JobType, Queuert, RunningJob, Status
from queuert.contrib.django.conf import alias as database_alias
from queuert.contrib.django.conf import project_queue
from queuert.contrib.django.provider import is_managed
from queuert.errors import InvalidJobIdError
from queuert.model import Attempt

CODE = "TASK:"
"""Begins the error code of a task that raised; the path of the exception's class follows."""
STATES = {
    Status.BLOCKED: TaskResultStatus.READY,
    Status.PENDING: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}

_registration = threading.Lock()


@dataclass
class TaskCall:
    """The input of a task's job."""

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    run_after: datetime | None = None


class QueuertBackend(BaseTaskBackend):
    """Tasks as jobs of the project's queue."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.max_attempts = int(self.options.get("max_attempts", 1))
        for queue_name in sorted(self.queues):
            self._job_type(queue_name)

    # What Django calls

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        self.validate_task(task)
        call = TaskCall(
            task.module_path,
            normalize_json(list(args)),
            normalize_json(dict(kwargs)),
            task.queue_name,
            _aware(task.run_after),
        )
        chain = self._queue.start_chain(
            self._job_type(task.queue_name), call, at=call.run_after, priority=task.priority, conn=_open_transaction()
        )
        result = self._result(task, call, id=chain.id, status=TaskResultStatus.READY, enqueued_at=_local(chain.created_at))
        transaction.on_commit(lambda: task_enqueued.send(type(self), task_result=result), using=database_alias())
        return result

    def get_result(self, result_id: str) -> Any:
        try:
            job = self._queue.get_job(result_id, conn=_open_transaction())
        except InvalidJobIdError:
            job = None
        if job is None or not job.type_name.startswith(f"task:{self.alias}:"):
            raise TaskResultDoesNotExist(result_id)
        return self._result_of(job, self._queue.attempts(job.id, conn=_open_transaction()))

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        if not apps.is_installed("queuert.contrib.django"):
            yield checks.Error(
                f"TASKS[{self.alias!r}] uses queuert, whose app is not installed.",
                hint="Add 'queuert.contrib.django' to INSTALLED_APPS.",
                id="queuert.E002",
            )

    # Jobs

    @property
    def _queue(self) -> Queuert:
        return project_queue()

    def _job_type(self, queue_name: str) -> JobType[Any, Any]:
        name = f"task:{self.alias}:{queue_name}"
        with _registration:
            known = self._queue.types.find(name)
            if known is not None:
                return known
            alias = self.alias  # backends belong to threads: the worker's own is asked for
            return self._queue.job(name, input=TaskCall)(lambda job: task_backends[alias].run(job))

    def run(self, job: RunningJob[TaskCall]) -> Any:
        """The handler: call the task, and complete the job or fail it."""
        started = _local(timezone.now())
        history = self._queue.attempts(job.id)
        result = self._result_of(job, history, call=job.input)
        _change(result, status=TaskResultStatus.RUNNING, started_at=_started(history) or started, last_attempted_at=started)
        task_started.send(type(self), task_result=result)
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        try:
            value = normalize_json(result.task.call(*context, *job.input.args, **job.input.kwargs))
        except Exception as error:
            self._failed(job, result, error)
        _change(result, status=TaskResultStatus.SUCCESSFUL, finished_at=_local(timezone.now()), _return_value=value)
        with job.complete():
            transaction.on_commit(lambda: task_finished.send(type(self), task_result=result), using=database_alias())
        return value

    def _failed(self, job: RunningJob[TaskCall], result: Any, error: Exception) -> NoReturn:
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if job.attempts_used < self.max_attempts:
            raise TaskRaised(CODE + path, text) from error
        _change(result, status=TaskResultStatus.FAILED, finished_at=_local(timezone.now()))
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
        task_finished.send(type(self), task_result=result)
        job.fail(CODE + path, text)

    # Results

    def _result_of(self, job: Job, history: list[Attempt], call: Any = None) -> Any:
        call = job.input if call is None else call
        if not isinstance(call, TaskCall):  # its queue is not one of this process
            call = TaskCall(call["path"], call["args"], call["kwargs"], call["queue"])
        task = known_task(call.path).using(
            priority=job.priority, queue_name=call.queue, run_after=_local(call.run_after), backend=self.alias
        )
        running = job.status is Status.RUNNING
        result = self._result(
            task,
            call,
            id=job.id,
            status=STATES[job.status],
            enqueued_at=_local(job.created_at),
            started_at=_started(history) or (_local(job.last_attempt_at) if running else None),
            last_attempted_at=_local(job.last_attempt_at),
            finished_at=_local(job.completed_at),
            errors=_errors(job, history),
            worker_ids=[*(a.worker_id for a in history if a.worker_id), *([job.leased_by] if running else [])],
        )
        if job.status is Status.COMPLETED:
            _change(result, _return_value=job.output)
        return result

    def _result(self, task: Any, call: TaskCall, **facts: Any) -> Any:
        unknown: dict[str, Any] = {"started_at": None, "last_attempted_at": None, "finished_at": None}
        return TaskResult(
            task=task,
            args=call.args,
            kwargs=call.kwargs,
            backend=self.alias,
            **{**unknown, "errors": [], "worker_ids": [], **facts},
        )


class TaskRaised(Exception):
    """The task raised, and may be tried again."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.error_code = code


class UnknownTaskError(ImportError):
    """A row names a task that this process does not have."""

    error_code = "INVALID_INPUT:UNKNOWN_TASK"


def known_task(path: str) -> Any:
    """The task that this process has under a path. Nothing is imported for it: who can write a row could name any module."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not isinstance(found, Task) or found.module_path != path:
        raise UnknownTaskError(
            f"This process has no task {path!r}: define it in an app's tasks.py, or import its module there."
        )
    return found


def _open_transaction() -> Any:
    """`task.enqueue()` takes no connection: it is part of whatever is open, also inside `with job.complete():`."""
    wrapper = connections[database_alias()]
    return wrapper if is_managed(wrapper) else None


def register_backends() -> None:
    """Make the job types of every backend in the settings known, and the tasks of the apps, so that a worker runs them."""
    autodiscover_modules("tasks")
    for alias, params in getattr(settings, "TASKS", {}).items():
        if params.get("BACKEND") == f"{__name__}.QueuertBackend":
            task_backends[alias]


def _errors(job: Job, history: list[Attempt]) -> list[Any]:
    failed = [attempt for attempt in history if attempt.outcome in ("failed", "lost")]
    texts = [attempt.error_detail or "" for attempt in failed]
    if failed and job.last_attempt_error:
        texts[-1] = job.last_attempt_error  # the newest is kept in full
    return [
        TaskError(exception_class_path=_class_path(attempt.error_code), traceback=text)
        for attempt, text in zip(failed, texts, strict=True)
    ]


def _class_path(code: str | None) -> str:
    """The exception that the task raised; a worker that died, or a job that could not start, has none of its own."""
    if code is not None and code.startswith(CODE):
        return code.removeprefix(CODE)
    return "builtins.RuntimeError"


def _started(history: list[Attempt]) -> datetime | None:
    return next((_local(attempt.started_at or attempt.claimed_at) for attempt in history), None)


def _aware(moment: datetime | None) -> datetime | None:
    if moment is None or timezone.is_aware(moment):
        return moment
    aware: datetime = timezone.make_aware(moment)
    return aware


def _local(moment: datetime | None) -> datetime | None:
    """As the project keeps its times."""
    if moment is None or settings.USE_TZ or timezone.is_naive(moment):
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive


def _change(result: Any, **facts: Any) -> None:
    for name, value in facts.items():
        object.__setattr__(result, name, value)  # results are frozen for everybody but their backend

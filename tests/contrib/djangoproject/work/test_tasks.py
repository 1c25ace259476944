"""What a backend of Django's tasks is expected to do."""

from __future__ import annotations

import json
import sys
import unittest
from datetime import timedelta
from typing import Any
from unittest import mock

import django
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

try:
    from django.tasks import TaskResultStatus, default_task_backend, exceptions, task_backends
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    try:
        from django_tasks import TaskResultStatus, default_task_backend, exceptions, task_backends
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:
        raise unittest.SkipTest("there is no framework for tasks") from None

from asgiref.sync import async_to_sync

from queuert.contrib.django import queue
from queuert.contrib.django.testing import run_due_jobs
from work import jobs, tasks

InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError


class Tasks(TestCase):
    def test_a_row_imports_no_module(self) -> None:
        result = tasks.add.enqueue(2)
        for path in ("this.imported", "antigravity.fly", "os.system", "work.tasks.seen", "work.tasks.nothing"):
            with self.subTest(path), connection.cursor() as cursor:
                cursor.execute("SELECT input FROM queuert_job WHERE id = %s", [result.id])
                (call,) = cursor.fetchone()
                call = json.loads(call) if isinstance(call, str) else call
                cursor.execute(
                    "UPDATE queuert_job SET input = %s WHERE id = %s", [json.dumps({**call, "path": path}), result.id]
                )
                with self.assertRaisesRegex(ImportError, "has no task"):
                    default_task_backend.get_result(result.id)
        self.assertFalse({"this", "antigravity"} & set(sys.modules))

    def test_a_task_runs_and_its_value_is_kept(self) -> None:
        result = tasks.add.enqueue(2, second=3)
        self.assertEqual((result.status, result.args, result.kwargs), (TaskResultStatus.READY, [2], {"second": 3}))
        self.assertFalse(result.is_finished)
        self.assertEqual(result.attempts, 0)
        self.assertIsNotNone(result.enqueued_at)
        with self.assertRaises(ValueError):
            result.return_value  # noqa: B018 - reading it raises
        self.assertEqual(run_due_jobs(), 1)
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), (TaskResultStatus.SUCCESSFUL, 5, 1))
        self.assertEqual(result.errors, [])
        for moment in (result.started_at, result.finished_at, result.last_attempted_at):
            self.assertIsNotNone(moment)

    def test_results_are_found_again(self) -> None:
        result = tasks.add.enqueue(1)
        again = tasks.add.get_result(result.id)
        self.assertEqual((again.id, again.task, again.args), (result.id, result.task, result.args))
        self.assertEqual(default_task_backend.get_result(result.id).id, result.id)
        self.assertEqual(async_to_sync(tasks.add.aget_result)(result.id).id, result.id)
        with self.assertRaises(exceptions.TaskResultMismatch):
            tasks.mail.get_result(result.id)

    def test_what_is_no_result_is_not_found(self) -> None:
        other = queue.start_chain("fail")
        for result_id in ("nothing", "00000000-0000-7000-8000-000000000000", other.id):
            with self.assertRaises(exceptions.TaskResultDoesNotExist):
                default_task_backend.get_result(result_id)

    def test_a_task_that_raises_has_failed_and_is_not_tried_again(self) -> None:
        result = tasks.explode.enqueue()
        self.assertEqual(run_due_jobs(), 1)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertTrue(result.is_finished)
        (error,) = result.errors
        self.assertIs(error.exception_class, ValueError)
        self.assertIn("as asked", error.traceback)
        self.assertIn("Traceback", error.traceback)
        with self.assertRaises(ValueError):
            result.return_value  # noqa: B018 - reading it raises

    def test_a_value_that_cannot_be_stored_is_a_failure(self) -> None:
        result = tasks.unstorable.enqueue()
        run_due_jobs()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_priorities_decide_who_is_first(self) -> None:
        tasks.seen.clear()
        for priority, address in ((-100, "last"), (100, "first"), (0, "middle")):
            tasks.mail.using(priority=priority).enqueue(address)
        run_due_jobs()
        self.assertEqual(tasks.seen, ["first", "middle", "last"])

    def test_run_after_is_waited_for(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1)
        self.assertEqual(run_due_jobs(), 0)
        self.assertEqual(tasks.add.get_result(result.id).task.run_after, later)
        queue.trigger_job(result.id)
        self.assertEqual(run_due_jobs(), 1)

    def test_a_task_gets_its_context(self) -> None:
        result = tasks.look.enqueue()
        run_due_jobs()
        result.refresh()
        self.assertEqual(result.return_value, [1, result.id, TaskResultStatus.RUNNING])

    def test_coroutines_run_too(self) -> None:
        result = async_to_sync(tasks.asynchronous.aenqueue)()
        run_due_jobs()
        async_to_sync(result.arefresh)()
        self.assertEqual(result.return_value, "awaited")

    def test_queues_are_job_types_of_their_own(self) -> None:
        tasks.mail.enqueue("x@example.org")
        tasks.add.enqueue(1)
        self.assertEqual(run_due_jobs(types=["task:default:mail"]), 1)
        self.assertEqual(run_due_jobs(), 1)

    def test_what_cannot_run_is_refused(self) -> None:
        with self.assertRaises(InvalidTask):
            tasks.add.using(queue_name="nowhere")
        with self.assertRaises(InvalidTask):
            tasks.add.using(priority=101)
        with self.assertRaises(InvalidTask):
            tasks.add.using(run_after=timezone.now().replace(tzinfo=None))
        with self.assertRaises((TypeError, ValueError)):
            tasks.add.enqueue(object())
        self.assertEqual(queue.list_chains().items, [])

    def test_a_cancelled_task_has_failed(self) -> None:
        result = tasks.add.enqueue(1)
        queue.cancel_chain(result.id)
        result.refresh()
        self.assertEqual((result.status, result.errors), (TaskResultStatus.FAILED, []))

    def test_signals_are_sent(self) -> None:
        heard: list[Any] = []

        def listen(signal: Any, name: str) -> Any:
            def receive(task_result: Any, **_: Any) -> None:
                heard.append((name, task_result.id, str(task_result.status)))

            signal.connect(receive)
            self.addCleanup(signal.disconnect, receive)

        for signal, name in ((task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished")):
            listen(signal, name)
        with self.captureOnCommitCallbacks(execute=True):
            good = tasks.add.enqueue(1)
        run_due_jobs()
        bad = tasks.explode.enqueue()
        run_due_jobs()
        self.assertEqual(
            [entry for entry in heard if entry[1] == good.id],
            [("enqueued", good.id, "READY"), ("started", good.id, "RUNNING"), ("finished", good.id, "SUCCESSFUL")],
        )
        self.assertEqual(
            [entry for entry in heard if entry[1] == bad.id], [("started", bad.id, "RUNNING"), ("finished", bad.id, "FAILED")]
        )

    def test_more_attempts_are_made_where_they_are_asked_for(self) -> None:
        result = tasks.explode.enqueue()
        with mock.patch.object(default_task_backend, "max_attempts", 2):
            self.assertEqual(run_due_jobs(), 1)
            result.refresh()
            self.assertEqual((result.status, len(result.errors)), (TaskResultStatus.READY, 1))
            queue.trigger_job(result.id)
            self.assertEqual(run_due_jobs(), 1)
        result.refresh()
        self.assertEqual((result.status, len(result.errors), result.attempts), (TaskResultStatus.FAILED, 2, 2))

    def test_djangos_own_framework_is_used_where_there_is_one(self) -> None:
        package = "django.tasks." if django.VERSION >= (6, 0) else "django_tasks."
        self.assertTrue(TaskResultStatus.__module__.startswith(package))
        self.assertTrue(any(base.__module__.startswith(package) for base in type(task_backends["default"]).__mro__))

    def test_the_backend_checks_its_app(self) -> None:
        self.assertEqual(list(default_task_backend.check()), [])
        with mock.patch("queuert.contrib.django.tasks.apps.is_installed", return_value=False):
            (problem,) = default_task_backend.check()
        self.assertIn("INSTALLED_APPS", problem.hint)

    @override_settings(USE_TZ=False)
    def test_times_without_a_zone(self) -> None:
        soon = timezone.now() - timedelta(minutes=1)
        result = tasks.add.using(run_after=soon).enqueue(1)
        run_due_jobs()
        result.refresh()
        self.assertIsNone(result.finished_at.tzinfo)
        self.assertEqual(result.return_value, 2)


class CommittedTasks(TransactionTestCase):
    def test_a_task_is_part_of_the_transaction(self) -> None:
        with transaction.atomic():
            tasks.add.enqueue(1)
            transaction.set_rollback(True)
        self.assertEqual(queue.list_chains().items, [])
        self.assertEqual(default_task_backend.get_result(self.enqueue_in_a_handler(fail=False)).status, TaskResultStatus.READY)
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            default_task_backend.get_result(self.enqueue_in_a_handler(fail=True))
        with transaction.atomic():
            result = tasks.order.enqueue("made by a task")
        with queue.worker(poll_interval=0.2):
            queue.wait_for(result.id, timeout=20)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(len(result.worker_ids), 1)

    def enqueue_in_a_handler(self, *, fail: bool) -> str:
        """The id of a task that a job enqueued inside its completing transaction."""
        jobs.enqueued.clear()
        queue.start_chain(jobs.enqueue, fail)
        self.assertEqual(run_due_jobs(types=["enqueue"]), 1)
        return jobs.enqueued[0]

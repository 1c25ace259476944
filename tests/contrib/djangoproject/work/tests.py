"""What a project's own tests can do; run by `manage.py test` on each database."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from queuert import Status
from queuert.contrib.django import queue
from queuert.contrib.django.models import Job
from queuert.contrib.django.testing import run_due_jobs
from work import jobs
from work.jobs import charge, fail
from work.models import Order


class InATransaction(TestCase):
    """Everything here is rolled back after each test."""

    def test_one_jobs_of_earlier_tests_are_gone(self) -> None:
        self.assertEqual(Job.objects.count(), 0)
        queue.start_chain(charge, Order.objects.create().pk)

    def test_two_jobs_of_earlier_tests_are_gone(self) -> None:
        self.test_one_jobs_of_earlier_tests_are_gone()

    def test_due_jobs_run_to_the_end_of_their_chain(self) -> None:
        order = Order.objects.create()
        chain = queue.start_chain(charge, order.pk)
        self.assertEqual(run_due_jobs(), 2)
        order.refresh_from_db()
        self.assertEqual(order.state, "shipped")
        self.assertEqual(queue.wait_for(chain, timeout=1).output, "shipped")

    def test_what_handlers_do_on_commit_is_done_if_asked(self) -> None:
        for wanted in (False, True):
            jobs.after_commit.clear()
            queue.start_chain(charge, Order.objects.create().pk)
            run_due_jobs(on_commit=wanted)
            self.assertEqual(len(jobs.after_commit), int(wanted))

    def test_effects_are_captured(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
            queue.start_chain(fail)
        self.assertEqual(len(callbacks), 1)
        with self.captureOnCommitCallbacks(execute=True):
            queue.start_chain(fail)

    def test_a_view_that_fails_leaves_nothing(self) -> None:
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            placed = int(self.client.post("/place/").content)
            with self.assertRaises(RuntimeError):
                self.client.post("/place-and-fail/")
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
        self.assertEqual([order.pk for order in Order.objects.all()], [placed])
        self.assertEqual(len(queue.list_chains().items), 1)

    def test_the_model_reads_what_the_library_wrote(self) -> None:
        chain = queue.start_chain(charge, 7, priority=3)
        job = Job.objects.get(pk=chain.id)
        self.assertEqual((job.type_name, job.status, job.priority, job.input), ("charge", "pending", 3, "7"))
        self.assertEqual(job.created_at, chain.created_at)
        self.assertEqual(str(job), f"charge {chain.id}")


class Committed(TransactionTestCase):
    """Everything here is committed; the tables are emptied afterwards."""

    def test_one_a_worker_runs_jobs(self) -> None:
        self.assertEqual(queue.list_chains().items, [])
        order = Order.objects.create()
        with transaction.atomic():
            chain = queue.start_chain(charge, order.pk)
        with queue.worker(poll_interval=0.2):
            self.assertEqual(queue.wait_for(chain, timeout=20).output, "shipped")
        order.refresh_from_db()
        self.assertEqual(order.state, "shipped")

    def test_two_a_worker_runs_jobs(self) -> None:
        self.test_one_a_worker_runs_jobs()

    def test_due_jobs_run_here_too(self) -> None:
        jobs.after_commit.clear()
        queue.start_chain(charge, Order.objects.create().pk)
        self.assertEqual(run_due_jobs(), 2)
        self.assertEqual(len(jobs.after_commit), 1)


class Commands(TestCase):
    def call(self, *args: Any, **options: Any) -> str:
        out = StringIO()
        call_command(*args, stdout=out, **options)
        return out.getvalue()

    def test_stats(self) -> None:
        queue.start_chain(fail)
        run_due_jobs()
        told = json.loads(self.call("queuert_stats", "--json"))
        self.assertEqual(told["by_status"]["failed"], 1)
        self.assertEqual(told["by_type"]["fail"]["failed"], 1)

    def test_every_command_of_queuert_can_be_called(self) -> None:
        chain = queue.start_chain(fail)
        told = json.loads(self.call("queuert", "jobs", "--json"))
        self.assertEqual([job["id"] for job in told["items"]], [chain.id])
        with self.assertRaisesMessage(CommandError, "ended with 2"):
            call_command("queuert", "nonsense", stderr=StringIO())
        self.assertIsNotNone(queue.get_chain(chain.id), "the queue is still open")

    def test_cleanup(self) -> None:
        self.assertIn("completed: 0", self.call("queuert_cleanup"))

    def test_a_worker_for_unknown_types_is_refused(self) -> None:
        with self.assertRaisesMessage(CommandError, "nothing_like_it"):
            call_command("queuert_worker", "--types", "nothing_like_it")

    def test_no_migration_is_missing(self) -> None:
        self.call("makemigrations", "--check", "--dry-run")

    def test_the_checks_are_content(self) -> None:
        self.call("check")


class Admin(TestCase):
    def setUp(self) -> None:
        self.chain = queue.start_chain(fail)
        run_due_jobs()
        self.client.force_login(User.objects.create_superuser("operator"))
        self.list = reverse("admin:queuert_job_changelist")

    def state(self) -> Status:
        chain = queue.get_chain(self.chain.id)
        assert chain is not None
        return chain.status

    def test_jobs_are_listed_and_found(self) -> None:
        for query in ({}, {"q": self.chain.id}, {"q": "fail"}, {"status__exact": "failed"}, {"q": "INTERNAL:RuntimeError"}):
            self.assertContains(self.client.get(self.list, query), self.chain.id)
        self.assertNotContains(self.client.get(self.list, {"q": "nothing"}), self.chain.id)

    def test_a_job_is_shown_with_its_timeline_and_cannot_be_edited(self) -> None:
        url = reverse("admin:queuert_job_change", args=[self.chain.id])
        page = self.client.get(url)
        self.assertContains(page, "as asked")
        self.assertContains(page, "ENQUEUED")
        self.assertNotContains(page, 'name="_save"')
        self.assertEqual(self.client.post(url, {"status": "completed"}).status_code, 403)
        self.assertEqual(self.client.get(reverse("admin:queuert_job_add")).status_code, 403)
        for malformed in ("nothing", "12", "a%00b"):
            self.assertEqual(self.client.get(reverse("admin:queuert_job_change", args=[malformed])).status_code, 302)
            self.assertEqual(self.client.get(self.list, {"q": malformed}).status_code, 200)
        self.assertEqual(self.client.get(reverse("admin:queuert_job_delete", args=[self.chain.id])).status_code, 403)

    def act(self, action: str) -> Any:
        return self.client.post(self.list, {"action": action, "_selected_action": [self.chain.id]}, follow=True)

    def test_chains_are_retried_and_cancelled(self) -> None:
        self.assertEqual(self.state(), "failed")
        self.assertContains(self.act("retry"), "1 chain retried")
        self.assertEqual(self.state(), "pending")
        self.assertContains(self.act("retry"), "only a failed or cancelled chain")
        self.assertContains(self.act("cancel"), "1 chain cancelled")
        self.assertEqual(self.state(), "cancelled")

    def test_who_acted_is_in_the_timeline(self) -> None:
        self.act("retry")
        self.assertIn("admin:operator", [entry.actor for entry in queue.timeline(self.chain.id)])
        page = self.client.get(reverse("admin:queuert_job_change", args=[self.chain.id]))
        self.assertContains(page, "admin:operator")

    def test_many_are_counted_in_the_plural(self) -> None:
        other = queue.start_chain(fail)
        run_due_jobs()
        chosen = [self.chain.id, other.id, "nothing"]
        page = self.client.post(self.list, {"action": "retry", "_selected_action": chosen}, follow=True)
        self.assertContains(page, "2 chains retried")

    def test_a_scheduled_job_runs_now(self) -> None:
        self.chain = queue.start_chain(fail, after=3600)
        self.assertEqual(run_due_jobs(), 0)
        self.assertContains(self.act("run_now"), "1 job made due")
        self.assertEqual(run_due_jobs(), 1)

    def test_jobs_are_filtered_by_type_and_error_code(self) -> None:
        other = queue.start_chain(charge, 7)
        for query in ({"type_name": "fail"}, {"error_code": "INTERNAL:RuntimeError"}):
            page = self.client.get(self.list, query)
            self.assertContains(page, self.chain.id)
            self.assertNotContains(page, other.id)
            self.assertContains(page, "type_name=charge")
            self.assertContains(page, "error_code=INTERNAL%3ARuntimeError")
        self.assertNotContains(self.client.get(self.list, {"type_name": "nothing"}), self.chain.id)

    def test_a_malformed_id_in_a_filter_is_no_error(self) -> None:
        for query in ({"id__exact": "nothing"}, {"chain_id__exact": "12"}):
            self.assertEqual(self.client.get(self.list, query).status_code, 302)
        page = self.client.post(self.list, {"action": "retry", "_selected_action": ["nothing"]}, follow=True)
        self.assertEqual(page.status_code, 200)

    def test_jobs_lead_to_one_another(self) -> None:
        chain = queue.start_chain(charge, Order.objects.create().pk)
        waiting = queue.start_chain(fail, blockers=[chain])

        def href(identity: str) -> str:
            return f'href="{reverse("admin:queuert_job_change", args=[quote(identity)])}"'

        def page(identity: str) -> Any:
            return self.client.get(reverse("admin:queuert_job_change", args=[identity]))

        self.assertContains(page(waiting.id), href(chain.id))
        self.assertContains(page(chain.id), href(waiting.id))
        run_due_jobs()
        first, second = queue.list_jobs(chain_ids=[chain.id], order="asc").items
        self.assertContains(page(first.id), href(second.id))
        self.assertContains(page(second.id), href(first.id))
        self.assertContains(page(waiting.id), "INTERNAL:RuntimeError")
        self.assertContains(page(waiting.id), "as asked")

    def test_acting_needs_a_permission(self) -> None:
        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_job"))
        self.client.force_login(viewer)
        self.assertContains(self.client.get(self.list), self.chain.id)
        self.act("retry")
        self.assertEqual(self.state(), "failed")

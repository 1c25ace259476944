"""Helpers for the tests of a Django project.

    class OrderTests(TestCase):
        def test_a_paid_order_is_shipped(self):
            self.client.post("/pay/", {"order": 1})
            run_due_jobs()
            self.assertEqual(Order.objects.get(pk=1).state, "shipped")

It runs jobs in the thread of the test, so it works inside a `TestCase`, whose transaction no other thread can see. For a real
worker in a test use a `TransactionTestCase`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.test import TestCase

from queuert import Queuert
from queuert.contrib.django.conf import project_queue
from queuert.options import Duration


def run_due_jobs(
    *, timeout: Duration = 10, types: Iterable[Any] | None = None, queue: Queuert | None = None, on_commit: bool = True
) -> int:
    """Run everything due until nothing is; how many attempts were run.

    Inside a `TestCase` nothing is ever committed: with `on_commit` what handlers passed to `transaction.on_commit` runs all the
    same, at the end.
    """
    app = project_queue() if queue is None else queue
    alias = str(getattr(app._database, "alias", "default"))
    if not on_commit or not connections[alias].in_atomic_block:
        return app.drain(timeout=timeout, types=types)
    with TestCase.captureOnCommitCallbacks(using=alias, execute=True):
        return app.drain(timeout=timeout, types=types)

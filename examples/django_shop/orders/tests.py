"""The shop's own tests: `python manage.py test`."""

from __future__ import annotations

from django.test import TestCase

from orders.models import Order
from queuert.contrib.django import queue
from queuert.contrib.django.testing import run_due_jobs


class ShopTests(TestCase):
    def test_an_order_is_charged_and_shipped(self) -> None:
        self.client.post("/orders", {"product": "teapot"})
        self.assertContains(self.client.get("/"), "new")
        self.assertEqual(run_due_jobs(), 2)
        order = Order.objects.get()
        self.assertEqual((order.state, order.receipt), ("shipped", f"receipt-{order.pk}"))
        self.assertContains(self.client.get("/"), "shipped")

    def test_an_order_that_fails_leaves_no_chain(self) -> None:
        with self.assertRaises(ValueError):
            self.client.post("/orders", {"product": "unicorn"})
        self.assertFalse(Order.objects.exists())
        self.assertEqual(queue.list_chains().items, [])

"""What happens after an order: it is charged, then shipped. Found by the app, so nobody has to import this."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.conf import settings

from orders.models import Order
from queuert import Backoff, Continuation, Lease, RunningJob
from queuert.contrib.django import queue


@dataclass
class OrderToServe:
    order_id: int


@queue.job(
    "charge-card", continues_with=["ship-order"], lease=Lease(settings.LEASE_SECONDS), backoff=Backoff(initial=1, maximum=60)
)
def charge_card(job: RunningJob[OrderToServe]) -> Continuation:
    order = Order.objects.get(pk=job.input.order_id)
    receipt = charge(order)  # no transaction is open here; the lease renews itself
    with job.complete():  # one transaction: the order, this job's completion, and the next job
        Order.objects.filter(pk=order.pk).update(state="paid", receipt=receipt)
        return job.continue_with(ship_order, job.input)


@queue.job("ship-order", entry=False)
def ship_order(job: RunningJob[OrderToServe]) -> str:
    with job.complete():
        Order.objects.filter(pk=job.input.order_id).update(state="shipped")
    return f"parcel-{job.input.order_id}"


def charge(order: Order) -> str:
    """The payment provider. A real one is given an idempotency key, such as the order's number."""
    time.sleep(settings.GATEWAY_SECONDS)
    return f"receipt-{order.pk}"

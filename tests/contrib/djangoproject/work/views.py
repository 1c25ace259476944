"""With ATOMIC_REQUESTS each of these is one transaction."""

from django.http import HttpRequest, HttpResponse

from queuert.contrib.django import queue
from work.jobs import charge
from work.models import Order


def place(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create()
    queue.start_chain(charge, order.pk)
    return HttpResponse(str(order.pk))


def place_and_fail(request: HttpRequest) -> HttpResponse:
    place(request)
    raise RuntimeError("after all that")

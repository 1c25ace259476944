"""The page. Every request is one transaction (ATOMIC_REQUESTS), and the chain is part of it."""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.jobs import OrderToServe, charge_card
from orders.models import Order
from queuert.contrib.django import queue


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    rows = format_html_join(
        "",
        '<tr><td>{}</td><td>{}</td><td class="state">{}</td><td>{}</td></tr>',
        ((order.pk, order.product, order.state, order.receipt) for order in Order.objects.order_by("-pk")[:50]),
    )
    return HttpResponse(
        format_html(
            "<!doctype html><title>Shop</title><h1>Shop</h1>"
            '<form method="post" action="/orders"><input name="product" required> <button>Order</button></form>'
            "<table><tr><th>Order</th><th>Product</th><th>State</th><th>Receipt</th></tr>{}</table>",
            rows,
        )
    )


@csrf_exempt  # an example without sessions; a real shop has them, and the token
@require_POST
def place(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create(product=request.POST["product"][:100])
    queue.start_chain(charge_card, OrderToServe(order.pk))
    if order.product == "unicorn":
        raise ValueError("We are out of unicorns.")  # neither the order nor its chain exists
    return HttpResponseRedirect("/")

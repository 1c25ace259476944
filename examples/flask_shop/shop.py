"""The whole shop: models, jobs, pages, and the application that has them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask, current_app, redirect, render_template_string, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queuert import Backoff, Continuation, Lease, RunningJob
from queuert.contrib.flask import FlaskQueuert


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
queue = FlaskQueuert(db=db)


class Order(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")
    receipt: Mapped[str] = mapped_column(default="")


# Jobs

LEASE = Lease(float(os.environ.get("SHOP_LEASE_SECONDS", "30")))  # after which a dead worker's order is charged by another


@dataclass
class OrderToServe:
    order_id: int


@queue.job("charge-card", continues_with=["ship-order"], lease=LEASE, backoff=Backoff(initial=1, maximum=60))
def charge_card(job: RunningJob[OrderToServe]) -> Continuation:
    order = db.session.get_one(Order, job.input.order_id)
    receipt = charge(order)  # the lease renews itself
    with job.complete():  # one transaction: the order, this job's completion, and the next job
        order.state, order.receipt = "paid", receipt
        return job.continue_with(ship_order, job.input)


@queue.job("ship-order", entry=False)
def ship_order(job: RunningJob[OrderToServe]) -> str:
    with job.complete():
        db.session.get_one(Order, job.input.order_id).state = "shipped"
    return f"parcel-{job.input.order_id}"


def charge(order: Order) -> str:
    """The payment provider. A real one is given an idempotency key, such as the order's number."""
    number = order.id
    db.session.rollback()  # no transaction stays open while we wait for somebody else
    time.sleep(current_app.config["GATEWAY_SECONDS"])
    return f"receipt-{number}"


# Pages

PAGE = """<!doctype html><title>Shop</title><h1>Shop</h1>
<form method="post" action="/orders"><input name="product" required> <button>Order</button></form>
<table><tr><th>Order</th><th>Product</th><th>State</th><th>Receipt</th></tr>
{% for order in orders %}<tr><td>{{ order.id }}</td><td>{{ order.product }}</td><td class="state">{{ order.state }}</td>
<td>{{ order.receipt }}</td></tr>{% endfor %}</table>"""


def page() -> ResponseReturnValue:
    orders = db.session.scalars(db.select(Order).order_by(Order.id.desc()).limit(50)).all()
    return render_template_string(PAGE, orders=orders)


def place() -> ResponseReturnValue:
    order = Order(product=request.form["product"][:100])
    db.session.add(order)
    db.session.flush()
    queue.start_chain(charge_card, OrderToServe(order.id), conn=db.session)
    if order.product == "unicorn":
        raise ValueError("We are out of unicorns.")  # neither the order nor its chain exists
    db.session.commit()
    return redirect("/")


def create_app(**config: Any) -> Flask:
    app = Flask(__name__)
    here = Path(__file__).parent
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=os.environ.get("SHOP_DATABASE", f"sqlite:///{here / 'shop.db'}"),
        QUEUERT_CONCURRENCY=4,
        GATEWAY_SECONDS=float(os.environ.get("SHOP_GATEWAY_SECONDS", "0")),  # how long the payment provider takes
    )
    app.config.update(config)
    db.init_app(app)
    queue.init_app(app)
    app.add_url_rule("/", view_func=page)
    app.add_url_rule("/orders", view_func=place, methods=["POST"])

    @app.cli.command("create-tables")
    def create_tables() -> None:
        """Make the shop's tables and the queue's."""
        db.create_all()
        queue.migrate()

    return app

"""The whole shop: models, jobs, pages."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from queuert import Backoff, Continuation, Lease, Queuert, RunningJob
from queuert.contrib.sqlalchemy import SQLAlchemyProvider

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

engine = create_engine(os.environ.get("SHOP_DATABASE", f"sqlite:///{Path(__file__).parent / 'shop.db'}"))
sessions = sessionmaker(engine)
app = Queuert(SQLAlchemyProvider(engine, session_factory=sessions))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")
    receipt: Mapped[str] = mapped_column(default="")


def create_tables() -> None:
    Base.metadata.create_all(engine)
    app.migrate()


# Jobs

LEASE = Lease(float(os.environ.get("SHOP_LEASE_SECONDS", "30")))  # after which a dead worker's order is charged by another


@dataclass
class OrderToServe:
    order_id: int


@app.job("charge-card", continues_with=["ship-order"], lease=LEASE, backoff=Backoff(initial=1, maximum=60))
def charge_card(job: RunningJob[OrderToServe]) -> Continuation:
    receipt = charge(job.input.order_id)  # no transaction is open here; the lease renews itself
    with job.complete() as session:  # one transaction: the order, this job's completion, and the next job
        order = session.get_one(Order, job.input.order_id)
        order.state, order.receipt = "paid", receipt
        return job.continue_with(ship_order, job.input)


@app.job("ship-order", entry=False)
def ship_order(job: RunningJob[OrderToServe]) -> str:
    with job.complete() as session:
        session.get_one(Order, job.input.order_id).state = "shipped"
    return f"parcel-{job.input.order_id}"


def charge(number: int) -> str:
    """The payment provider. A real one is given an idempotency key, such as the order's number."""
    time.sleep(float(os.environ.get("SHOP_GATEWAY_SECONDS", "0")))
    return f"receipt-{number}"


# Pages

FORM = '<form method="post" action="/orders"><input name="product" required> <button>Order</button></form>'
HEAD = "<tr><th>Order</th><th>Product</th><th>State</th><th>Receipt</th></tr>"


def place(session: Session, product: str) -> Order:
    """The order and its chain, in one transaction."""
    order = Order(product=product[:100])
    session.add(order)
    session.flush()
    app.start_chain(charge_card, OrderToServe(order.id), conn=session)
    if product == "unicorn":
        raise ValueError("We are out of unicorns.")  # neither the order nor its chain exists
    return order


def web(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] == "POST":
        form = parse_qs(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode())
        with sessions.begin() as session:
            place(session, form["product"][0])
        start_response("303 See Other", [("Location", "/")])
        return []
    with sessions() as session:
        rows = "".join(
            f'<tr><td>{order.id}</td><td>{html.escape(order.product)}</td><td class="state">{order.state}</td>'
            f"<td>{order.receipt}</td></tr>"
            for order in session.scalars(select(Order).order_by(Order.id.desc()).limit(50))
        )
    start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
    return [f"<!doctype html><title>Shop</title><h1>Shop</h1>{FORM}<table>{HEAD}{rows}</table>".encode()]


if __name__ == "__main__":
    create_tables()

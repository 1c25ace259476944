"""The shop of `queuert demo`: orders that are charged, packed, invoiced and shipped.

It is written as an application would be, so it may be read as an example. The demo makes the app with `make_app`; the worker
process that it starts, to kill it, makes its own from the environment: `queuert worker queuert.cli.shop:create_app`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from queuert import Backoff, Continuation, JobTypes, Lease, Queuert, RunningJob

ENVIRONMENT: Final = ("QUEUERT_DEMO_URL", "QUEUERT_DEMO_PREFIX", "QUEUERT_DEMO_SCHEMA")

# Short, so that nobody waits: by default a lease lasts a minute, and the first retry comes after ten seconds.
shop = JobTypes(lease=Lease(duration=1), backoff=Backoff(initial=0.3, multiplier=2, jitter=0))


@dataclass
class Order:
    order_id: int


class GatewayDownError(Exception):
    """The payment service did not answer."""

    error_code = "DEPENDENCY:GATEWAY_DOWN"


class Orders:
    """The shop's own table, in the same database as the jobs."""

    def __init__(self, app: Queuert, prefix: str, schema: str) -> None:
        self._postgres = app.dialect == "postgres"
        self._table = f'"{schema}"."{prefix}orders"' if self._postgres else f'"{prefix}orders"'

    def create(self, conn: Any) -> None:
        conn.execute(f"CREATE TABLE {self._table} (id integer PRIMARY KEY, state text NOT NULL, charge text)")

    def drop(self, conn: Any) -> None:
        conn.execute(f"DROP TABLE IF EXISTS {self._table}")

    def insert(self, conn: Any, order_id: int) -> None:
        conn.execute(self._sql("INSERT INTO {orders} (id, state) VALUES (?, 'new')"), (order_id,))

    def update(self, conn: Any, order_id: int, state: str, charge: str | None = None) -> None:
        statement = "UPDATE {orders} SET state = ?, charge = coalesce(?, charge) WHERE id = ?"
        conn.execute(self._sql(statement), (state, charge, order_id))

    def state(self, conn: Any, order_id: int) -> str | None:
        row = conn.execute(self._sql("SELECT state FROM {orders} WHERE id = ?"), (order_id,)).fetchone()
        return None if row is None else str(row[0])

    def _sql(self, statement: str) -> str:
        statement = statement.replace("{orders}", self._table)
        return statement.replace("?", "%s") if self._postgres else statement


orders: Orders


@shop.job("charge-card", continues_with=["ship-order"])
def charge_card(job: RunningJob[Order]) -> Continuation:
    charge = f"charge-{job.input.order_id}"  # a call to the payment service, with no transaction open
    with job.complete() as tx:
        orders.update(tx, job.input.order_id, "paid", charge)
        return job.continue_with(ship_order, job.input)


@shop.job("ship-order", entry=False)
def ship_order(job: RunningJob[Order]) -> dict[str, int]:
    with job.complete() as tx:
        orders.update(tx, job.input.order_id, "shipped")
        return {"shipped": job.input.order_id}


@shop.job("pack-item")
def pack_item(job: RunningJob[str]) -> str:
    return f"{job.input} in a box"


@shop.job("send-invoice", blockers=["pack-item"])
def send_invoice(job: RunningJob[Order]) -> list[str]:
    return [str(packed.output) for packed in job.blockers]


@shop.job("refund")
def refund(job: RunningJob[Order]) -> str:
    if job.attempt < 3:
        raise GatewayDownError("no answer from the payment service")
    return "refunded"


@shop.job("print-label", max_attempts=3)
def print_label(job: RunningJob[Order]) -> str:
    if job.attempt == 1:
        job.signal.wait(60)  # the printer is slow, and this process will be killed meanwhile
    return f"label of order {job.input.order_id}"


def make_app(url: str, prefix: str, schema: str) -> Queuert:
    """The shop's app on a database."""
    global orders
    app = Queuert(url, table_prefix=prefix, schema=schema)
    app.include(shop)
    orders = Orders(app, prefix, schema)
    return app


def create_app() -> Queuert:
    """The shop's app on the database that the environment names."""
    return make_app(*(os.environ[name] for name in ENVIRONMENT))

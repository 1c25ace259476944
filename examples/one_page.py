"""An order is charged, then shipped: two jobs of one chain, started in the transaction that stores the order.

python examples/one_page.py [FILE]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from queuert import Continuation, Queuert, RunningJob

app = Queuert(f"sqlite:///{sys.argv[1] if len(sys.argv) > 1 else 'shop.db'}")


@dataclass
class Order:
    order_id: int


class Gateway:
    """Stands for a payment provider."""

    def charge(self, order_id: int) -> str:
        return f"charge-{order_id}"


gateway = Gateway()


@app.job("charge-card", continues_with=["ship-order"])
def charge_card(job: RunningJob[Order]) -> Continuation:
    charge_id = gateway.charge(job.input.order_id)  # no transaction is open here; the lease renews itself
    with job.complete() as tx:  # one transaction: your writes ...
        tx.execute("UPDATE orders SET charge_id = ? WHERE id = ?", (charge_id, job.input.order_id))
        return job.continue_with(ship_order, job.input)  # ... this job's completion and the next job


@app.job("ship-order", entry=False)
def ship_order(job: RunningJob[Order]) -> dict[str, int]:
    return {"shipped": job.input.order_id}  # a plain return completes the job


def main() -> None:
    app.migrate()
    with app.transaction() as tx:  # or your own connection, in your own transaction
        tx.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, charge_id TEXT)")
        order_id = tx.execute("INSERT INTO orders (charge_id) VALUES (NULL) RETURNING id").fetchone()[0]
        chain = app.start_chain(charge_card, Order(order_id), conn=tx)  # rolled back with it, committed with it

    with app.worker(concurrency=4):
        print(app.wait_for(chain, timeout=10).output)


if __name__ == "__main__":
    with app:
        main()

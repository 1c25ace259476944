"""What both type checkers must accept. Checked by test_typing.py, never run."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Optional, TypedDict

from queuert import Backoff, Chain, Continuation, JobTypes, Lease, NewChain, Queuert, RunningJob, Status, current_job

app = Queuert("sqlite:///:memory:")
orders = JobTypes(max_attempts=3, lease=Lease(30))


@dataclass
class Order:
    order_id: int


class Express(Order):
    pass


class Parcel(TypedDict):
    weight: float


@app.job("charge-card", continues_with=["ship-order"], max_attempts=None, backoff=Backoff(1))
def charge_card(job: RunningJob[Order]) -> Continuation:
    with job.complete():
        return job.continue_with(ship_order, job.input)


@app.job("ship-order", entry=False)
def ship_order(job: RunningJob[Order]) -> dict[str, int]:
    return {"shipped": job.input.order_id}


@app.job
def refund(job: RunningJob[Order]) -> Continuation | None:
    if job.input.order_id:
        return job.continue_with("anything", object())
    job.continue_with(ship_order, Express(1), after=5)
    job.continue_with(tick)
    return job.continue_with("anything")


@app.job()
def tick(job: RunningJob[None]) -> None:
    return None


@orders.job
def untyped(job: RunningJob[Any]) -> Any:
    return job.input


@orders.job(priority=5, timeout=3.5)
def perhaps(job: RunningJob[Order | None]) -> int:
    return job.input.order_id if job.input else 0


@orders.job
def weigh(job: RunningJob[Parcel]) -> float:
    return job.input["weight"]


@orders.job
def many(job: RunningJob[list[Order]]) -> int:
    return len(job.input)


@orders.job
def prices(job: RunningJob[dict[str, float]]) -> float:
    return sum(job.input.values())


@orders.job("explicit", input=Order)
def explicit(job: RunningJob[Order]) -> None:
    return None


@orders.job("explicit-2", input=Optional[Order], output=int)
def explicit_form(job: RunningJob[Order | None]) -> int:
    return 1


app.include(orders)
declared = app.declare("declared", input=Order, priority=1)
unknown = app.declare("unknown")

app.start_chain(charge_card, Order(1))
app.start_chain(charge_card, Express(1), id=None, after=5, priority=1, max_attempts=None)
app.start_chain(tick)
app.start_chain(tick, None)
app.start_chain(tick, after=3)
app.start_chain(untyped)
app.start_chain(untyped, {"a": 1})
app.start_chain(perhaps)
app.start_chain(perhaps, None)
app.start_chain(perhaps, Order(1))
app.start_chain(weigh, {"weight": 2})
app.start_chain(many, [])
app.start_chain(many, [Express(1), Order(2)])
app.start_chain(prices, {"a": 1})
app.start_chain(explicit, Order(1))
app.start_chain(explicit_form)
app.start_chain(declared, Order(1))
app.start_chain(unknown)
app.start_chain(unknown, 5)
app.start_chain("charge-card")
app.start_chain("charge-card", {"order_id": 1})

batch = [NewChain(charge_card, Order(1)), NewChain(tick), NewChain("name"), NewChain("name", 5, priority=1)]
batch.append(NewChain(weigh, {"weight": 2}))
app.start_chains(batch)
app.start_chains([NewChain(perhaps), NewChain(many, [Order(1)], after=1)])
app.start_chains(NewChain(charge_card, Order(number)) for number in range(3))


def call(job: RunningJob[Order]) -> int:
    shipped: dict[str, int] = ship_order(job)
    return shipped["shipped"]


def helper(job: RunningJob[Order]) -> None: ...


def use_helper(job: RunningJob[Express]) -> None:
    helper(job)


with app.complete_chain("id", type_name=charge_card) as tail:
    if tail.priority > 5 and tail.leased_by is None:
        tail.continue_with(ship_order, Order(1), after=5)
        tail.continue_with("anything", object(), id=uuid.uuid4())
        tail.continue_with(tick)
    tail.finish({"shipped": 1})

chain = app.start_chain(charge_card, Order(1), id=17)
app.get_chain(chain, type_name="charge-card")
app.get_job(uuid.uuid4(), type_name=charge_card)
app.list_chains(types=[charge_card, "ship-order"], statuses=[Status.PENDING, "failed"], chain_ids=[chain, "id"])
app.list_jobs(job_ids=[chain, chain.id], types=["charge-card"])
pending: int = app.stats().by_status["pending"] + app.stats().by_status[Status.PENDING]
app.cancel_chains([chain, chain.id, uuid.uuid4()])


# A job type starts itself, and its chain knows its output

ship_order.start(Order(1)).output["shipped"] + 1
ship_order.start(Express(1), conn=None, after=5, priority=1)
perhaps.start(None, after=3)
tick.start()
tick.start(after=3)
many.start([Order(1)])
number: int = app.result(app.start_chain(perhaps, Order(1)), timeout=5)
weight: float = app.wait_for(weigh.start({"weight": 2}), timeout=5).output
anything: str = app.result(charge_card.start(Order(1)))
anything = app.wait_for("id").output
anything = app.result(uuid.uuid4())
total: float = sum(each.output for each in [prices.start({"a": 1})])


@app.task
def resize(path: str, width: int = 100, *, crop: bool = False) -> tuple[int, int]:
    job = current_job()
    if job is not None and job.attempt > 1:
        job.fail("IMAGE:BROKEN")
    return width, width


@orders.task("clean-up", max_attempts=3, timeout=5, entry=True)
def clean_up() -> None: ...


@orders.task()
def first_step(number: int) -> Continuation:
    job = current_job()
    assert job is not None
    return job.continue_with(resize, {"path": "a.png"})


size: tuple[int, int] = app.result(resize.start("a.png"))
size = app.wait_for(resize.start("a.png", width=400, crop=True)).output
size = resize("a.png", 5)
size = app.result(resize.using(after=60, priority=5).start("a.png", 3))
clean_up.start()
clean_up.using(conn=object()).start()
anything = app.result(first_step.start(1))
app.start_chain(resize, {"path": "a.png"}, after=3)
app.start_chains([NewChain(resize, {"path": "a.png"})])
app.get_chain(resize.start("a.png"), type_name=resize)


def untouched(chain: Chain) -> Chain[int]:
    return chain

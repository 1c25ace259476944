"""What both type checkers must refuse: exactly the lines that say so. Checked by test_typing.py, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from queuert import Continuation, JobTypes, NewChain, Queuert, RunningJob, current_job

app = Queuert("sqlite:///:memory:")
orders = JobTypes()


@dataclass
class Order:
    order_id: int


@dataclass
class Wrong:
    name: str = ""


class Parcel(TypedDict):
    weight: float


@app.job("charge-card", continues_with=["ship-order"])
def charge_card(job: RunningJob[Order]) -> Continuation:
    job.continue_with(ship_order, Wrong())  # error
    job.continue_with(ship_order)  # error
    job.continue_with(ship_order, None)  # error
    job.continue_with(5)  # error
    return job.continue_with(ship_order, job.input)


@orders.job
def ship_order(job: RunningJob[Order]) -> dict[str, int]:
    print(job.input.name)  # error
    return {"shipped": job.input.order_id}


@app.job()
def tick(job: RunningJob[None]) -> None: ...


@app.job
def perhaps(job: RunningJob[Order | None]) -> None: ...


@app.job
def weigh(job: RunningJob[Parcel]) -> None: ...


@app.job
def many(job: RunningJob[list[Order]]) -> None: ...


declared = app.declare("declared", input=Order)

app.start_chain(charge_card, Order(1))
app.start_chain(charge_card, Wrong())  # error
app.start_chain(charge_card, {"order_id": 1})  # error
app.start_chain(charge_card, Order)  # error
app.start_chain(charge_card, None)  # error
app.start_chain(charge_card)  # error
app.start_chain(ship_order, Wrong(), after=5)  # error
app.start_chain(tick, Order(1))  # error
app.start_chain(perhaps, Wrong())  # error
app.start_chain(weigh, {"height": 1})  # error
app.start_chain(weigh, {"weight": "x"})  # error
app.start_chain(many, Order(1))  # error
app.start_chain(many, [Wrong()])  # error
app.start_chain(declared, Wrong())  # error
app.start_chain(5, Order(1))  # error
app.start_chain("name", colour="red")  # error
app.start_chain(charge_card, Order(1), priority="high")  # error

NewChain(charge_card, Order(1))
NewChain(charge_card, Wrong())  # error
NewChain(charge_card)  # error
NewChain(tick, Order(1))  # error
app.start_chains([NewChain(tick), NewChain(declared, Wrong())])  # error
app.start_chains([charge_card])  # error


def refused(job: int) -> None: ...


def called(job: RunningJob[Wrong]) -> None:
    ship_order(job)  # error


app.job(refused)  # error
app.job("refused", max_attempts="3")(called)  # error
orders.job("refused", input=Order)(called)  # error
app.declare("refused", colour="red")  # error
app.include([orders])  # error

with app.complete_chain("id") as tail:
    tail.continue_with(ship_order, Order(1))
    tail.continue_with(ship_order, Wrong())  # error
    tail.continue_with(ship_order)  # error
    print(tail.nonsense)  # error

app.get_chain(1.5)  # error
app.get_job("id", type_name=5)  # error
app.list_chains(types=[5])  # error
app.list_jobs(statuses=[5])  # error
app.wait_for(None)  # error


ship_order.start(Wrong())  # error
ship_order.start()  # error
tick.start(Order(1))  # error
ship_order.start(Order(1), colour="red")  # error
number: int = app.result(ship_order.start(Order(1)))  # error
print(app.wait_for(ship_order.start(Order(1))).output.nonsense)  # error
text: str = app.wait_for(ship_order.start(Order(1)), timeout=3).output  # error


@app.task
def resize(path: str, width: int = 100, *, crop: bool = False) -> tuple[int, int]:
    current_job().fail("X")  # error
    return width, width


@orders.task("later", after=3)  # error
def later() -> None: ...


resize.start()  # error
resize.start(5)  # error
resize.start("a.png", height=3)  # error
resize.start("a.png", "wide")  # error
resize.start("a.png", 3, True)  # error
resize.using(after=3).start()  # error
resize.using(after=3).start("a.png", width="x")  # error
resize.using(path="a.png")  # error
resize(5)  # error
number = app.result(resize.start("a.png"))  # error
app.start_chain(resize, "a.png")  # error
app.result(5.5)  # error

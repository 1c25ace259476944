"""Compensation: a trip is booked step by step, and what was booked is cancelled when a later step fails for good.

A step that can fail decides where the chain goes on: forward, or back through what has been done so far. Each step commits
together with the next one, so a crash resumes exactly where it was.

    python examples/compensation.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from queuert import Backoff, Continuation, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))


@dataclass
class Trip:
    destination: str
    card: str
    booked: list[str] = field(default_factory=list)

    def with_booking(self, what: str) -> Trip:
        return replace(self, booked=[*self.booked, what])


class CardDeclined(Exception):
    pass


def charge(card: str) -> None:
    if card == "declined":
        raise CardDeclined


@app.job("book-flight", continues_with=["book-hotel"])
def book_flight(job: RunningJob[Trip]) -> Continuation:
    return job.continue_with(book_hotel, job.input.with_booking("flight"))


@app.job("book-hotel", entry=False, continues_with=["pay"])
def book_hotel(job: RunningJob[Trip]) -> Continuation:
    return job.continue_with(pay, job.input.with_booking("hotel"))


@app.job("pay", entry=False, continues_with=["undo"], max_attempts=5, backoff=Backoff(initial=1))
def pay(job: RunningJob[Trip]) -> str | Continuation:
    try:
        charge(job.input.card)  # any other exception is retried
    except CardDeclined:
        return job.continue_with(undo, job.input)
    return f"{job.input.destination}: booked {' and '.join(job.input.booked)}"


@app.job("undo", entry=False, continues_with=["undo"])
def undo(job: RunningJob[Trip]) -> str | Continuation:
    if not job.input.booked:
        return f"{job.input.destination}: everything was cancelled"
    *rest, newest = job.input.booked
    print("cancelled the", newest)
    return job.continue_with(undo, replace(job.input, booked=rest))


def main() -> None:
    app.migrate()
    for card in ("good", "declined"):
        chain = app.start_chain(book_flight, Trip("Lisbon", card))
        app.drain()
        print(app.wait_for(chain, timeout=10).output)


if __name__ == "__main__":
    with app:
        main()

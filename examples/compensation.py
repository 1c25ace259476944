"""Compensation: a trip is booked step by step, and what was booked is cancelled when a step fails for good.

The steps know nothing of it. Each says what follows its failure, `on_failed`, and a chain of that type is started in the very
transaction that writes the failure: also if attempts are used up, if a worker dies, or if an input cannot be read. A report
waits until both trips have closed, however they ended.

    python examples/compensation.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from queuert import Backoff, Continuation, Failure, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))


@dataclass
class Trip:
    destination: str
    card: str
    booked: list[str] = field(default_factory=list)

    def with_booking(self, what: str) -> Trip:
        return replace(self, booked=[*self.booked, what])


@app.job("undo")
def undo(job: RunningJob[Failure]) -> str | Continuation:
    trip = job.input.input  # the failed job's own, as plain JSON
    if not trip["booked"]:
        return f"{trip['destination']}: everything was cancelled"
    *rest, newest = trip["booked"]
    print("cancelled the", newest)
    return job.continue_with(undo, replace(job.input, input={**trip, "booked": rest}))


@app.job("book-flight", continues_with=["book-hotel"], on_failed=undo)
def book_flight(job: RunningJob[Trip]) -> Continuation:
    return job.continue_with(book_hotel, job.input.with_booking("flight"))


@app.job("book-hotel", entry=False, continues_with=["pay"], on_failed=undo)
def book_hotel(job: RunningJob[Trip]) -> Continuation:
    return job.continue_with(pay, job.input.with_booking("hotel"))


@app.job("pay", entry=False, max_attempts=5, backoff=Backoff(initial=1), on_failed=undo)
def pay(job: RunningJob[Trip]) -> str:
    if job.input.card == "declined":
        job.fail("CARD:DECLINED")  # any exception is retried, and fails for good after five attempts
    return f"{job.input.destination}: booked {' and '.join(job.input.booked)}"


@app.job("report")
def report(job: RunningJob[None]) -> list[str]:
    return [f"{trip.type_name} {trip.status}" for trip in job.blockers]


def main() -> None:
    app.migrate()
    trips = [app.start_chain(book_flight, Trip("Lisbon", card)) for card in ("good", "declined")]
    reported = app.start_chain(report, blockers=trips, blockers_until="closed")
    app.drain()
    print(app.wait_for(trips[0], timeout=10).output)
    print(app.wait_for(reported, timeout=10).output)


if __name__ == "__main__":
    with app:
        main()

"""Approval with a timeout: a job that somebody completes from outside, and that runs by itself if nobody does.

The job is scheduled for the deadline. A decision completes it before that, without a worker; at the deadline a worker runs
it, and the handler decides what silence means.

    python examples/approval.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from queuert import Chain, Continuation, JobAlreadyCompletedError, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))


@dataclass
class Expense:
    amount: int


@app.job("await-approval", continues_with=["pay-out", "turn-down"])
def await_approval(job: RunningJob[Expense]) -> Continuation:
    return job.continue_with(turn_down, job.input)  # the deadline has come


@app.job("pay-out", entry=False)
def pay_out(job: RunningJob[Expense]) -> str:
    return f"{job.input.amount} paid"


@app.job("turn-down", entry=False)
def turn_down(job: RunningJob[Expense]) -> str:
    return f"{job.input.amount} turned down"


def decide(chain: Chain, approved: bool) -> str:
    """What a button on a web page calls."""
    with app.complete_chain(chain.id, type_name="await-approval") as job:
        if job.type_name != "await-approval":
            return "too late"
        try:
            job.continue_with(pay_out if approved else turn_down, job.input)
        except JobAlreadyCompletedError:
            return "too late"
        return "thank you"


def main() -> None:
    app.migrate()
    approved = app.start_chain(await_approval, Expense(100), after=timedelta(days=3))
    ignored = app.start_chain(await_approval, Expense(200), after=timedelta(days=3))
    print(decide(approved, True))
    app.trigger_job(ignored.id)  # three days pass
    app.drain()
    print(decide(ignored, True))
    for chain in (approved, ignored):
        print(app.wait_for(chain, timeout=10).output)


if __name__ == "__main__":
    with app:
        main()

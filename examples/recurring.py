"""Recurring work: each run starts its successor inside its own completion.

The successor and the completion commit together, so the row never breaks and never doubles: the key admits one open chain,
and the run that is just ending is left out of that. Starting it at every deployment is harmless for the same reason.

    python examples/recurring.py
"""

from __future__ import annotations

import os
from datetime import timedelta

from queuert import Dedup, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))

EVERY = timedelta(milliseconds=50)
RUNS = 3


@app.job("send-digest")
def send_digest(job: RunningJob[int]) -> str:
    digest = f"digest {job.input}"
    with job.complete() as tx:
        if job.input < RUNS:  # an example has to end; yours would go on
            following = Dedup("send-digest", exclude_chain_ids=[job.chain_id])
            app.start_chain(send_digest, job.input + 1, after=EVERY, dedup=following, conn=tx)
        return digest


def main() -> None:
    app.migrate()
    first = app.start_chain(send_digest, 1, dedup=Dedup("send-digest"))
    again = app.start_chain(send_digest, 1, dedup=Dedup("send-digest"))  # as at the next deployment
    print("started twice, running once:", again.id == first.id)

    with app.worker(poll_interval=0.05):
        while app.stats().by_type["send-digest"].get("completed", 0) < RUNS:
            app.wait_for(app.list_chains(types=["send-digest"], limit=1).items[0], timeout=10)
    for chain in app.list_chains(types=["send-digest"], order="asc"):
        print(chain.output)


if __name__ == "__main__":
    with app:
        main()

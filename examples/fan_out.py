"""Fan-out and fan-in: a report is split into parts that run side by side, and joined when the last of them is done.

The parts are chains of their own; the join names them as its blockers. All of it is created in one transaction with the
completion of the job that splits.

    python examples/fan_out.py
"""

from __future__ import annotations

import os

from queuert import Continuation, NewChain, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))


@app.job("split", continues_with=["join"])
def split(job: RunningJob[list[str]]) -> Continuation:
    with job.complete() as tx:
        parts = app.start_chains([NewChain(count_letters, word) for word in job.input], conn=tx)
        return job.continue_with(join, blockers=parts)


@app.job("count-letters")
def count_letters(job: RunningJob[str]) -> int:
    return len(job.input)


@app.job("join", entry=False, blockers=["count-letters"])
def join(job: RunningJob[None]) -> dict[str, int]:
    return {part.input: part.output for part in job.blockers}  # in the order they were given


def main() -> None:
    app.migrate()
    chain = app.start_chain(split, ["one", "three", "seventeen"])
    with app.worker(concurrency=4):
        print(app.wait_for(chain, timeout=10).output)


if __name__ == "__main__":
    with app:
        main()

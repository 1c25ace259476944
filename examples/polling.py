"""A polling loop: ask a slow service until it has an answer, without holding a thread in between.

`reschedule` gives the job back until the next look. That is no failure: it uses up none of the attempts, which are left for
real errors, and the time limit is the handler's own decision.

    python examples/polling.py
"""

from __future__ import annotations

import os
from datetime import timedelta

from queuert import Continuation, Queuert, RunningJob

app = Queuert(os.environ.get("QUEUERT_URL", "sqlite:///:memory:"))

LOOK_EVERY = timedelta(milliseconds=20)
GIVE_UP_AFTER = timedelta(hours=1)


class VideoService:
    """Stands for something that takes its time."""

    def __init__(self) -> None:
        self.looks = 0

    def submit(self, name: str) -> str:
        return f"task-{name}"

    def result(self, task: str) -> str | None:
        self.looks += 1
        return f"{task}.mp4" if self.looks > 3 else None


service = VideoService()


@app.job("convert", continues_with=["collect"])
def convert(job: RunningJob[str]) -> Continuation:
    return job.continue_with(collect, service.submit(job.input))


@app.job("collect", entry=False, max_attempts=3)
def collect(job: RunningJob[str]) -> str:
    result = service.result(job.input)
    waited = (job.last_attempt_at or job.created_at) - job.created_at
    if result is None and waited > GIVE_UP_AFTER:
        job.fail("TIMEOUT:VIDEO_SERVICE", "no answer within an hour")
    if result is None:
        job.reschedule(after=LOOK_EVERY, error="not ready")
    return result


def main() -> None:
    app.migrate()
    chain = app.start_chain(convert, "cat")
    with app.worker(poll_interval=0.05):
        done = app.wait_for(chain, timeout=10)
    print(done.output)
    print([attempt.outcome for attempt in app.attempts(done.tail_id)])


if __name__ == "__main__":
    with app:
        main()

"""Found by the app: nobody imports this module."""

from __future__ import annotations

from django.db import transaction

from queuert import Continuation, RunningJob
from queuert.contrib.django import queue
from work.models import Order

after_commit: list[int] = []
enqueued: list[str] = []


@queue.job(continues_with=["ship"], max_attempts=1)
def charge(job: RunningJob[int]) -> Continuation:
    with job.complete():
        Order.objects.filter(pk=job.input).update(state="paid")
        transaction.on_commit(lambda: after_commit.append(job.input))
        return job.continue_with(ship, job.input)


@queue.job(entry=False)
def ship(job: RunningJob[int]) -> str:
    Order.objects.filter(pk=job.input).update(state="shipped")
    return "shipped"


@queue.job(max_attempts=1)
def fail(job: RunningJob[None]) -> None:
    raise RuntimeError("as asked")


@queue.job(max_attempts=1)
def enqueue(job: RunningJob[bool]) -> None:
    from work import tasks

    with job.complete():
        enqueued.append(tasks.add.enqueue(1).id)
        tasks.add.get_result(enqueued[0])
    if job.input:
        raise RuntimeError("after all that")

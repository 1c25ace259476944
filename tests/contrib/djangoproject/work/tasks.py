"""Tasks of Django's own framework."""

from __future__ import annotations

from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from work.models import Order

seen: list[Any] = []


@task()
def add(first: int, second: int = 1) -> int:
    return first + second


@task(priority=5, queue_name="mail")
def mail(address: str) -> str:
    seen.append(address)
    return address


@task(takes_context=True)
def look(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id, context.task_result.status]


@task()
def explode() -> None:
    raise ValueError("as asked")


@task()
def unstorable() -> Any:
    return object()


@task()
async def asynchronous() -> str:
    return "awaited"


@task()
def order(state: str) -> int:
    return Order.objects.create(state=state).pk


def not_a_task() -> None: ...

"""What is wrong, in words, with what repairs it: the top of the overview.

Ordered by how much it hurts. Each says what is the matter, why it matters, and either has a button or says what to type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from queuert.cli.values import lasting
from queuert.dashboard.standing import Standing

Level = Literal["bad", "warning", "note"]

WAITED: Final = 300.0  # seconds that a ready job may wait before somebody should look
SILENT: Final = 60.0  # seconds past the end of a lease
OVERDUE: Final = timedelta(minutes=2)  # of a schedule: workers look about once a second


@dataclass(frozen=True)
class Repair:
    """A button: a form that is sent, or a page that asks first."""

    label: str
    path: tuple[str, ...]
    query: dict[str, Any]
    act: str = ""
    # Whether the button acts at once; otherwise it leads to a page.
    acts: bool = False


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong."""

    level: Level
    title: str
    text: str
    repairs: tuple[Repair, ...] = ()


def find_troubles(standing: Standing) -> list[Trouble]:
    """What is wrong, the worst first."""
    order = {"bad": 0, "warning": 1, "note": 2}
    return sorted(_all(standing), key=lambda trouble: order[trouble.level])


def _all(standing: Standing) -> Iterator[Trouble]:
    yield from _paused(standing)
    yield from _nobody(standing)
    yield from _waiting(standing)
    yield from _stranded(standing)
    yield from _failed(standing)
    yield from _silent(standing)
    yield from _workers(standing)
    yield from _overdue(standing)


def _paused(standing: Standing) -> Iterator[Trouble]:
    for pause in standing.pauses:
        what = "Everything is" if pause.type_name is None else f"{pause.type_name} is"
        path = ("resume",) if pause.type_name is None else ("types", pause.type_name, "resume")
        about = ": ".join(filter(None, [f"By {pause.actor}" if pause.actor else "", pause.reason])).rstrip(".")
        until = f", until {pause.until:%Y-%m-%d %H:%M} UTC" if pause.until else ""
        yield Trouble(
            "bad" if pause.type_name is None else "warning",
            f"{what} paused for {lasting((standing.now - pause.since).total_seconds())} now",
            f"{about or 'No reason was given'}{until}. What runs goes on, nothing new is begun.",
            (Repair("Resume", path, {}, act="resume", acts=True),),
        )


def _nobody(standing: Standing) -> Iterator[Trouble]:
    if standing.stats.oldest_ready_seconds is not None and not any(not worker.lost for worker in standing.workers):
        yield Trouble(
            "bad",
            "Jobs are ready and no worker is alive",
            "Start one: `queuert worker module:app`.",
            (Repair("Show what is pending", ("jobs",), {"status": "pending", "order": "asc"}),),
        )


def _workers(standing: Standing) -> Iterator[Trouble]:
    show = (Repair("Show the workers", ("workers",), {}),)
    lost = [worker for worker in standing.workers if worker.lost]
    if lost:
        names = ", ".join(worker.name for worker in lost[:3]) + ("…" if len(lost) > 3 else "")
        yield Trouble(
            "warning",
            f"{len(lost)} {'worker has' if len(lost) == 1 else 'workers have'} gone without a word: {names}",
            "Killed, out of memory, or cut off. Their jobs are taken back by others when the leases end.",
            show,
        )
    zombies = sum(worker.zombies for worker in standing.workers if not worker.lost)
    if zombies:
        yield Trouble(
            "warning",
            f"{zombies:,} {'handler runs' if zombies == 1 else 'handlers run'} on though the job was taken away",
            "They hold slots until they look at `job.signal` or end. Restart the worker if they never do.",
            show,
        )


def _waiting(standing: Standing) -> Iterator[Trouble]:
    waited = standing.stats.oldest_ready_seconds
    if waited is not None and waited > WAITED and _somebody_should(standing):
        yield Trouble(
            "bad",
            f"A job has been ready for {lasting(waited)} and nobody runs it",
            "No worker knows its type, or there are too few: start one with `queuert worker module:app`.",
            (Repair("Show what is pending", ("jobs",), {"status": "pending", "order": "asc"}),),
        )


def _somebody_should(standing: Standing) -> bool:
    """Whether there is somebody who could run it, and nobody who told them not to."""
    return any(not worker.lost for worker in standing.workers) and not any(p.type_name is None for p in standing.pauses)


def _stranded(standing: Standing) -> Iterator[Trouble]:
    number = standing.stats.stranded
    if number:
        yield Trouble(
            "bad",
            f"{_jobs(number)} {_wait(number)} for chains that failed or were cancelled",
            "They stay blocked until those chains are retried and complete, or are cancelled themselves.",
            (Repair("Show them", ("jobs",), {"id": standing.stats.stranded_jobs, "order": "asc"}),),
        )


def _failed(standing: Standing) -> Iterator[Trouble]:
    stats = standing.stats
    number = stats.by_status.get("failed", 0)
    if not number:
        return
    more = "+" if "failed" in stats.capped else ""
    codes = ", ".join(code for code, _ in stats.error_codes[:3])
    show = Repair("Show them", ("chains",), {"status": "failed"})
    yield Trouble(
        "bad",
        f"{number:,}{more} {'job has' if number == 1 and not more else 'jobs have'} failed for good",
        f"The most frequent errors now: {codes}." if codes else "Nobody tries them again unless you do.",
        (Repair("Retry all…", ("many", "retry"), {"kind": "chains", "status": "failed"}, act="retry"), show),
    )


def _silent(standing: Standing) -> Iterator[Trouble]:
    oldest = standing.stats.oldest_running
    if oldest is None or oldest.heartbeat_at is None:
        return
    silent = (standing.now - oldest.heartbeat_at).total_seconds()
    if silent > SILENT * 5:
        yield Trouble(
            "warning",
            f"A running {oldest.type_name} job has given no sign of life for {lasting(silent)}",
            f"Its worker {oldest.worker_id} may be gone, and no other worker takes the job back.",
            (Repair("Show the job", ("jobs", oldest.job_id), {}),),
        )


def _overdue(standing: Standing) -> Iterator[Trouble]:
    late = [s for s in standing.schedules if s.next_run_at is not None and standing.now - s.next_run_at > OVERDUE]
    if late:
        names = ", ".join(schedule.name for schedule in late[:3]) + ("…" if len(late) > 3 else "")
        yield Trouble(
            "warning",
            f"{len(late)} {'schedule is' if len(late) == 1 else 'schedules are'} overdue: {names}",
            "Schedules tick in workers of the app that defines them: none of those seems to run.",
            (Repair("Show the schedules", ("schedules",), {}),),
        )


def _jobs(number: int) -> str:
    return f"{number:,} job" if number == 1 else f"{number:,} jobs"


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"

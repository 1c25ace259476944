"""A newsletter: a welcome, a reminder three days later unless confirmed, and a digest every Monday.

Its tests, in `test_newsletter.py`, run all of it in memory, and weeks in no time:

    pytest examples/newsletter
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from queuert import Chain, Continuation, JobTypes, Queuert, RunningJob

SCHEMA = "CREATE TABLE subscriber (email TEXT PRIMARY KEY, confirmed INTEGER NOT NULL DEFAULT 0)"
REMIND_AFTER = timedelta(days=3)

jobs = JobTypes()
outbox: list[tuple[str, str]] = []


@dataclass
class Subscriber:
    email: str


@jobs.job("send-welcome", continues_with=["remind"])
def send_welcome(job: RunningJob[Subscriber]) -> Continuation:
    send(job.input.email, "Please confirm your address")
    return job.continue_with(remind, job.input, after=REMIND_AFTER)


@jobs.job("remind", entry=False)
def remind(job: RunningJob[Subscriber]) -> str:
    with job.complete() as tx:
        row = tx.execute("SELECT confirmed FROM subscriber WHERE email = ?", (job.input.email,)).fetchone()
        if row is None or row[0]:
            return "not needed"
        tx.execute("DELETE FROM subscriber WHERE email = ?", (job.input.email,))
    send(job.input.email, "We have removed your address")
    return "removed"


@jobs.job("send-digest")
def send_digest(job: RunningJob[None]) -> int:
    with job.prepare() as tx:
        emails = [row[0] for row in tx.execute("SELECT email FROM subscriber WHERE confirmed")]
    for email in emails:
        send(email, "This week")
    return len(emails)


def install(app: Queuert) -> None:
    """Give an app the jobs of the newsletter."""
    app.include(jobs)
    app.periodic("0 7 * * MON", tz="Europe/Berlin")(send_digest)


def sign_up(app: Queuert, tx: Any, email: str) -> Chain:
    """Called by the web form, in its transaction."""
    tx.execute("INSERT INTO subscriber (email) VALUES (?)", (email,))
    return app.start_chain(send_welcome, Subscriber(email), conn=tx)


def confirm(tx: Any, email: str) -> None:
    tx.execute("UPDATE subscriber SET confirmed = 1 WHERE email = ?", (email,))


def send(email: str, subject: str) -> None:
    """Stands for a mail server."""
    outbox.append((email, subject))

"""Making rows older than they are, so that no test has to wait for time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from queuert import Queuert

COLUMNS = ("created_at", "chain_created_at", "scheduled_at", "completed_at", "last_attempt_at", "leased_until")


def make_older(app: Queuert, chain_id: str, by: timedelta) -> None:
    """Move every time of a chain's jobs into the past."""
    for job in app.list_chain_jobs(chain_id, limit=1_000):
        moments = {name: getattr(job, name) for name in COLUMNS if getattr(job, name) is not None}
        with app.transaction() as tx:
            mark = "%s" if is_postgres(app) else "?"
            changes = ", ".join(f"{name} = {mark}" for name in moments)
            values = [stored(app, moment - by) for moment in moments.values()]
            tx.execute(f"UPDATE queuert_job SET {changes} WHERE id = {mark}", (*values, job.id))


def stored(app: Queuert, moment: datetime) -> object:
    """A time as the database keeps it."""
    if is_postgres(app):
        return moment
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def is_postgres(app: Queuert) -> bool:
    return "Postgres" in repr(app)


def database_now(app: Queuert) -> datetime:
    """The time by the database's clock."""
    with app.transaction() as tx:
        if is_postgres(app):
            now: datetime = tx.execute("SELECT clock_timestamp()").fetchone()[0]
            return now
        return datetime.fromisoformat(tx.execute("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')").fetchone()[0]).replace(
            tzinfo=timezone.utc
        )

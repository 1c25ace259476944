"""The overview: what is wrong, how much there is, what is slow, who works."""

from __future__ import annotations

from werkzeug.wrappers import Response

from queuert.chains.history import Stats
from queuert.cli.stats import ATTEMPT_BANDS
from queuert.dashboard.done import done_text
from queuert.dashboard.standing import STATES, read_standing
from queuert.dashboard.troubles import find_troubles
from queuert.dashboard.visit import Visit


def show(visit: Visit) -> Response:
    standing = read_standing(visit)
    stats = standing.stats
    bands = [
        (label, sum(n for attempt, n in stats.attempts.items() if attempt >= low and (high is None or attempt <= high)))
        for low, high, label in ATTEMPT_BANDS
    ]
    return visit.page(
        "overview.html",
        standing=standing,
        stats=stats,
        states=STATES,
        troubles=find_troubles(standing),
        bands=bands,
        most_tried=max((number for _, number in bands), default=0),
        most_errors=max((number for _, number in stats.error_codes), default=0),
        tiles=_tiles(stats),
        done_by_now=[(completed, failed) for completed, failed in standing.pace],
        most_done=max((completed + failed for completed, failed in standing.pace), default=0),
        last_hour=(sum(c for c, _ in standing.pace), sum(f for _, f in standing.pace)),
        last_minute=sum(rate.minute.completed for rate in stats.rates.values()),
        done=done_text(visit.request.args),
    )


def _tiles(stats: Stats) -> list[tuple[str, str, int, bool, dict[str, str]]]:
    """Name, class, number, whether there are more, and where it leads: what is pending is told apart by what it waits for."""
    pending = {"status": "pending"}
    waiting = [
        (name, kind, sum(numbers.values()), any(each in stats.capped_waiting for each in numbers), pending)
        for name, kind, numbers in (
            ("ready", "ready", stats.ready),
            ("scheduled", "scheduled", stats.scheduled),
            ("backing off", "retrying", stats.retrying),
        )
    ]
    states = [(s, s, stats.by_status.get(s, 0), s in stats.capped, {"status": s}) for s in STATES if s != "pending"]
    return [*waiting, *states]

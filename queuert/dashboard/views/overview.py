"""The overview: what is wrong, how much there is, what is slow, who works."""

from __future__ import annotations

from werkzeug.wrappers import Response

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
        done=done_text(visit.request.args),
    )

"""Who works, and the numbers that a monitoring system reads."""

from __future__ import annotations

from werkzeug.wrappers import Response

from queuert import metrics as prometheus
from queuert.dashboard.standing import read_standing
from queuert.dashboard.visit import Visit


def show(visit: Visit) -> Response:
    standing = read_standing(visit)
    return visit.page(
        "workers.html", workers=sorted(standing.workers, key=lambda worker: (worker.lost, worker.name, worker.id))
    )


def metrics(visit: Visit) -> Response:
    found = prometheus.of(visit.app)
    return Response(found.text(), content_type=found.content_type)

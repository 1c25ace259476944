"""The dashboard as a blueprint."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, request
from werkzeug.wrappers import Response

from queuert.dashboard import create_app


def dashboard_blueprint(
    app: object, *, name: str = "queuert_dashboard", url_prefix: str | None = None, **options: Any
) -> Blueprint:
    """The dashboard of a `Queuert` or `FlaskQueuert`, to register under any path. Options are those of `create_app`.

    flask_app.register_blueprint(dashboard_blueprint(queue, authenticate=...), url_prefix="/queue")
    """
    dashboard = create_app(app, **options)
    blueprint = Blueprint(name, __name__, url_prefix=url_prefix)

    def show(path: str = "") -> Response:
        environ = dict(request.environ)
        own, whole = request.environ.get("PATH_INFO", ""), path.encode("utf-8").decode("latin-1")
        prefix = own[: len(own) - len(whole)].rstrip("/") if whole else own.rstrip("/")
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "").rstrip("/") + prefix
        environ["PATH_INFO"] = f"/{whole}"
        return Response.from_app(dashboard, environ, buffered=True)

    methods = ["GET", "POST"]
    blueprint.add_url_rule("/", "show", show, methods=methods, strict_slashes=False)
    blueprint.add_url_rule("/<path:path>", "show", show, methods=methods)
    return blueprint

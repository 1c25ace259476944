"""The WSGI application: finds the page, lets the right people in, and turns what goes wrong into a page that says so."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from queuert.dashboard import access
from queuert.dashboard.access import Visitor
from queuert.dashboard.cache import Cache
from queuert.dashboard.failures import Failure, explain
from queuert.dashboard.redaction import Redact
from queuert.dashboard.rendering import static_version
from queuert.dashboard.routes import ROUTES, Route
from queuert.dashboard.settings import Authenticate, MayAct, Settings, checked_settings
from queuert.dashboard.visit import Visit, json_response, query_string

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger("queuert.dashboard")

MOST_SENT: Final = 2 * 1024 * 1024  # bytes of a form: a selection of a page, or an output
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def create_app(
    app: object,
    *,
    base_path: str = "",
    authenticate: Authenticate | None = None,
    token: str | None = None,
    read_only: bool = False,
    may_act: MayAct | None = None,
    redact: Redact | None = None,
    allowed_hosts: Iterable[str] | None = None,
    title: str = "queuert",
) -> Dashboard:
    """The dashboard of an app, as a WSGI application.

    - `token`: whoever has it may come in, as a Bearer token or once as `?token=`.
    - `authenticate(request)`: the visitor's name, True, a response (to a login page, say), or None to refuse. With neither
      of the two, it answers only on this machine.
    - `may_act(name, act)`: whether a visitor may `retry`, `cancel`, `pause` and so on; `read_only` lets nobody.
    - `redact(kind, type_name, value)`: an `input`, `output` or `error` as it may be shown; by default, without the values of
      fields called password, token and the like.
    - `allowed_hosts`: the names that it answers to. `base_path`: where a proxy has put it.
    """
    return Dashboard(
        checked_settings(
            app,
            base_path=base_path,
            authenticate=authenticate,
            token=token,
            read_only=read_only,
            may_act=may_act,
            redact=redact,
            allowed_hosts=allowed_hosts,
            title=title,
        )
    )


class Dashboard:
    """A WSGI application; `create_app` makes it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._cache = Cache()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ = dict(environ)
        root = self._take_base_off(environ)
        request = Request(environ)
        request.max_content_length = MOST_SENT
        request.max_form_memory_size = MOST_SENT
        request.max_form_parts = 2_000
        response = self._answer(request, root)
        for name, value in HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        return response(environ, start_response)

    def forget(self) -> None:
        """Drop the answers that pages share for a moment."""
        self._cache.forget()

    def _take_base_off(self, environ: dict[str, Any]) -> str:
        """The path under which visitors see us; what is left in `PATH_INFO` is ours."""
        root, path = environ.get("SCRIPT_NAME", "").rstrip("/"), environ.get("PATH_INFO", "")
        base = self.settings.base_path
        if base and (path == base or path.startswith(f"{base}/")):
            path, root = path[len(base) :], root + base
        elif base and not root.endswith(base):
            root += base  # a proxy took it off
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = root, path or "/"
        return str(root.encode("latin-1").decode("utf-8", "replace"))

    def _answer(self, request: Request, root: str) -> Response:
        visit = Visit(request, root, self.settings, self._cache, Visitor("nobody"))
        try:
            access.check_host(request, self.settings)
            if request.path.startswith("/static/"):
                return _static(request)
            if access.offered_token(request, self.settings):
                return self._with_token(request, root)
            visitor = access.identify(request, self.settings)
            if isinstance(visitor, Response):
                return visitor
            visit.visitor = visitor
            route, values = _find(request)
            if any("\0" in value for value in values.values()):
                raise NotFound()
            if request.method == "POST":
                access.check_act(request, self.settings, visitor, route.act or values.get("act", ""))
                try:
                    return route.view(visit, **values)
                finally:
                    visit.changed()
            return route.view(visit, **values)
        except Exception as error:
            return self._refuse(visit, explain(error, self.settings))

    def _with_token(self, request: Request, root: str) -> Response:
        """The same address without the token, which is in a cookie from now on and in no history."""
        rest = {name: values for name, values in request.args.lists() if name != "token"}
        address = f"{root}{request.path}" + (f"?{query_string(rest)}" if rest else "")
        response = redirect(address.replace("//", "/") if address.startswith("//") else address, 303)
        access.remember_token(response, request, self.settings, root)
        return response

    def _refuse(self, visit: Visit, failure: Failure) -> Response:
        if failure.error is not None:
            logger.error("The dashboard could not make a page.", exc_info=failure.error, extra={"event": "dashboard_failed"})
        path = visit.request.path
        if path.startswith("/api/") or path == "/api":
            response = json_response({"error": failure.text, "status": failure.status}, status=failure.status)
        elif path == "/metrics":
            response = Response(f"{failure.text}\n", status=failure.status, mimetype="text/plain")
        else:
            response = visit.page("error.html", status=failure.status, failure=failure)
        for name, value in failure.headers:
            response.headers[name] = value
        return response


def _find(request: Request) -> tuple[Route, dict[str, str]]:
    adapter = ROUTES.bind_to_environ(request.environ)
    route, values = adapter.match(return_rule=False)
    return route, dict(values)


def _static(request: Request) -> Response:
    name = request.path.removeprefix("/static/")
    entry = files("queuert.dashboard").joinpath("static", name)
    if "/" in name or "\\" in name or name.startswith(".") or "\0" in name or not entry.is_file():
        raise NotFound()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    response = Response(entry.read_bytes(), mimetype="text/javascript" if name.endswith(".js") else kind)
    lasting = request.args.get("v") == static_version()
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if lasting else "no-cache"
    response.add_etag()
    response.make_conditional(request)
    return response


__all__ = ["Dashboard", "HTTPException", "create_app"]

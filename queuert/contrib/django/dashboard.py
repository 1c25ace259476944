"""The dashboard in a project's URLs.

    urlpatterns = [path("queue/", include(dashboard_urls()))]

As in the admin, staff may come in, unless `authenticate` or `token` says otherwise. Django checks the name of the host
(`ALLOWED_HOSTS`); the dashboard has form tokens of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from queuert.dashboard import create_app
from queuert.dashboard.access import FORWARDED, is_loopback

KEY = "queuert.django.request"


def dashboard_urls(app: Any = None, *, authenticate: Callable[[Any], Any] | None = None, **options: Any) -> list[Any]:
    """URL patterns to `include` under any path: of the project's queue, or of an app.

    `authenticate(request)` gets Django's request; the other options are those of `create_app`.
    """
    ask = authenticate
    if ask is None and options.get("token") is None:
        ask = _staff
    options.setdefault("allowed_hosts", ["*"])  # Django has looked at it

    def identify(request: Request) -> Any:
        return None if ask is None else _answer(ask(request.environ[KEY]))

    if app is None:
        from queuert.contrib.django.conf import project_queue

        app = _ProjectQueue(project_queue)
    dashboard = create_app(app, authenticate=None if ask is None else identify, **options)

    @csrf_exempt
    def show(request: HttpRequest, rest: str) -> HttpResponse:
        request.get_host()
        environ = dict(request.META)
        whole, path = request.path, f"/{rest}"
        environ["SCRIPT_NAME"] = _wsgi(whole[: len(whole) - len(rest)].rstrip("/"))
        environ["PATH_INFO"] = _wsgi(path)
        environ[KEY] = request
        if hasattr(request, "_read_started") and "wsgi.input" in environ and request._read_started:
            environ["wsgi.input"] = request
        made = Response.from_app(dashboard, environ, buffered=True)
        answer = HttpResponse(made.get_data(), status=made.status_code)
        for name, value in made.headers.items():
            if name.lower() != "set-cookie":
                answer[name] = value
        _pass_cookies(made.headers.getlist("Set-Cookie"), answer)
        return answer

    return [re_path(r"^(?P<rest>.*)$", show, name="queuert-dashboard")]


class _ProjectQueue:
    """Stands for the project's queue, which is made when it is first used."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @property
    def queuert(self) -> Any:
        return self._find()


def _staff(request: Any) -> Any:
    """Staff, as in the admin. A project without users has only this machine to trust."""
    user = getattr(request, "user", None)
    if user is None:
        passed_on = any(name in request.headers for name in FORWARDED)
        return not passed_on and is_loopback(request.META.get("REMOTE_ADDR") or "localhost")
    if user.is_authenticated:
        return user.get_username() if user.is_active and user.is_staff else None
    if request.method == "GET":
        from urllib.parse import quote

        return redirect(f"{resolve_url(settings.LOGIN_URL)}?next={quote(request.get_full_path())}", 302)
    return None


def _answer(found: Any) -> Any:
    """What Django's way of saying it means here."""
    if isinstance(found, HttpResponse):
        return Response(found.content, status=found.status_code, headers=list(found.items()))
    if hasattr(found, "get_username"):
        return found.get_username() if found.is_authenticated else None
    return found


def _pass_cookies(lines: Iterable[str], answer: HttpResponse) -> None:
    for line in lines:
        answer.cookies.load(line)


def _wsgi(path: str) -> str:
    """A path as WSGI has it."""
    return path.encode("utf-8").decode("latin-1")

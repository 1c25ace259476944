"""Who may come in, and who may act.

Without a token and without `authenticate` the dashboard answers only to this machine: the name it was called by must be one
of the loopback's (or a page elsewhere could reach it through a DNS name of its own that leads here), and nothing may say that
the request was passed on. An act needs the token of the form it was sent by, which only our own pages can read.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from werkzeug.exceptions import Forbidden, SecurityError, Unauthorized
from werkzeug.wrappers import Request, Response

from queuert.chains.operate import MAX_ACTOR
from queuert.dashboard.settings import Settings

TOKEN_COOKIE: Final = "queuert_token"
CSRF_COOKIE: Final = "queuert_csrf"
CSRF_FIELD: Final = "csrf_token"
CSRF_HEADER: Final = "X-CSRF-Token"
FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")

WRONG_TOKEN: Final = "The token is wrong or missing: open the address with ?token=..., or send it as a Bearer token."
NOT_LOCAL: Final = (
    "Without a token or authenticate= the dashboard answers only on the machine that it runs on: give create_app one of them."
)
WRONG_FORM: Final = (
    "The form is out of date or was not sent from this dashboard; nothing was changed. Go back, reload, try again."
)
READ_ONLY: Final = "This dashboard is read-only; nothing was changed."


@dataclass(frozen=True)
class Visitor:
    """Who looks at the dashboard; the name goes to the timeline of what they do."""

    name: str


def check_host(request: Request, settings: Settings) -> None:
    """Refuse names that this dashboard does not go by."""
    host = _host_name(request.host)
    if settings.allowed_hosts is not None:
        if "*" not in settings.allowed_hosts and host not in settings.allowed_hosts:
            raise SecurityError(f"This dashboard does not answer to the name {host!r}.")
        return
    if settings.open:
        passed_on = any(name in request.headers for name in FORWARDED)
        if passed_on or not is_loopback(host) or not is_loopback(request.remote_addr or "localhost"):
            raise Forbidden(NOT_LOCAL)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def identify(request: Request, settings: Settings) -> Visitor | Response:
    """Who it is, or the answer that they get instead of a page."""
    if settings.open:
        return Visitor("dashboard")
    if settings.token is not None and _has_token(request, settings.token):
        return Visitor("dashboard")
    if settings.authenticate is None:
        raise Unauthorized(WRONG_TOKEN)
    found = settings.authenticate(request)
    if isinstance(found, Response):
        return found
    if isinstance(found, str) and found:
        return Visitor(found.replace("\0", "")[:MAX_ACTOR])
    if found is True:
        return Visitor("dashboard")
    raise Unauthorized("You are not signed in, or may not see this dashboard.")


def offered_token(request: Request, settings: Settings) -> bool:
    """Whether the address carries the right token, which then moves to a cookie."""
    if settings.token is None or "token" not in request.args:
        return False
    if not _equal(request.args["token"], settings.token):
        raise Unauthorized(WRONG_TOKEN)
    return True


def remember_token(response: Response, request: Request, settings: Settings, root: str) -> None:
    if settings.token is not None:
        response.set_cookie(
            TOKEN_COOKIE,
            _cookie_of(settings.token),
            path=root or "/",
            httponly=True,
            samesite="Lax",  # a link from a chat must find it, a form of another site must not
            secure=request.is_secure,
        )


def _has_token(request: Request, token: str) -> bool:
    given = request.authorization
    if given is not None and given.type == "bearer" and given.token is not None:
        return _equal(given.token, token)
    return _equal(request.cookies.get(TOKEN_COOKIE, ""), _cookie_of(token))


def _cookie_of(token: str) -> str:
    """What a browser keeps: as good as the token here, and useless for finding it out."""
    return hmac.new(token.encode(), b"queuert dashboard cookie", hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def may_act(settings: Settings, visitor: Visitor, act: str) -> bool:
    """Whether somebody may do something: `act` is `retry`, `cancel`, `pause` and so on."""
    return not settings.read_only and (settings.may_act is None or bool(settings.may_act(visitor.name, act)))


def check_act(request: Request, settings: Settings, visitor: Visitor, act: str) -> None:
    """Refuse an act that was not sent by a form of ours, or by somebody who may not."""
    if settings.read_only:
        raise Forbidden(READ_ONLY)
    if _sent_from_elsewhere(request):
        raise Forbidden(WRONG_FORM)
    cookie = request.cookies.get(CSRF_COOKIE, "")
    given = request.form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER, "")
    if not cookie or not _equal(given, cookie):
        raise Forbidden(WRONG_FORM)
    if not may_act(settings, visitor, act):
        raise Forbidden(f"{visitor.name} may not {act} here; nothing was changed.")


def _sent_from_elsewhere(request: Request) -> bool:
    """Whether the browser says that another site made it send this. A page elsewhere can set none of these headers."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    hosts = {request.host.lower(), request.headers.get("X-Forwarded-Host", "").strip().lower()}
    return origin is not None and (urlsplit(origin).netloc.lower() or "nowhere") not in hosts


def csrf_token(request: Request) -> str:
    """The token that this browser's forms carry: the one that it has, or a new one."""
    found = request.cookies.get(CSRF_COOKIE, "")
    return found if len(found) == 43 and found.isascii() else secrets.token_urlsafe(32)


def remember_csrf(response: Response, request: Request, token: str, root: str) -> None:
    if request.cookies.get(CSRF_COOKIE) != token:
        response.set_cookie(CSRF_COOKIE, token, path=root or "/", httponly=True, samesite="Lax", secure=request.is_secure)

"""One request on its way: who asks, for what, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from queuert.app import Queuert
from queuert.context import Context
from queuert.dashboard import access
from queuert.dashboard.access import Visitor
from queuert.dashboard.cache import Cache
from queuert.dashboard.rendering import environment
from queuert.dashboard.settings import Settings

T = TypeVar("T")

FRESH: Final = 1.0  # seconds for which pages share an answer
Query = Mapping[str, Any]


class Visit:
    """What a view is given."""

    def __init__(self, request: Request, root: str, settings: Settings, cache: Cache, visitor: Visitor) -> None:
        self.request = request
        self.root = root
        self.settings = settings
        self.visitor = visitor
        self._cache = cache

    @cached_property
    def app(self) -> Queuert:
        return self.settings.find_app()

    @property
    def context(self) -> Context:
        return self.app._context

    def shared(self, key: Hashable, compute: Callable[[], T], lasts: float = FRESH) -> T:
        """An answer that all pages share for a moment."""
        return self._cache.get((id(self.app), key), lasts, compute)

    def changed(self) -> None:
        self._cache.forget()

    def may(self, act: str) -> bool:
        return access.may_act(self.settings, self.visitor, act)

    # Addresses

    def url(self, *parts: str, query: Query | None = None) -> str:
        """The address of a page: `visit.url("chains", chain.id)`."""
        path = "/".join(quote(part, safe="") for part in parts)
        return f"{self.root}/{path}" + (f"?{query_string(query)}" if query else "")

    # Answers

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page made of a template."""
        token = access.csrf_token(self.request)
        text = (
            environment()
            .get_template(template)
            .render(
                visit=self,
                url=self.url,
                title=self.settings.title,
                csrf_token=token,
                csrf_field=access.CSRF_FIELD,
                may=self.may,
                **values,
            )
        )
        response = Response(text, status=status, mimetype="text/html")
        access.remember_csrf(response, self.request, token, self.root)
        if status == 200 and self.request.method == "GET":
            response.add_etag()
            response.make_conditional(self.request)
        return response

    def json(self, value: object, *, status: int = 200) -> Response:
        return json_response(value, status=status)

    def go(self, address: str) -> Response:
        """See another page, after an act."""
        return redirect(address, 303)

    def back(self, default: str, **query: Any) -> Response:
        """To the page that the form was on, or to another of ours, with what was done."""
        wanted = self.request.form.get("back", "")
        local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and "\n" not in wanted and "\r" not in wanted
        address = wanted if local and wanted.startswith(f"{self.root}/") else default
        path, _, rest = address.partition("?")
        kept = [pair for pair in rest.split("&") if pair and pair.partition("=")[0] not in ("done", "number", "skipped")]
        return self.go(f"{path}?{'&'.join([*kept, query_string(query)])}")


def json_response(value: object, *, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Response(text.encode("utf-8", "replace"), status=status, mimetype="application/json")


def query_string(query: Query) -> str:
    """Names and values as an address has them; a list repeats its name, None is left out."""
    return urlencode({name: value for name, value in query.items() if value not in (None, "", (), [])}, doseq=True)

"""A shop whose queue has something of everything, and a browser that asks without being one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from werkzeug.test import Client, TestResponse

from queuert import Chain, Queuert

SCRIPT = "<script>document.title='owned'</script>"


@dataclass
class Shop:
    """An app with a job type that does as it is told."""

    app: Queuert
    broken: bool = True

    def failed(self, **input: Any) -> Chain:
        """A chain that has failed for good."""
        chain = self.app.start_chain("charge", {"fail": True, **input})
        self.app.drain()
        return self.found(chain.id)

    def completed(self, **input: Any) -> Chain:
        chain = self.app.start_chain("charge", input)
        self.app.drain()
        return self.found(chain.id)

    def found(self, id: str) -> Chain:
        chain = self.app.get_chain(id)
        assert chain is not None
        return chain


class Browser:
    """A client that keeps cookies and finds the token of the forms."""

    def __init__(self, wsgi: Any, root: str = "") -> None:
        self.client = Client(wsgi)
        self.root = root

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.client.get(self.root + path, **options)

    def token(self, path: str = "/chains") -> str:
        found = re.search(r'name="csrf_token" value="([^"]+)"', self.get(path).text)
        if found is None:  # a page without a form still sets the cookie that the token is compared with
            cookie = self.client.get_cookie("queuert_csrf", path=self.root or "/")
            assert cookie is not None
            return cookie.value
        return found[1]

    def post(self, path: str, data: dict[str, Any] | None = None, **options: Any) -> TestResponse:
        """Send a form as one of our pages would."""
        return self.client.post(self.root + path, data={"csrf_token": self.token(), **(data or {})}, **options)

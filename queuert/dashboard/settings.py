"""What `create_app` was told, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Union

from werkzeug.wrappers import Request, Response

from queuert.app import Queuert
from queuert.dashboard.redaction import Redact, redact_by_name

Authenticate = Callable[[Request], Union[str, bool, Response, None]]
MayAct = Callable[[str, str], bool]


@dataclass(frozen=True)
class Settings:
    """How a dashboard behaves."""

    find_app: Callable[[], Queuert]
    base_path: str
    authenticate: Authenticate | None
    token: str | None
    read_only: bool
    may_act: MayAct | None
    redact: Redact
    allowed_hosts: tuple[str, ...] | None
    title: str

    @property
    def open(self) -> bool:
        """Whether it asks nobody who they are; then it answers only on this machine."""
        return self.token is None and self.authenticate is None


def checked_settings(
    app: object,
    *,
    base_path: object,
    authenticate: Authenticate | None,
    token: object,
    read_only: bool,
    may_act: MayAct | None,
    redact: Redact | None,
    allowed_hosts: Iterable[str] | None,
    title: object,
) -> Settings:
    if not isinstance(base_path, str) or (base_path and not base_path.startswith("/")):
        raise ValueError(f"base_path must begin with a slash, such as '/queue', not {base_path!r}.")
    if token is not None and (not isinstance(token, str) or not token.strip()):
        raise ValueError("token must be a string that is not empty; leave it out to have none.")
    for name, given in (("authenticate", authenticate), ("may_act", may_act), ("redact", redact)):
        if given is not None and not callable(given):
            raise TypeError(f"{name} must be callable, not {type(given).__name__}.")
    if isinstance(allowed_hosts, str):
        raise TypeError("allowed_hosts must be a list of names, not a string.")
    return Settings(
        find_app=_finder(app),
        base_path=base_path.rstrip("/"),
        authenticate=authenticate,
        token=token,
        read_only=bool(read_only),
        may_act=may_act,
        redact=redact_by_name() if redact is None else redact,
        allowed_hosts=None if allowed_hosts is None else tuple(host.lower() for host in allowed_hosts),
        title=str(title),
    )


def _finder(app: object) -> Callable[[], Queuert]:
    # An extension stands for the app of the application that the request is of.
    if isinstance(getattr(type(app), "queuert", None), property):
        extension: Any = app
        return lambda: extension.queuert
    if isinstance(app, Queuert):
        return lambda: app
    raise TypeError(f"create_app takes a Queuert, not {type(app).__name__}.")
